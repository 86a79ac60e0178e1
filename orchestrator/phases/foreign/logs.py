"""Reads log files into what is said by each node; a file that holds several nodes, each line labelled, is taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from orchestrator.diagnosis.logs.nodelog import NodeLog, NodeLogReader
from orchestrator.phases.foreign.lines import read_parts

MOST_LABELS = 1024
LOOKED_AT = 200
NEARLY_ALL = 0.95
_LABEL = re.compile(r"^ {0,3}(?P<label>\d{1,4}|[A-Za-z][\w.-]*\d[\w.-]*): ?")
"""As parallel shells put a task's number or a host in front of every line."""


def read_logs(name: str, files: Sequence[Path], root: Path) -> list[NodeLog]:
    """Read the files of one node, or of several whose lines are labelled.

    Raises:
        OSError: one cannot be read.
    """
    shown = str(files[-1].relative_to(root))
    if not all(_is_labelled(file) for file in files):
        reader = NodeLogReader(name, shown)
        for file in files:
            for number, lines in read_parts(file):
                reader.feed(lines, number)
        return [reader.end()]
    readers: dict[str, NodeLogReader] = {}
    for file in files:
        for number, lines in read_parts(file):
            for label, first, own in _take_apart(lines, number):
                if label not in readers and len(readers) < MOST_LABELS:
                    readers[label] = NodeLogReader(f"task {label}" if label.isdigit() else label, shown)
                if label in readers:
                    readers[label].feed(own, first)
    if len(readers) == 1:
        next(iter(readers.values())).log.name = name
    return [reader.end() for reader in readers.values()]


def _is_labelled(file: Path) -> bool:
    said = [line for line in next(read_parts(file), (1, []))[1] if line.strip()][:LOOKED_AT]
    return bool(said) and sum(1 for line in said if _LABEL.match(line)) >= NEARLY_ALL * len(said)


def _take_apart(lines: Sequence[str], first: int) -> Iterator[tuple[str, int, list[str]]]:
    """Give runs of lines with the same label, without it, each with the number of its first line."""
    labelled = [(match["label"] if (match := _LABEL.match(line)) else "", line) for line in lines]
    number = first
    for label, group in groupby(labelled, key=lambda one: one[0]):
        own = [_LABEL.sub("", line) for _, line in group]
        if label:
            yield label, number, own
        number += len(own)
