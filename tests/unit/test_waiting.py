"""What a person at a terminal is told while nodes are waited for."""

from __future__ import annotations

import io
import threading
import time

import pytest
from rich.console import Console

from orchestrator.output import console
from orchestrator.output.console import Talk

NAMES = ["node01", "node02", "node03", "node04"]


def talk_to(stream: io.StringIO, *, terminal: bool = True, verbosity: int = 0) -> Talk:
    err = Console(file=stream, force_terminal=terminal, color_system=None, width=100)
    return Talk(err=err, out=err, verbosity=verbosity, as_json=False)


def wait_for_text(stream: io.StringIO, text: str) -> None:
    end = time.monotonic() + 10
    while text not in stream.getvalue():
        assert time.monotonic() < end, stream.getvalue()
        threading.Event().wait(0.005)


def test_the_nodes_that_are_still_waited_for_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "GLANCE_S", 0.01)
    monkeypatch.setattr(console, "PATIENCE_S", 0.02)
    stream = io.StringIO()
    with talk_to(stream).waiting("asking 4 nodes", NAMES) as done:
        wait_for_text(stream, "asking 4 nodes\n")
        done(0)
        wait_for_text(stream, "asking 4 nodes: waiting for node[02-04]\n")
        done(2)
        wait_for_text(stream, "asking 4 nodes: waiting for node[02,04]\n")
    told = stream.getvalue()
    threading.Event().wait(0.1)
    assert stream.getvalue() == told


@pytest.mark.parametrize(("terminal", "verbosity"), [(False, 0), (True, -1)])
def test_nobody_is_told_where_nobody_looks(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, verbosity: int) -> None:
    monkeypatch.setattr(console, "GLANCE_S", 0.0)
    stream = io.StringIO()
    with talk_to(stream, terminal=terminal, verbosity=verbosity).waiting("asking", NAMES) as done:
        for place in range(4):
            done(place)
    assert stream.getvalue() == ""
