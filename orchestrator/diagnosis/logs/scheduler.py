"""What a scheduler's own lines tell of the tasks of a job: which ended, and how."""

from __future__ import annotations

import re
from collections.abc import Iterable

SCHEDULER_LINE = re.compile(r"^(?:srun|slurmstepd|slurmd|scancel): ")
MOST_TASKS = 4096

_END = re.compile(r"^srun: error: [^:]+: tasks? (?P<tasks>[\d,-]+): (?P<how>.+)$")
_CODE = re.compile(r"Exited with exit code (?P<code>\d+)")
_SIGNALS = {
    "Terminated": 15,
    "Killed": 9,
    "Out Of Memory": 9,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
    "Interrupt": 2,
}


def parse_ends(lines: Iterable[str]) -> dict[str, int]:
    """Read how tasks ended, by their numbers as texts: an exit code, or a signal as a negative number."""
    ends: dict[str, int] = {}
    for line in lines:
        if found := _END.match(line):
            how = found["how"]
            if code := _CODE.search(how):
                number = int(code["code"])
            elif signal := next((signal for name, signal in _SIGNALS.items() if how.startswith(name)), 0):
                number = -signal
            else:
                continue
            for task in _list_tasks(found["tasks"]):
                ends.setdefault(str(task), number)
    return ends


def _list_tasks(text: str) -> Iterable[int]:
    """List "0-2,5"."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            yield from range(int(first), min(int(last or first), int(first) + MOST_TASKS) + 1)
