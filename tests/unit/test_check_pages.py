"""docs/checks.md and docs/check.schema.json are made of the code: written where AORTA_TESTS_WRITE is set."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from orchestrator.checks.catalogue import CATALOGUE
from orchestrator.cli import main
from orchestrator.facts import Facts
from orchestrator.output.catalogue_text import catalogue_document
from orchestrator.output.checks_document import checks_document
from orchestrator.output.checks_schema import checks_schema
from orchestrator.values import Finding, Node

DOCS = Path(__file__).parents[2] / "docs"
WRITES = bool(os.environ.get("AORTA_TESTS_WRITE"))


def compare(page: Path, text: str) -> None:
    if WRITES:
        page.write_text(text)
    assert page.read_text() == text


def test_the_page_of_checks_is_the_catalogue() -> None:
    document = catalogue_document()["checks"]
    lines = [
        "# The checks",
        "",
        "What `aorta-launch check --list` tells, as a page; a test writes it. The figures are the defaults: in a config,",
        "`launch.checks` changes them by the names in the last column, e.g. `checks: {disk: {fail_gib: 20, reason: big",
        "checkpoints}}`; `severity: warn` or `fail` changes what a problem counts as, `skip: true` leaves a check out.",
    ]
    for level, title in enumerate(("facts, before every launch", "collectives", "load")):
        lines += ["", f"## Level {level}: {title}", "", "| check | looks at | fail | warn | why | figures |"]
        lines.append("|---|---|---|---|---|---|")
        for one in (one for one in document if one["level"] == level):
            figures = ", ".join(f"{name}={value:g}" for name, value in one["thresholds"].items())
            cells = (f"`{one['check']}`", one["looks_at"], one["fail"], one["warn"], one["why"], figures)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    compare(DOCS / "checks.md", "\n".join(lines) + "\n")


def test_the_list_names_every_check_with_its_level_and_when_it_fails_or_warns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "--list"]) == 0
    text = capsys.readouterr().out
    for check in CATALOGUE:
        assert f"\n{check.name}  (level {check.level})\n  looks at  {check.looks_at}\n" in f"\n{text}"
        assert check.fails or check.warns, check.name
        assert check.why, check.name
    assert f"{len(CATALOGUE)} checks" in text
    assert len(CATALOGUE) >= 45
    # A figure that was not filled in would still have its braces.
    assert not re.search(r"[{}]", text)
    assert main(["check", "--list", "--json"]) == 0
    assert [one["check"] for one in json.loads(capsys.readouterr().out)["checks"]] == [one.name for one in CATALOGUE]


def test_the_document_fits_its_schema_and_a_broken_one_does_not() -> None:
    schema = checks_schema()
    compare(DOCS / "check.schema.json", json.dumps(schema, indent=1, sort_keys=True) + "\n")
    nodes = [Node(name="a", host="a"), Node(name="b", host="b")]
    facts = [Facts(node_rank=0, hostname="a", disk_free_gib=1.5), Facts(node_rank=1)]
    finding = Finding(check="disk", status="fail", node_rank=0, detail="d", remedy="r", why="w")
    document = json.loads(json.dumps(checks_document(nodes, facts, [finding, replace(finding, node_rank=None)])))
    jsonschema.validate(document, schema)
    assert document["nodes"][0]["facts"]["disk_free_gib"] == 1.5
    document["nodes"][0]["findings"][0]["status"] = "bad"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)
