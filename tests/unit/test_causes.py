"""The catalogue of causes against what tools really print: one file a cause, and a page of ordinary lines."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from failures_page import EXCERPTS, FAMILIES, PAGE, WRITES, build_heading, build_page, find_hits, read_excerpt
from hostile_lines import build_hostile_lines

from orchestrator.diagnosis.cause import Cause
from orchestrator.diagnosis.causes import CAUSES
from orchestrator.diagnosis.logs.scan import LONGEST, scan_text, title_of

SPOKEN = [cause for cause in CAUSES if cause.patterns or cause.signals or cause.codes]
SILENT = [cause for cause in CAUSES if cause not in SPOKEN]
LAUNCHER = Path(__file__).parents[2] / "orchestrator"
DIAGNOSIS = LAUNCHER / "diagnosis"
ORDINARY = ("harmless", "harmless_kernel")
SLOWEST_S = 0.02
"""For one expression on one line of the greatest length that is looked at; the slowest needs a third of that."""


def name(cause: Cause) -> str:
    return cause.id


def test_every_cause_has_its_file_and_every_file_its_cause() -> None:
    assert len({cause.id for cause in CAUSES}) == len(CAUSES) >= 60
    assert {path.stem for path in EXCERPTS.glob("*.txt")} == {cause.id for cause in CAUSES} | set(ORDINARY)
    assert [cause.id for cause in CAUSES if read_excerpt(cause.id).cause != cause.id] == []


@pytest.mark.parametrize("cause", SPOKEN, ids=name)
def test_the_word_that_counts_in_an_excerpt_is_its_cause(cause: Cause) -> None:
    excerpt = read_excerpt(cause.id)
    for block in excerpt.blocks:
        hits = find_hits(excerpt, block, kernel=cause.role == "confirm")
        assert hits, block
        assert hits[0].cause.id == cause.id, block
        title = title_of(hits[0])
        assert title == " ".join(title.split())
        assert 0 < len(title) < 200
        assert not re.search(r"[{}]|\s\(\)|:$", title), title


@pytest.mark.parametrize("cause", SPOKEN, ids=name)
def test_no_expression_is_without_an_example(cause: Cause) -> None:
    lines = [re.sub(r"^\[rank\d+\]:\s?", "", line) for line in "\n".join(read_excerpt(cause.id).blocks).splitlines()]
    unseen = [pattern for pattern in cause.patterns if not any(re.search(pattern, line) for line in lines)]
    assert unseen == []


@pytest.mark.parametrize("cause", SILENT, ids=name)
def test_what_no_words_tell_has_no_words_of_a_cause(cause: Cause) -> None:
    hits = scan_text("\n".join(read_excerpt(cause.id).blocks))
    assert [hit.cause.id for hit in hits if hit.cause.role == "cause"] == []


@pytest.mark.parametrize(("page", "kernel"), [("harmless", False), ("harmless_kernel", True)])
def test_ordinary_lines_are_no_cause(page: str, *, kernel: bool) -> None:
    text = (EXCERPTS / f"{page}.txt").read_text()
    assert len(text.splitlines()) >= (30 if kernel else 80)
    hits = scan_text(text, kernel=kernel)
    assert [(hit.cause.id, hit.text) for hit in hits if hit.cause.role in ("cause", "confirm")] == []
    # What is said of others in passing may be noted, but most lines say nothing at all.
    assert len(hits) < len(text.splitlines()) / 10


@pytest.mark.parametrize("cause", [cause for cause in CAUSES if cause.patterns], ids=name)
def test_no_expression_is_slow_on_a_long_line(cause: Cause) -> None:
    example = max("\n".join(read_excerpt(cause.id).blocks).splitlines(), key=len)
    # What an expression likes, again and again without its end, is what makes it try all ways.
    likes = [
        example[: len(example) * 2 // 3],
        re.sub(r"\d+", "1", example),
        "Error: ",
        "a.",
        "/a",
        "1, ",
        "x" * 50 + " ",
    ]
    for pattern in cause.patterns:
        expression = re.compile(pattern)
        lines = [(like * LONGEST)[:LONGEST] for like in likes]
        for line in (*lines, *build_hostile_lines(pattern, LONGEST)):
            assert _is_quick(expression, line), (pattern, line[:80])


def _is_quick(expression: re.Pattern[str], line: str) -> bool:
    return any(_time(expression, line) < SLOWEST_S for _ in range(3))


def _time(expression: re.Pattern[str], line: str) -> float:
    start = time.process_time()
    expression.search(line)
    return time.process_time() - start


def test_titles_and_remedies_name_groups_that_their_expressions_have() -> None:
    for cause in CAUSES:
        groups = {group for pattern in cause.patterns for group in re.compile(pattern).groupindex}
        groups |= {re.sub(r"\d+$", "", group) for group in groups}
        for text in (cause.title, cause.remedy):
            assert set(re.findall(r"\{(\w+)\}", text)) <= groups, cause.id
        # A part that can be missing must stand in brackets, or the title has a hole.
        bare = re.sub(r"\[[^\[\]]*\{\w+\}[^\[\]]*\]", "", cause.title)
        needed = set(re.findall(r"\{(\w+)\}", bare))
        for pattern in cause.patterns:
            have = set(re.compile(pattern).groupindex)
            have |= {re.sub(r"\d+$", "", group) for group in have}
            assert needed <= have, (cause.id, pattern)
        assert cause.explanation.endswith("."), cause.id
        assert cause.remedy.endswith((".", "`")), cause.id


def test_an_exit_means_one_thing_and_ranks_are_in_their_bounds() -> None:
    signals = [number for cause in CAUSES for number in cause.signals]
    codes = [number for cause in CAUSES for number in cause.codes]
    assert len(set(signals)) == len(signals)
    assert len(set(codes)) == len(codes)
    assert {128 + number for number in signals} <= set(codes)
    assert all(0 <= cause.priority <= 99 for cause in CAUSES)
    # Of the words of an exception that nothing more is known of, a victim's words on the same line must win.
    generic = [cause for cause in CAUSES if cause.priority < 10 and cause.role == "cause"]
    assert {cause.id.partition(".")[0] for cause in generic} == {"py"}
    assert min(cause.priority for cause in CAUSES if cause.role in ("victim", "hint", "noise")) >= 10


def test_what_a_remedy_names_is_there() -> None:
    """Flags, verbs and keys of the launcher; those of other programs are listed here."""
    flags = set(re.findall(r"--[a-z-]+", (LAUNCHER / "flags.py").read_text()))
    others = {"--version", "--select", "--shm-size", "--ecc", "--avoid", "--errors", "--security-opt", "--help"}
    keys = set(re.findall(r"(?m)^  ([a-z_]+):", (LAUNCHER.parent / "config" / "launch.example.yaml").read_text()))
    training = {"num_workers", "pin_memory", "sharding_strategy"}
    for cause in CAUSES:
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", cause.remedy)) <= flags | others, cause.id
        assert set(re.findall(r"\b([a-z_]+): (?:true|false|null|\[|\d|full_shard)", cause.remedy)) <= keys | training
        verbs = set(re.findall(r"`aorta-launch ([a-z]+)", cause.remedy))
        assert verbs <= {"check", "exec", "kill", "prune", "stacks", "status", "why"}, cause.id


def test_an_entry_of_a_signal_has_its_name() -> None:
    for cause in CAUSES:
        names = [f"exit.{signal.Signals(number).name.removeprefix('SIG').lower()}" for number in cause.signals]
        assert names in ([], [cause.id])


def test_whatever_a_rule_names_has_an_entry() -> None:
    sources = (path.read_text() for path in DIAGNOSIS.rglob("*.py"))
    named = {found for text in sources for found in re.findall(r'cause_id=(?:f?)"([a-z_]+\.[a-z_0-9]+)"', text)}
    assert len(named) >= 10
    assert named <= {cause.id for cause in CAUSES}


def test_the_page_of_failures_is_the_catalogue() -> None:
    page = build_page()
    if WRITES:
        PAGE.write_text(page)
    assert PAGE.read_text() == page


def test_the_anchor_of_a_cause_is_a_heading_of_the_page() -> None:
    headings = re.findall(r"(?m)^#{2,3} (.+)$", build_page())
    anchors = [_slug(heading) for heading in headings]
    assert len(set(anchors)) == len(anchors)
    for cause in CAUSES:
        assert cause.section in anchors, cause.id
        assert cause.anchor == f"docs/failures.md#{_slug(build_heading(cause.section))}"
        assert cause.family in FAMILIES
    assert "docs/failures.md#cuda-out-of-memory" in {cause.anchor for cause in CAUSES if cause.family == "OOM_GPU"}


def _slug(heading: str) -> str:
    """GitHub's rule: small letters, no marks, dashes for blanks."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
