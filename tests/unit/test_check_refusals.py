"""What a check refuses before it contacts anybody: words under which it would be ready without a look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.facts import Survey, parse_facts
from orchestrator.facts.load import LoadFacts, MemberFacts
from orchestrator.node.probe_command import NoAnswerError, ask
from orchestrator.node.script_imports import read_imports
from orchestrator.phases.preflight import NodeAnswer
from orchestrator.phases.saved import write_answers
from orchestrator.values import Node

DATA = Path(__file__).parents[1] / "data" / "facts"


def keep(folder: Path, number: int, survey: Survey | None = None) -> Path:
    facts = json.loads((DATA / "cpu_node.json").read_text())["facts"]
    raw: dict[str, Any] = {"facts": facts, "unknown": {}}
    answer = NodeAnswer(raw=raw, clock=(0.0, 0.001), took_s=0.1, facts=parse_facts(0, raw, (0.0, 0.001)))
    nodes = [Node(name=f"n{rank}", host=f"10.0.0.{rank + 1}") for rank in range(number)]
    write_answers(folder, nodes, [answer] * number, survey or Survey())
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # Nobody answers there: what reaches out is seen by its exit code.
    (tmp_path / "node_ip_list.txt").write_text("192.0.2.1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--only", "sums"], "sums is a check of level 1, and level 0 is asked for"),
        (["--only", "sums"], "add --level 1"),
        (["--only", ""], "no check is named"),
        (["--only", ","], "no check is named"),
        (["--only", "disk,shm", "--skip", "shm"], "shm is left out by flag --skip"),
        (["--level", "9"], "aorta-launch check --help"),
        (["nope.py"], "there is no such script"),
        (["folder.py"], "is a directory, not a script"),
    ],
)
def test_words_under_which_nothing_would_be_looked_at(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    (project / "folder.py").mkdir()
    assert main(["check", *words]) == 2
    assert told in capsys.readouterr().err


def test_kept_answers_are_not_judged_by_what_was_not_measured(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(keep(project / "kept", 1))
    assert main(["check", "--from-facts", folder, "--level", "1"]) == 2
    assert "the saved facts are of level 0" in capsys.readouterr().err
    assert main(["check", "--from-facts", folder, "--save-facts", "other"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_a_folder_that_lost_a_file_is_one_clear_error(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    survey = Survey(load=LoadFacts(members=tuple(MemberFacts(node_rank=rank, local_rank=0) for rank in (0, 1))))
    for lost, told in (
        ("node_0000.json", "node 0 is missing"),
        ("node_0001.json", "it tells of other nodes than the 1 of the folder"),
        ("survey.json", "it is missing"),
    ):
        folder = keep(project / "kept", 2, survey)
        (folder / lost).unlink()
        assert main(["check", "--from-facts", str(folder)]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("node_0000.json", '"clock": [NaN, 1]', "nan is no number"),
        ("node_0000.json", '"clock": [1e999, 1]', "inf is no number"),
        ("survey.json", '"mesh": 5', "Survey mesh"),
        ("survey.json", '"mesh": ' + "[" * 100000, "no JSON"),
    ],
)
def test_an_edited_folder_is_one_clear_error(
    project: Path, capsys: pytest.CaptureFixture[str], name: str, change: str, told: str
) -> None:
    path = keep(project / "kept", 1) / name
    # The last of two equal keys counts.
    path.write_text(path.read_text().rstrip().removesuffix("}") + f", {change}}}")
    assert main(["check", "--from-facts", "kept"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 2
    assert told in said


def test_an_integer_beyond_every_float_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("checks: {disk: {fail_gib: N}}", "connect_timeout_s: N", "push_warn_mib: N"):
        (project / "c.yaml").write_text(f"launch:\n  {line.replace('N', '1' + '0' * 400)}\n")
        assert main(["check", "--config", "c.yaml"]) == 2
        assert "c.yaml:2: launch." in capsys.readouterr().err


def test_a_script_that_the_parser_cannot_hold_is_told(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text("x = " + "-" * 20000 + "1\n")
    assert "nested too deeply" in read_imports(str(tmp_path), ["deep.py"])["trouble"]
    (tmp_path / "nul.py").write_bytes(b"import os\0\n")
    assert "None" not in read_imports(str(tmp_path), ["nul.py"])["trouble"]


@pytest.mark.parametrize("line", ["yes", "yes >&2"])
def test_a_command_that_writes_without_end_is_given_up(line: str) -> None:
    with pytest.raises(NoAnswerError, match=r"sh wrote more than \d+ MiB"):
        ask(["sh", "-c", line], 20)


def test_a_command_is_fed_and_read_to_its_end() -> None:
    assert ask(["cat"], 20, "x" * 1_000_000) == "x" * 1_000_000
    assert ask(["sh", "-c", "exec <&-; echo out; echo err >&2"], 20, "y" * 1_000_000) == "out\n"
    with pytest.raises(NoAnswerError, match=r"sh gave no answer within 0\.2 s"):
        ask(["sh", "-c", "exec >&- 2>&-; sleep 20"], 0.2)


def test_variables_for_check_take_nothing_from_a_launch(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "node_ip_list.txt").write_text("127.0.0.9 python=/nonexistent/python3\n")
    (project / "train.py").write_text("")
    monkeypatch.setenv("HOME", str(project.parent))
    monkeypatch.setenv("AORTA_LAUNCH_CHECKS_ONLY", "disk")
    assert main(["launch", "--dry-run", "train.py"]) == 3
    assert "FAIL python" in capsys.readouterr().err
