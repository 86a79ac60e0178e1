"""docs/performance.md and its curves say what the figures beside it say; scripts/bench --page writes them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from benchmark.page import FIGURES, PAGE, build_files, judge_part, read_all, read_further  # noqa: E402 - found by the line above
from benchmark.parts import list_words, read_part  # noqa: E402

FOUND = read_all()


def test_the_page_and_its_curves_are_made_from_the_figures() -> None:
    files = build_files(FOUND, read_further())
    for name, text in files.items():
        assert (PAGE.parent / name).read_text() == text, f"{name}: scripts/bench --page"
    assert {path.name for path in FIGURES.glob("*.svg")} == {Path(name).name for name in files if name.endswith(".svg")}


def test_a_must_that_was_not_measured_is_told() -> None:
    reached = [one for word in list_words() for one in judge_part(FOUND.get(word), word)]
    assert {one.part for one in reached} == {word for word in list_words() if read_part(word).musts}
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|") and "not measured" in line]
    assert len(rows) == len([one for one in reached if one.measured is None])


def test_a_part_on_another_machine_has_a_section_of_its_own_and_judges_what_was_measured_there() -> None:
    there = replace(FOUND["check"], machine={**FOUND["check"].machine, "cores": "16"}, note="Quiet nodes.")
    there = replace(there, series=tuple(series for series in there.series if series.nodes == 64))
    page = build_files(FOUND, [{"check": there}])["performance.md"]
    assert "[check of N nodes on 16 cores](#check-of-n-nodes-on-16-cores)" in page
    section = page.partition("\n## check of N nodes on 16 cores\n")[2].partition("\n## ")[0]
    assert section.startswith("\nQuiet nodes.\n\n| must reach")
    assert "on 16 cores (" in section
    musts = [line for line in section.splitlines() if line.startswith("| check of ")]
    assert len(musts) == 2, "one needs 256 nodes as well"
