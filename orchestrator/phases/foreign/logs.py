"""Reads log files into what is said by each node; a file that holds several nodes, each line labelled, is taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from orchestrator.diagnosis.logs.nodelog import NodeLog, NodeLogReader
from orchestrator.diagnosis.logs.scheduler import SCHEDULER_LINE, parse_ends
from orchestrator.phases.foreign.lines import read_parts

MOST_LABELS = 1024
MOST_TOLD = 200
KILLED = 9
LOOKED_AT = 200
NEARLY_ALL = 0.95
_LABEL = re.compile(r"^ {0,3}(?P<label>\d{1,4}|\d{1,3}(?:\.\d{1,3}){3}|[A-Za-z][\w.-]*\d[\w.-]*): ?")
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
    tasks = _Tasks(shown)
    for file in files:
        for number, lines in read_parts(file):
            for label, first, own in _take_apart(lines, number):
                tasks.feed(label, first, own)
    logs = tasks.end()
    if len(logs) == 1:
        logs[0].name = name
    return logs


class _Tasks:
    """Takes what each task of a job said, and what their scheduler said of them."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._readers: dict[str, NodeLogReader] = {}
        self._told: list[tuple[int, str]] = []

    def feed(self, label: str, first: int, lines: Sequence[str]) -> None:
        """Take lines with the same label; those without one are the scheduler's own."""
        if not label:
            self._told += [(number, line) for number, line in enumerate(lines, first) if SCHEDULER_LINE.match(line)]
            return
        if label not in self._readers and len(self._readers) < MOST_LABELS:
            number = int(label) if label.isdigit() else None
            reader = NodeLogReader(label if number is None else f"task {label}", self._shown)
            reader.log.task = number
            self._readers[label] = reader
        if label in self._readers:
            self._readers[label].feed(lines, first)

    def end(self) -> list[NodeLog]:
        """Give what was found; how a task ended is told by its scheduler."""
        ends = parse_ends(line for _, line in self._told)
        for number, line in self._told[-MOST_TOLD:]:
            for label in self._find_told(line, ends):
                self._readers[label].feed([f"[agent] {line}"], number)
        logs = [reader.end() for reader in self._readers.values()]
        for label, log in zip(self._readers, logs, strict=True):
            log.exit_code = ends.get(label, log.exit_code)
        return logs

    def _find_told(self, line: str, ends: Mapping[str, int]) -> list[str]:
        """Find the tasks that a scheduler's line is about; what is about all stands with the first."""
        named = list(parse_ends([line]))
        if not named and "oom" in line.lower():
            named = [label for label, end in ends.items() if end == -KILLED]
        return [label for label in named if label in self._readers] or list(self._readers)[:1]


def _is_labelled(file: Path) -> bool:
    said = [line for line in next(read_parts(file), (1, []))[1] if line.strip()][:LOOKED_AT]
    return bool(said) and sum(1 for line in said if _LABEL.match(line)) >= NEARLY_ALL * len(said)


def _take_apart(lines: Sequence[str], first: int) -> Iterator[tuple[str, int, list[str]]]:
    """Give runs of lines with the same label, without it, each with the number of its first line."""
    labelled = [(match["label"] if (match := _LABEL.match(line)) else "", line) for line in lines]
    number = first
    for label, group in groupby(labelled, key=lambda one: one[0]):
        own = [_LABEL.sub("", line) if label else line for _, line in group]
        yield label, number, own
        number += len(own)
