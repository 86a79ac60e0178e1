"""Against counting every tick: what is united, cut out and measured is right for any intervals."""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from workload import overlap_intervals, overlap_stream  # noqa: E402 - found by the line above
from workload.overlap_intervals import Gathered, Intervals, cut, intersect, length, subtract, unite  # noqa: E402
from workload.overlap_trace import read_trace  # noqa: E402

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def ticks(spans: list[tuple[int, int]]) -> set[int]:
    return {tick for begin, end in spans for tick in range(begin, end)}


def check_shape(spans: Intervals) -> None:
    edges = [edge for span in spans for edge in span]
    assert edges == sorted(edges)
    assert all(begin < end for begin, end in spans)


@given(SPANS, SPANS, st.tuples(st.integers(0, 60), st.integers(0, 60)))
def test_sets_of_time_are_sets_of_ticks(
    left: list[tuple[int, int]], right: list[tuple[int, int]], window: tuple[int, int]
) -> None:
    one, other = unite(left), unite(right)
    assert len(ticks(one)) == length(one)
    for found, wanted in (
        (one, ticks(left)),
        (intersect(one, other), ticks(left) & ticks(right)),
        (subtract(one, other), ticks(left) - ticks(right)),
        (cut(one, *window), ticks(left) & ticks([window])),
    ):
        check_shape(found)
        assert ticks(found) == wanted


@given(SPANS)
def test_what_is_put_together_on_the_way_is_the_same(spans: list[tuple[int, int]]) -> None:
    with patch.object(overlap_intervals, "HELD_AT_LEAST", 3):
        gathered = Gathered()
        for span in spans:
            gathered.add(span)
    assert gathered.unite() == unite(spans)


KERNELS = st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=15)
MARKS = st.lists(st.integers(0, 60), min_size=2, max_size=5, unique=True).map(sorted)


@settings(deadline=None)
@given(KERNELS, MARKS)
def test_a_trace_is_measured_as_its_ticks_are_counted(kernels: list[tuple[bool, int, int]], marks: list[int]) -> None:
    events: list[dict[str, Any]] = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "ncclDevKernel_x" if talks else "gemm",
            "tid": tid,
            "ts": begin,
            "dur": dur,
        }
        for tid, (talks, begin, dur) in enumerate(kernels)
    ]
    steps = list(itertools.pairwise(marks))
    events += [
        {"ph": "X", "cat": "user_annotation", "name": f"training_step#{n}", "tid": 1, "ts": begin, "dur": end - begin}
        for n, (begin, end) in enumerate(steps)
    ]
    talked = ticks([(begin, begin + dur) for talks, begin, dur in kernels if talks])
    computed = ticks([(begin, begin + dur) for talks, begin, dur in kernels if not talks])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        path.write_text(json.dumps({"traceEvents": events}))
        trace = read_trace(path)
    for number, (begin, end) in enumerate(steps):
        inside = set(range(begin, end))
        found = trace.steps[number]
        counted = [len(inside & part) * 1000 for part in (computed, talked, talked & computed, talked - computed)]
        assert [found.compute, found.communication, found.hidden, found.exposed] == counted


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
EVENTS = st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=4), max_size=6)


@settings(deadline=None)
@example(events=[], rest={"": 0.0}, chunk=1, indent=None)  # 0. looked like a whole number
@example(events=[], rest={"": 5e-300}, chunk=2, indent=None)
@given(EVENTS, st.dictionaries(st.text(max_size=4), VALUES, max_size=4), st.integers(1, 40), st.sampled_from([None, 1]))
def test_a_stream_of_small_pieces_reads_what_json_reads(
    events: list[dict[str, Any]], rest: dict[str, Any], chunk: int, indent: int | None
) -> None:
    halves = list(rest.items())
    document = {**dict(halves[::2]), "traceEvents": events, **dict(halves[1::2])}
    document["traceEvents"] = events
    about: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, patch.object(overlap_stream, "CHUNK", chunk):
        path = Path(folder, "trace.json")
        path.write_text(json.dumps(document, indent=indent))
        assert list(overlap_stream.stream_trace(path, about)) == events
    assert about == {name: value for name, value in document.items() if name != "traceEvents"}
