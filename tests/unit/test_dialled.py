"""Which calls dial their nodes while the rest of the program is still being loaded."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.phases import dialled
from orchestrator.phases.dialled import FEW, dial_ahead, find_nodes
from orchestrator.settings import build_settings


@pytest.fixture
def node_list(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.txt"
    path.write_text("10.0.0.1\n10.0.0.2\n")
    return path


@pytest.mark.parametrize(
    "flags", [{}, {"checks_skip": ["kernel-log"]}, {"checks_only": ["clock"]}, {"checks_skip": ["clock", "home"]}]
)
def test_nodes_are_dialled_at_once(node_list: Path, flags: dict[str, Any]) -> None:
    settings = build_settings({"nodes": node_list, **flags}, {}, ())
    assert [node.host for node in find_nodes(settings)] == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    "flags",
    [
        {"checks_skip": ["no-such-check"]},
        {"checks_only": ["no-such-check"]},
        {"checks_only": ["clock"], "checks_skip": ["clock"]},
        {"include": ["no-such-node"]},
    ],
)
def test_nobody_is_dialled_for_a_call_that_is_refused(node_list: Path, flags: dict[str, Any]) -> None:
    assert find_nodes(build_settings({"nodes": node_list, **flags}, {}, ())) == ()


@pytest.mark.parametrize("many", [0, 1])
def test_the_logins_of_many_find_everything_loaded_and_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """Amid the logins of many, each look at a file waits for its turn; those of few take no longer than the rest does."""
    (tmp_path / "rest_of_it.py").write_text("")
    (tmp_path / "nodes.txt").write_text("".join(f"10.0.0.{1 + place}\n" for place in range(FEW + many)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "rest_of_it", None)
    del sys.modules["rest_of_it"]
    seen: list[tuple[bool, bool]] = []
    packed = threading.Event()

    def connect(*_: object) -> list[object]:
        seen.append(("rest_of_it" in sys.modules, packed.is_set()))
        return []

    monkeypatch.setattr(dialled, "pack_ahead", packed.set)
    monkeypatch.setattr(dialled, "connect", connect)
    with dial_ahead(build_settings({"nodes": tmp_path / "nodes.txt"}, {}, ()), "rest_of_it") as links:
        assert links is not None
        assert links.take(lambda _: None) == []
    assert seen == [(bool(many), bool(many))]
