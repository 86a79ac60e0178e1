"""Running other programs, and what is known of a process: small and without state."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


class ClusterError(RuntimeError):
    """The pretend machines could not be made or changed as asked."""


class NeedsNamespaces(ClusterError):  # noqa: N818 - read as a sentence in a skip reason
    """The fault needs nodes with namespaces of their own."""


def run(words: Sequence[str], *, stdin: str | None = None) -> str:
    """Run a program to its end and give what it wrote; an exit code that is not 0 is an error with its text."""
    done = subprocess.run(words, input=stdin, text=True, capture_output=True)
    if done.returncode:
        raise ClusterError(
            f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"
        )
    return done.stdout


def try_run(words: Sequence[str]) -> bool:
    """Run a program whose failure is an answer, not an error."""
    return subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0


def find_program(name: str) -> str:
    """Find a program also where a plain user's PATH does not look."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")
    if not found:
        raise ClusterError(f"{name} is not installed: apt-get install openssh-server rsync iproute2 iptables")
    return found


def wait_for(condition: Callable[[], bool], deadline_s: float, what: str | Callable[[], str]) -> None:
    """Wait until a condition holds; when it does not in time, fail with words for what was waited for."""
    end = time.monotonic() + deadline_s
    pause_s = 0.005
    while not condition():
        if time.monotonic() > end:
            words = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {deadline_s:g} s: {words}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.05)


def start_ticks(pid: int, proc: str = "/proc") -> int | None:
    """Tell when a process started, which with its pid is its identity; None when it is gone or a zombie."""
    try:
        fields = Path(proc, str(pid), "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def read_children(pid: int) -> list[int]:
    """The children of a process."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def kill_exactly(pid: int, ticks: int | None, number: int = signal.SIGKILL) -> None:
    """Signal a process only while the pid still is the one that was started."""
    if ticks is not None and start_ticks(pid) == ticks:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return


def find_pids_with_environ(text: str) -> list[int]:
    """The processes on this machine, those in its namespaces included, whose environment holds a text."""
    wanted, found = text.encode(), []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = Path(entry.path, "environ").read_bytes()
        except OSError:
            continue
        if wanted in environ:
            found.append(int(entry.name))
    return found
