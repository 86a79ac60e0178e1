from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.diagnosis.cause import Cause, Hit
from orchestrator.diagnosis.causes import CAUSES
from orchestrator.diagnosis.logs.literals import SHORTEST, find_literals
from orchestrator.diagnosis.logs.scan import Matcher, fill, remedy_of, scan_lines, scan_text, title_of

KNOWN = Path(__file__).parent.parent / "data"
PATTERNS = [(cause.id, pattern) for cause in CAUSES for pattern in cause.patterns]
LINES = sorted(
    {
        line[:4000]
        for folder in ("causes", "failures")
        for file in (KNOWN / folder).rglob("*.*")
        for line in file.read_text("utf-8", "replace").splitlines()
    }
)


def scan_line(line: str, *, kernel: bool = False) -> Hit | None:
    return next(scan_lines([line], kernel=kernel), None)


def test_looking_for_words_first_loses_no_hit() -> None:
    text = "\n".join(LINES)
    for cause_id, pattern in PATTERNS:
        words = find_literals(pattern)
        expression = re.compile(pattern)
        assert all(len(word) >= SHORTEST for word in words)
        for line in LINES if words else ():
            if not any(word in line for word in words):
                assert expression.search(line) is None, (cause_id, pattern, line)
    assert text


def test_nearly_every_expression_has_words_to_look_for() -> None:
    assert sum(1 for _, pattern in PATTERNS if not find_literals(pattern)) <= len(PATTERNS) // 20


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("abc|defg", ("abc", "defg")),
        ("abc(?:def|ghij)?k", ("abc",)),
        ("abcd*e", ("abc",)),
        ("(?:No|Na) such file", (" such file",)),
        (r"\d+ ms", (" ms",)),
        (r"a\.b\(c", ("a.b(c",)),
        ("[abc]def", ("def",)),
        ("abc(?!wxyz)", ("abc",)),
        ("x{2,}abc", ("abc",)),
        ("(?i)abcdef", ()),
        ("ab|cdefg", ()),
        ("(?P<what>alpha|beta): .*", ("alpha", "beta")),
    ],
)
def test_words_of_an_expression(pattern: str, words: tuple[str, ...]) -> None:
    assert find_literals(pattern) == words


@given(st.text(alphabet="abcxyz .", max_size=40))
def test_an_expression_matches_no_line_without_its_words(line: str) -> None:
    for pattern in ("abc|xyz", "ab(?:c|xy)z?", "a.*xyz", "(?:abc )?zzz", "[ab]cxy"):
        words = find_literals(pattern)
        if words and re.search(pattern, line):
            assert any(word in line for word in words)


def test_of_several_causes_on_a_line_the_highest_priority_counts() -> None:
    low = Cause(id="a.low", family="CODE", role="cause", priority=5, title="low", patterns=("boom",))
    high = Cause(id="a.high", family="NET", role="victim", priority=30, title="high", patterns=("boom at",))
    matcher = Matcher([low, high])
    hits = list(matcher.match("boom at 3", 7, matcher.narrow("boom at 3")))
    assert {hit.cause.id for hit in hits} == {"a.low", "a.high"}
    assert max(hits, key=lambda hit: hit.cause.priority).line == 7


def test_lines_are_counted_and_prefixes_taken_off() -> None:
    hits = scan_text("step 1\n[rank3]: ModuleNotFoundError: No module named 'flashy'\n")
    assert [(hit.line, hit.cause.id, hit.text) for hit in hits] == [
        (2, "env.module", "ModuleNotFoundError: No module named 'flashy'")
    ]


def test_kernel_lines_are_only_looked_for_when_asked() -> None:
    line = "[12.5] Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB, UID:1"
    assert scan_line(line) is None or scan_line(line, kernel=False) != scan_line(line, kernel=True)
    hit = scan_line(line, kernel=True)
    assert hit is not None
    assert hit.groups["pid"] == "4711"


def test_a_line_that_warns_is_no_cause() -> None:
    survived = scan_line("2026-11-27 10:00:00 WARNING cache: OSError: [Errno 28] No space left on device")
    assert survived is None or survived.cause.role != "cause"
    raised = scan_line("OSError: [Errno 28] No space left on device")
    assert raised is not None
    assert raised.cause.role == "cause"


def test_a_megabyte_without_an_end_of_line_is_no_trouble() -> None:
    assert scan_text("x" * 1_000_000 + "CUDA out of memory") == ()


def test_titles_take_what_was_found_and_leave_out_what_was_not() -> None:
    groups = {"wanted2": "2 GiB"}
    assert fill("out of memory[: {wanted} wanted][, {free} free]", groups) == "out of memory: 2 GiB wanted"
    assert fill("lost: {what}", {}) == "lost"
    cause = Cause(id="a.b", family="CODE", role="cause", priority=50, title="no {what}", remedy="add {what}")
    hit = Hit(cause=cause, text="", groups={"what": "disk"})
    assert (title_of(hit), remedy_of(hit)) == ("no disk", "add disk")


def test_lines_that_only_differ_in_their_digits_are_not_taken_for_each_other() -> None:
    for number in (5, 28, 99, 24, 28):
        (hit,) = [*scan_text(f"OSError: [Errno {number}] it failed"), None][:1]
        assert (hit is not None and hit.cause.family == "DISK") == (number in (5, 28)), number
    assert scan_text("step 11 of 20: 3 errors\n" * 3) == scan_text("step 99 of 20: 4 errors\n" * 3)
