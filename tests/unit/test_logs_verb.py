from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from runs import build_plan

from orchestrator import cli
from orchestrator.output.plan_text import plan_document
from orchestrator.phases.loggaps import add_gap
from orchestrator.plan.paths import ExperimentPaths, launches_folder

RUN = "multinode_20261127_220331-k3f9"


class Known:
    """A run that is over, as this launch host remembers it."""

    def __init__(self, home: Path, ranks: str = "0") -> None:
        plan = build_plan(2, 1)
        self.paths = ExperimentPaths(home / "experiments" / RUN)
        (self.paths.logs / "times").mkdir(parents=True)
        nodes = [asdict(node.node) for node in plan.nodes]
        entry = {"run_id": RUN, "experiment": str(self.paths.root), "live": False, "nodes": nodes, "ssh": {}}
        launches_folder(home).mkdir(parents=True)
        (launches_folder(home) / f"{RUN}.json").write_text(json.dumps({**entry, "control": {"ranks": ranks}}))
        self.write_record(plan={**plan_document(plan), "project": "p", "grace_s": 1.0, "failure_grace_s": 1.0})
        for node_rank in (0, 1):
            self.paths.agent_err(node_rank).write_text(f"agent {node_rank}\n")
        for rank in range(3):
            self.paths.rank_out(rank).write_bytes(b"out %d\n\xff\r\n" % rank)
            self.paths.rank_err(rank).write_bytes(b"err %d\n" % rank)

    def write_record(self, **fields: object) -> None:
        document = {"run_id": RUN, "state": "succeeded", "timings": {"collected": "now"}, **fields}
        self.paths.run_json.write_text(json.dumps(document))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def logs(capsysbinary: pytest.CaptureFixture[bytes], *words: str) -> tuple[int, bytes, str]:
    code = cli.main(["logs", *words])
    told = capsysbinary.readouterr()
    return code, told.out, told.err.decode()


def test_the_ranks_of_the_launch_are_shown_unless_others_are_named(
    home: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    Known(home, ranks="0,2")
    code, out, err = logs(capsysbinary, RUN[:-3])
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [b"[0:0] err 0", b"[0:0] out 0", b"[0:0] \xef\xbf\xbd", b"[1:2] err 2", b"[1:2] out 2", b"[1:2] \xef\xbf\xbd"]  # fmt: skip
    assert logs(capsysbinary, RUN, "--rank", "1", "--stream", "err")[1] == b"[0:1] err 1\n"
    assert logs(capsysbinary, RUN, "--rank", "all", "--stream", "err")[1].count(b"\n") == 3
    assert logs(capsysbinary, RUN, "--node", "node1", "--stream", "err")[1] == b"[1:agent] agent 1\n[1:2] err 2\n"
    assert logs(capsysbinary, RUN, "--node", "0-1", "--rank", "1,2", "--stream", "err")[1].count(b"\n") == 4
    assert logs(capsysbinary, RUN, "-f", "--stream", "err")[0] == 0


def test_raw_is_the_very_bytes_of_one_stream(home: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    known = Known(home)
    assert logs(capsysbinary, RUN, "--raw") == (0, b"out 0\n\xff\r\n", "")
    assert logs(capsysbinary, RUN, "--raw", "--rank", "2", "--stream", "err") == (0, b"err 2\n", "")
    assert logs(capsysbinary, RUN, "--raw", "--node", "1") == (0, b"out 2\n\xff\r\n", "")
    known.paths.rank_out(0).write_bytes(b"out" + bytes(5) + b"\0end")
    add_gap(known.paths.gaps_jsonl, "rank_0000.out", (3, 8))
    code, out, err = logs(capsysbinary, RUN, "--raw")
    assert (code, out) == (0, b"out\0end")
    assert "rank_0000.out: (5 B were dropped here)" in err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ((), "no run is live"),
        (("--rank", "0,3"), "3 is not within ranks 0 to 2"),
        (("--rank", "first"), "names no rank"),
        (("--raw", "--rank", "all"), "--raw prints the bytes of one rank, not of 3"),
        (("--node", "nowhere"), "no node nowhere"),
        (("--since", "yesterday"), "expected a duration"),
        (("--stream", "all"), "expected out, err or both"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    home: Path, capsysbinary: pytest.CaptureFixture[bytes], words: tuple[str, ...], what: str
) -> None:
    Known(home)
    code, out, err = logs(capsysbinary, *([RUN, *words] if words else []))
    assert (code, out) == (2, b"")
    assert what in err


def test_a_run_that_never_started_and_one_whose_folder_is_gone(
    home: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    known = Known(home)
    known.write_record(state="not started")
    for words in ((), ("-f",)):
        code, _, err = logs(capsysbinary, RUN, *words)
        assert code == 2
        assert "nothing was started" in err
    known.paths.run_json.unlink()
    code, _, err = logs(capsysbinary, RUN)
    assert code == 2
    assert "cannot be read" in err


def test_following_a_run_that_nobody_can_go_on_with_ends_with_its_error(
    home: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    known = Known(home)
    document = json.loads(known.paths.run_json.read_text())
    known.write_record(plan=document["plan"], state="unknown", timings={}, error="node1 does not answer")
    code, out, err = logs(capsysbinary, RUN, "-f", "--stream", "err")
    assert (code, out) == (1, b"[0:0] err 0\n")
    assert "no more logs can be fetched: node1 does not answer" in err
