"""The words of attach, status and kill: a flag that would do nothing is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli import main


@pytest.mark.parametrize("verb", ["attach", "status", "logs"])
@pytest.mark.parametrize("flag", ["--nodes", "--include", "--exclude"])
def test_a_run_knows_its_nodes(verb: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "run_1", flag, "x"]) == 2
    assert "No such option" in capsys.readouterr().err


def test_a_signal_goes_by_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["kill", "run_1", "--signal", "USR1", "--nodes", "list.txt"]) == 2
    assert "--signal and --nodes exclude each other" in capsys.readouterr().err
    monkeypatch.setenv("AORTA_LAUNCH_NODES", "list.txt")
    assert main(["kill", "run_1", "--signal", "USR1"]) == 2
    assert "no run run_1 is known here" in capsys.readouterr().err, "a variable is there for launches"
