"""Which calls dial their nodes while the rest of the program is still being loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.phases.dialled import find_nodes
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
