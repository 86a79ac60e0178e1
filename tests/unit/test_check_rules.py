"""What the config and the flags change about checks, and answers that are kept and judged again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checks.catalogue import check_rules_fit, run_checks
from orchestrator.cli import main
from orchestrator.errors import ConfigError
from orchestrator.facts import Facts, Survey, parse_facts
from orchestrator.phases.preflight import NodeAnswer
from orchestrator.phases.saved import write_answers
from orchestrator.settings import Settings, build_settings
from orchestrator.values import Finding, Node

NODE = Node(name="a", host="10.0.0.1", env=(("TOKEN", "hush-hush"),))
DATA = Path(__file__).parents[1] / "data" / "facts"


def settings_of(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "config.yaml"
    path.write_text(f"launch:\n{text}")
    return build_settings({"config": str(path)}, {})


def found(settings: Settings, check: str, **facts: Any) -> Finding:
    base = {"disk_free_gib": 3.0, "disk_path": "/home"}
    findings = run_checks([NODE], [Facts(node_rank=0, **{**base, **facts})], Survey(), settings)
    return next(finding for finding in findings if finding.check == check)


def test_a_threshold_is_changed_and_the_reason_kept(tmp_path: Path) -> None:
    assert found(settings_of(tmp_path, "  fanout: 1\n"), "disk").status == "warn"
    settings = settings_of(tmp_path, "  checks: {disk: {fail_gib: 20, reason: big checkpoints}}\n")
    finding = found(settings, "disk")
    assert (finding.status, finding.reason) == ("fail", "big checkpoints")
    assert "less than 20 GiB" in finding.detail
    assert found(settings_of(tmp_path, "  checks:\n    disk:\n      warn_gib: 2\n"), "disk").status == "ok"


def test_a_severity_is_changed_and_what_is_well_stays_well(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "  checks: {disk: {severity: fail}, nofile: {severity: warn, reason: r}}\n")
    assert found(settings, "disk").status == "fail"
    assert found(settings, "disk", disk_free_gib=100.0).status == "ok"
    finding = found(settings, "nofile", limits={"nofile": 1 << 20})
    assert (finding.status, finding.reason) == ("ok", "")


def test_a_check_is_left_out_with_its_reason(tmp_path: Path) -> None:
    finding = found(settings_of(tmp_path, "  checks: {disk: {skip: true, reason: quota instead}}\n"), "disk")
    assert (finding.status, finding.reason, finding.detail) == ("skip", "quota instead", "left out by launch.checks")


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("{dsk: {skip: true}}", "there is no check dsk, did you mean disk"),
        ("{disk: {fail_gb: 3}}", "disk has no fail_gb"),
        ("{addresses: {skip: true}}", "addresses cannot be left out"),
        ("{addresses: {severity: warn}}", "addresses cannot be left out"),
        ("{disk: {severity: ok}}", "severity of disk to be warn or fail"),
        ("{disk: {fail_gib: much}}", "fail_gib of disk to be a number"),
        ("{disk: {skip: 1}}", "skip of disk to be true or false"),
        ("{disk: 3}", "a mapping like"),
        ("[disk]", "a mapping of checks"),
    ],
)
def test_a_rule_that_fits_nothing_is_refused_with_file_and_line(tmp_path: Path, rule: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_rules_fit(settings_of(tmp_path, f"  checks: {rule}\n"))
    assert told in caught.value.what
    assert f"{tmp_path}/config.yaml:2" in caught.value.where
    assert caught.value.remedy


def keep(folder: Path, answer: dict[str, Any], survey: Survey | None = None) -> Path:
    kept = NodeAnswer(raw=answer, clock=(0.0, 0.001), took_s=0.2, facts=parse_facts(0, answer))
    write_answers(folder, [NODE], [kept], survey or Survey())
    return folder


def answer_of(name: str, **changes: Any) -> dict[str, Any]:
    return {"facts": {**json.loads((DATA / name).read_text())["facts"], **changes}, "unknown": {}}


def test_kept_answers_are_judged_again_without_asking_anybody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = keep(tmp_path / "kept", answer_of("cpu_node.json", disk_free_gib=0.2))
    assert main(["check", "--from-facts", str(folder), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    (finding,) = [one for one in document["nodes"][0]["findings"] if one["check"] == "disk"]
    assert finding["status"] == "fail"
    assert "hush-hush" not in "".join(path.read_text() for path in folder.iterdir())


def test_only_strict_and_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = keep(tmp_path / "kept", answer_of("cpu_node.json", disk_free_gib=3.0))
    words = ["check", "--from-facts", str(folder), "--only", "disk,python"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "READY · 1 node · 2 checks: 1 ok, 1 warn (--all shows them)" in text
    assert main([*words, "--strict"]) == 3
    assert "NOT READY" in (text := capsys.readouterr().out)
    assert "--strict: a warning counts" in text
    assert main(["check", "--from-facts", str(folder), "--all", "--only", "rsync"]) == 0
    assert capsys.readouterr().out.startswith("check  0 a  found\nrsync  ok")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no JSON"),
        ("[]", "not of schema 1"),
        ('{"schema": 2}', "not of schema 1"),
        ('{"schema": 1}', "KeyError"),
        (
            '{"schema": 1, "node": {"name": 3}, "clock": [0, 0], "answer": {}}',
            "node.name: expected a text, not 3",
        ),
    ],
)
def test_a_kept_answer_that_is_none_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    folder = keep(tmp_path / "kept", answer_of("cpu_node.json"))
    (folder / "node_0000.json").write_text(text)
    assert main(["check", "--from-facts", str(folder)]) == 2
    said = capsys.readouterr().err
    assert "saved facts cannot be read" in said
    assert told in said
    assert "Traceback" not in said


def test_a_folder_without_answers_and_one_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--from-facts", str(tmp_path)]) == 2
    assert "check --save-facts DIR" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="facts cannot be written"):
        keep(tmp_path / "file" / "kept", answer_of("cpu_node.json"))


def test_a_second_saving_leaves_no_node_of_the_first(tmp_path: Path) -> None:
    folder = keep(tmp_path / "kept", answer_of("cpu_node.json"))
    (folder / "node_0007.json").write_text("{}")
    keep(folder, answer_of("cpu_node.json"))
    assert sorted(path.name for path in folder.iterdir()) == ["node_0000.json", "survey.json"]


def test_two_nodes_fold_the_same_words(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "  checks: {disk: {fail_gib: 20}}\n")
    facts = [Facts(node_rank=rank, disk_free_gib=3.0, disk_path="/home") for rank in (0, 1)]
    findings = run_checks([NODE, replace(NODE, name="b")], facts, Survey(), settings)
    assert len({one.detail for one in findings if one.check == "disk"}) == 1
