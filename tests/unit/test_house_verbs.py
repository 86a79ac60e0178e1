"""The words of ls, note, prune and exec, and what prune says before it asks."""

from __future__ import annotations

import io
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator.cli import main
from orchestrator.errors import UsageError
from orchestrator.house_actions import build_command, time_limit
from orchestrator.output.prune_text import (
    Fate,
    Look,
    NodeShare,
    Pruning,
    prune_document,
    prune_exit,
    render_after,
    render_before,
)
from orchestrator.output.question import confirm
from orchestrator.output.wording import render_size
from orchestrator.settings import build_settings


class Actions(types.ModuleType):
    """Remembers what it was asked to do."""

    def __init__(self) -> None:
        super().__init__("orchestrator.house_actions")
        self.called: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def action(settings: Any, *words: Any, **options: Any) -> int:
            self.called.append((name, settings, *words, options))
            return 0

        return action


@pytest.fixture
def actions(monkeypatch: pytest.MonkeyPatch) -> Actions:
    fake = Actions()
    monkeypatch.setitem(sys.modules, "orchestrator.house_actions", fake)
    monkeypatch.setattr(orchestrator, "house_actions", fake, raising=False)
    return fake


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("exec -- ls -l --json", ["ls", "-l", "--json"]),
        ("exec ls -l --nodes x", ["ls", "-l", "--nodes", "x"]),
        ("exec -m", None),
        ("--nodes f exec uptime", ["uptime"]),
        ("exec --nodes f --timeout 5s -- -- x", ["--", "x"]),
        ("exec --nodes f -q launch train.py", ["launch", "train.py"]),
        ("exec", None),
        ("exec --", None),
        ("exec --nodes f", None),
        ("exec --tiemout 5 ls", None),
    ],
)
def test_words_of_exec(actions: Actions, argv: str, words: list[str] | None) -> None:
    assert main(argv.split()) == (0 if words else 2)
    if words:
        ((verb, settings, got, _),) = actions.called
        assert (verb, got) == ("execute", words)
        assert settings.nodes == Path("f") or "--nodes f" not in argv
    else:
        assert not actions.called


def test_an_empty_command_is_refused(actions: Actions, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exec", "--", ""]) == 2
    assert "no command is given" in capsys.readouterr().err
    assert main(["exec", "--", "", "x"]) == 0
    assert actions.called[0][2] == ["", "x"]


def test_one_word_is_a_line_and_several_are_the_very_words() -> None:
    assert build_command(["a; b"]) == [b"/bin/sh", b"-c", b"a; b"]
    assert build_command(["a;", os.fsdecode(b"\xff")]) == [b"a;", b"\xff"]


def test_the_limit_of_the_training_is_not_that_of_a_command(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("launch:\n  timeout_s: 3600\n")
    assert time_limit(build_settings({"config": str(config)}, {})) is None
    assert time_limit(build_settings({"config": str(config), "timeout_s": "5s"}, {})) == 5.0


def test_words_of_the_others(actions: Actions, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--all", "--json"]) == 0
    assert main(["note", "run_1", "lr", "too", "high"]) == 0
    assert main(["prune", "--keep", "3", "--dry-run", "--yes", "--nodes-only", "--user", "me"]) == 0
    (_, listed, every), (_, _, *noted, _), (_, pruned, keep, options) = actions.called
    assert (listed.json_output, every) == (True, {"every": True})
    assert noted == ["run_1", "lr too high"]
    assert (pruned.user, keep) == ("me", 3)
    assert options == {"dry_run": True, "yes": True, "nodes_only": True, "lose_outputs": False}
    for argv in (
        ["note", "run_1"],
        ["note"],
        ["note", "run_1", " "],
        ["prune"],
        ["prune", "--keep", "-1"],
        ["ls", "x"],
    ):
        capsys.readouterr()
        assert main(argv) == 2
        assert capsys.readouterr().err.startswith("error: ")
    assert len(actions.called) == 3


def pruning(*fates: Fate, nodes: tuple[NodeShare, ...] = (), nodes_only: bool = False) -> Pruning:
    return Pruning(
        keep=1, kept=("new",), live=("going",), unreadable=("e.json",), fates=fates, nodes=nodes, nodes_only=nodes_only
    )


def test_what_would_be_freed_is_said_by_place() -> None:
    looks = (Look(run_id="a", found=True, size=2048), Look(run_id="b", living="pid 7  x"), Look(run_id="c"))
    nodes = (NodeShare(node="n1", looks=looks), NodeShare(node="n2", asked=3, error="refused"))
    fates: tuple[Fate, ...] = (
        Fate(run_id="a", experiment="/e/a", size=5 << 20),
        Fate(run_id="b", experiment="/e/b", living="n1: pid 7  x"),
    )
    fates += (Fate(run_id="c", experiment="/e/c", kept_here="it holds no run.json of this run"),)
    assert render_before(pruning(*fates, nodes=nodes)).plain.splitlines() == [
        "4 finished runs: the newest 1 stay, 2 can go (a, c)",
        "  here  5.0 MiB  1 experiment directory · /e/c stays: it holds no run.json of this run",
        "  n1    2.0 KiB  1 run folder",
        "  n2    ?        not reached, 3 run folders there stay: refused",
        "  b is left alone: it lives on n1: pid 7  x",
        "  not over, left alone: going",
        "  e.json: cannot be read, left alone",
    ]
    assert prune_exit(pruning(*fates, nodes=nodes)) == 1
    assert prune_exit(pruning(fates[0])) == 0


def test_a_run_whose_outputs_are_not_here_says_how_they_come() -> None:
    lost = Pruning(keep=0, kept=(), live=(), unreadable=(), uncollected=("cut",), fates=(), nodes=())
    text = render_before(lost).plain
    assert "cut is left alone: its outputs are not here yet: aorta-launch attach cut" in text
    assert "--lose-outputs" in text
    assert prune_document(lost, done=False, code=0)["uncollected"] == ["cut"]


def test_what_was_done_is_said() -> None:
    looks = (Look(run_id="a", found=True, size=2048, removed=True),)
    done = pruning(
        Fate(run_id="a", experiment="/e/a", size=1024, removed=True),
        Fate(run_id="b", experiment="/e/b", left=("n2 was not reached",)),
        nodes=(NodeShare(node="n1", looks=looks), NodeShare(node="n2", error="refused")),
    )
    first, second, *remedy = render_after(done).plain.splitlines()
    assert (first, second) == ("removed 1 run, 3.0 KiB freed", "  b stays: n2 was not reached")
    assert "prune again" in remedy[0]
    document = prune_document(done, done=True, code=1)
    assert [run["removed"] for run in document["runs"]] == [True, False]


def test_sizes() -> None:
    sizes = [render_size(size) for size in (0, 1023, 1024, 10**6, 10**9, 10**13, 10**16)]
    assert sizes == ["0 B", "1023 B", "1.0 KiB", "976.6 KiB", "953.7 MiB", "9.1 TiB", "9094.9 TiB"]


class Terminal(io.StringIO):
    """A stdin at which somebody sits."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "agreed"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_whoever_sits_there_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, *, agreed: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    if agreed:
        confirm("1 run", "prune", "pruned", "  a\n")
    else:
        with pytest.raises(UsageError, match="nothing was pruned"):
            confirm("1 run", "prune", "pruned", "  a\n")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "  a\nprune 1 run? [y/N] ")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match="nobody can be asked"):
        confirm("1 run", "prune", "pruned", "  a\n")
