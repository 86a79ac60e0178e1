"""The manifest and its hash."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.plan.manifest import Entry, build_manifest, check_size, compare_manifests, render_path, render_paths

A = Entry("a.py", "file", size=3, content="00")
B = Entry("b", "link", content="a.py")


def test_the_order_of_reading_does_not_matter() -> None:
    assert build_manifest([A, B]) == build_manifest([B, A])
    assert build_manifest([A, B]).tree_hash == build_manifest([B, A]).tree_hash


@pytest.mark.parametrize(
    "other",
    [
        replace(A, path="c.py"),
        replace(A, content="01"),
        replace(A, executable=True),
        replace(A, size=4),
        Entry("a.py", "link", content="00"),
    ],
)
def test_every_field_counts(other: Entry) -> None:
    assert build_manifest([A, B]).tree_hash != build_manifest([other, B]).tree_hash


def test_no_two_trees_read_alike_when_their_fields_run_together() -> None:
    one = build_manifest([Entry("a", "link", content="b"), Entry("c", "link", content="d")])
    other = build_manifest([Entry("a", "link", content="b\0c"), Entry("c", "link", content="d")])
    assert one.tree_hash != other.tree_hash
    assert one.tree_hash != build_manifest(one.entries[:1]).tree_hash


@given(st.binary(min_size=1, max_size=20))
def test_any_bytes_travel_in_a_path(raw: bytes) -> None:
    path = raw.decode("utf-8", "surrogateescape")
    rows = json.loads(zlib.decompress(base64.b64decode(build_manifest([replace(A, path=path)]).packed)))
    assert rows[0][0].encode("utf-8", "surrogateescape") == raw
    assert render_path(path).isprintable()


def test_differences_are_listed_by_path() -> None:
    old = build_manifest([A, B])
    new = build_manifest([replace(A, content="01"), Entry("new", "dir")])
    assert compare_manifests(old, new) == ["a.py", "b", "new"]


def test_long_lists_are_cut() -> None:
    assert render_paths(["a", "b", "c"], limit=2) == "a, b and 1 more"
    assert render_paths(["a\nb"]) == "'a\\nb'"


def test_only_what_is_above_the_limits_is_told() -> None:
    big = build_manifest([Entry("data/x/one", "file", size=3 << 20), Entry("data/x/two", "file", size=1 << 20), A])
    assert check_size(big, warn_mib=10, warn_files=10) is None
    told = check_size(big, warn_mib=2, warn_files=10)
    assert told is not None
    assert told.startswith("the project has 3 files, 4.0 MiB; largest: data/x 4.0 MiB, a.py 0.0 MiB")
    assert check_size(big, warn_mib=10, warn_files=2) is not None
