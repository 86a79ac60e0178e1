"""How the end of one command on many nodes is told, and what the node keeps of its output."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import LinkError, LinkLostError
from orchestrator.node.execute import Kept
from orchestrator.output.folded import (
    executed_document,
    executed_exit,
    fold_executed,
    render_body,
    render_end,
    render_head,
    render_stream,
)
from orchestrator.phases.execute import kept_bytes
from orchestrator.values import Executed, Stream


def ended(node: str = "n1", out: bytes = b"", err: bytes = b"", **more: Any) -> Executed:
    return Executed(node=node, **{"code": 0, **more}, stdout=Stream(data=out), stderr=Stream(data=err))


def test_only_what_is_wholly_equal_is_folded() -> None:
    same = [ended(f"n{k}", b"a", seconds=float(k)) for k in (1, 2, 3)]
    others = [ended("n4", b"b"), ended("n5", b"a", b"x"), ended("n6", b"a", code=1), ended("n7", b"a", left_behind=1)]
    groups = fold_executed([same[0], others[0], *same[1:], *others[1:]])
    assert [[one.node for one in group] for group in groups] == [["n1", "n2", "n3"], ["n4"], ["n5"], ["n6"], ["n7"]]
    assert render_head(groups[0]).plain == "n[1-3] (3 nodes): exit code 0"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"code": 3}, "exit code 3"),
        ({"code": None, "signal": 9}, "ended by SIGKILL"),
        ({"code": None, "signal": 64}, "ended by SIGRTMAX"),
        ({"code": None, "signal": 99}, "ended by signal 99"),
        ({"code": 127, "not_started": "No such file"}, "exit code 127 · it did not start: No such file"),
        (
            {"code": None, "signal": 15, "ended": "timed out", "seconds": 61.0},
            "timed out after 1m 01s · ended by SIGTERM",
        ),
        ({"ended": "stopped"}, "stopped · exit code 0"),
        ({"left_behind": 1}, "exit code 0 · 1 process left in the background, ended too"),
        ({"code": None, "survivors": ((7, "dd"),)}, "it could not be ended · 1 STILL RUNNING"),
    ],
)
def test_every_end_has_its_words(more: dict[str, Any], words: str) -> None:
    assert render_end([ended(**more)]) == words
    assert executed_exit([ended(**more)], []) == (0 if words.startswith("exit code 0 ·") else 1)


def test_the_exit_code_weighs_a_node_that_was_not_reached_most() -> None:
    failed, unreached, lost = ended(code=1), LinkError("no", "n2"), LinkLostError("gone", "n3")
    assert executed_exit([ended()], []) == 0
    assert executed_exit([ended(), failed], []) == 1
    assert executed_exit([failed], [lost]) == 4
    assert executed_exit([failed], [lost, unreached]) == 3


def test_text_of_a_node_does_nothing_to_a_terminal() -> None:
    one = ended(out=b"\x1b[31mred\x1b[0m\r\n\x1b]0;title\x07tab\there\xff", err=b"\x07bell")
    assert "".join(render_body(one)) == "red\ntab\there\\xff\nstderr:\nbell\n"
    assert "".join(render_body(ended())) == ""
    cut = Stream(data=b"headtail", cut_at=4, left_out=1234)
    assert render_stream(cut) == "head\n… 1,234 bytes left out …\ntail\n"


def test_the_document_holds_the_very_bytes() -> None:
    results = {0: ended("n1", b"ok\n"), 2: ended("n3", b"\xff\0")}
    errors = {1: LinkError("refused", "n2", "start sshd")}
    document = json.loads(json.dumps(executed_document(["caf\udce9"], ["n1", "n2", "n3", "n4"], results, errors, 3)))
    first, second, third, fourth = document["nodes"]
    assert (document["command"], document["exit_code"]) == (["caf\\xe9"], 3)
    assert (first["stdout"], "stdout_base64" in first) == ("ok\n", False)
    assert (second["error"], second["remedy"]) == ("refused", "start sshd")
    assert base64.b64decode(third["stdout_base64"]) == b"\xff\0"
    assert "not said" in fourth["error"]


@given(st.lists(st.binary(max_size=40)), st.integers(1, 20))
def test_beginning_and_end_of_a_stream_are_kept(parts: list[bytes], half: int) -> None:
    kept = Kept(2 * half)
    for part in parts:
        kept.feed(part)
        assert len(kept.head) + len(kept.tail) <= 3 * half + len(part)
    whole = b"".join(parts)
    data, at, missing = kept.give()
    assert len(data) + missing == len(whole)
    if len(whole) <= 2 * half:
        assert (data, missing) == (whole, 0)
    else:
        assert (data, at) == (whole[:half] + whole[-half:], half)


def test_many_nodes_do_not_fill_our_memory() -> None:
    assert kept_bytes(0) == kept_bytes(8) == kept_bytes(128) == 1 << 20
    assert kept_bytes(1000) == (1 << 28) // 2000
    assert kept_bytes(10**6) == 1 << 16
