"""Every file tests/data/facts/case_*.json is a report of a node, or of several, and says what the checks must find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checks.catalogue import CATALOGUE, check_names_exist, run_checks
from orchestrator.errors import ConfigError
from orchestrator.facts import Facts, Survey, parse_facts
from orchestrator.facts.group import parse_group
from orchestrator.settings import Settings
from orchestrator.values import Finding, Node

DATA = Path(__file__).parents[1] / "data" / "facts"
GROUPS = frozenset({"session", "system", "health", "rdma", "project", "network"})
CASES = sorted(DATA.glob("case_*.json"))


def read_json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def build_facts(node_rank: int, base: dict[str, Any], given: dict[str, Any]) -> Facts:
    """Lay what a case says of a node over the base; "*" takes everything away first, nodes differ as machines do."""
    changed = dict(given.get("facts", {}))
    facts = {} if "*" in changed else dict(base["facts"])
    if facts:
        facts |= {
            "boot_id": f"{node_rank}{facts['boot_id'][1:]}",
            "machine_id": f"{node_rank}{facts['machine_id'][1:]}",
            "hostname": f"node{node_rank + 1}",
            "addresses": [
                {**entry, "address": entry["address"].replace("192.0.2.2", f"192.0.2.{node_rank + 2}")}
                for entry in facts["addresses"]
                if not entry["address"].startswith("fd00")
            ],
        }
    changed.pop("*", None)
    for name, value in changed.items():
        # A group of facts keeps what the case does not name.
        group = isinstance(value, dict) and name in GROUPS and isinstance(facts.get(name), dict)
        facts[name] = {**facts[name], **value} if group else value
    offset, error = given.get("clock", (0.0, 0.001))
    return parse_facts(node_rank, {"facts": facts, "unknown": given.get("unknown", {})}, (offset, error))


def run_case(case: dict[str, Any]) -> list[Finding]:
    base = read_json(DATA / case["base"])
    nodes, facts = [], []
    for node_rank, given in enumerate(case["nodes"]):
        line: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in given.get("line", {}).items()
        }
        nodes.append(Node(name="abcdefgh"[node_rank], host=f"10.0.0.{node_rank + 1}", **line))
        facts.append(build_facts(node_rank, base, given))
    survey = parse_group(Survey, case.get("survey"), "survey")
    return run_checks(nodes, facts, survey, Settings(**case.get("settings", {})), level=2)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    case = read_json(path)
    findings = {(finding.check, finding.node_rank): finding for finding in run_case(case)}
    assert case["expect"]
    for expected in case["expect"]:
        finding = findings[expected["check"], expected["node_rank"]]
        assert finding.status == expected["status"], finding
        assert expected["detail"] in finding.detail
        assert expected.get("remedy", "") in finding.remedy


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_node_gets_every_check_and_every_problem_its_remedy(path: Path) -> None:
    case = read_json(path)
    findings = run_case(case)
    said = {(finding.check, finding.node_rank) for finding in findings}
    assert len(said) == len(findings)
    assert {check for check, _ in said} == {check.name for check in CATALOGUE}
    for finding in findings:
        assert finding.detail, finding
        assert finding.remedy or finding.status not in ("warn", "fail"), finding


@pytest.mark.parametrize("check", CATALOGUE, ids=lambda check: check.name)
def test_each_check_has_a_report_that_breaks_it_and_one_that_passes(check: Any) -> None:
    expected = [one for path in CASES for one in read_json(path)["expect"] if one["check"] == check.name]
    statuses = {one["status"] for one in expected}
    assert "ok" in statuses
    assert statuses & {"fail", "warn", "unknown"} - ({"unknown"} if check.name != "gpu-driver" else set())
    assert check.looks_at


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_each_report_says_where_it_is_from(path: Path) -> None:
    value = read_json(path)
    assert value["about"]
    assert "captured" in value["origin"] or "by hand" in value["origin"]


def test_names_of_checks_are_unique() -> None:
    assert len({check.name for check in CATALOGUE}) == len(CATALOGUE)


def test_a_check_that_there_is_not_is_refused_with_the_nearest_name() -> None:
    check_names_exist(["disk", "gpu-free"], "--skip")
    with pytest.raises(ConfigError, match="there is no check gpufree, did you mean gpu-free") as caught:
        check_names_exist(["gpufree"], "--skip")
    assert caught.value.exit_code == 2
    assert "check --list" in caught.value.remedy
