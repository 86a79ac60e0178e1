"""What a process and all of its children use, by /proc."""

from __future__ import annotations

from pathlib import Path

from .timing import read_cpu_s, read_kib


def list_tree(pid: int) -> list[int]:
    """A process and everything below it."""
    found = [pid]
    for each in found:
        for task in Path("/proc", str(each)).glob("task/*/children"):
            try:
                found += [int(word) for word in task.read_text().split()]
            except OSError:
                continue
    return found


def read_tree_cpu_s(pid: int) -> float:
    """Seconds of processor that the living processes of a tree have used."""
    return sum(read_cpu_s(each) for each in list_tree(pid))


def read_tree_mib(pid: int) -> float:
    """Memory of a tree: what processes share counts once."""
    return sum(read_pss_mib(each) for each in list_tree(pid))


def read_tree_peak_mib(pid: int) -> float:
    """The most that the first process has had, and what its children have now."""
    first, *others = list_tree(pid)
    return read_kib(first, "VmHWM") / 1024 + sum(read_pss_mib(each) for each in others)


def read_pss_mib(pid: int) -> float:
    """Memory of a process, with its part of what it shares; 0 when it is gone."""
    try:
        lines = Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def read_exact_cpu_s(pid: int) -> float:
    """Seconds of processor of a process, to the nanosecond instead of the hundredth; threads that have ended are not in it."""
    total = 0
    for path in Path("/proc", str(pid)).glob("task/*/schedstat"):
        try:
            total += int(path.read_text().split()[0])
        except OSError:
            continue
    return total / 1e9
