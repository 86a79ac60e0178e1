"""py-spy, where a node has it: it reads the stack of a Python that knows nothing of it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import List

from orchestrator.node import processes
from orchestrator.node.probe_command import TIME_IS_UP, NoAnswerError, ask, read_text

NAME = "py-spy"
LIMIT_S = 6.0
NATIVE_S = 9.0
"""It reads the symbols of every library, and torch's are large."""
LEAST_S = 0.2
TRIES = 3
"""Without a pause it may see a stack half built."""
YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def find_pyspy(folder: str, pid: int) -> str:
    """Find py-spy: beside the interpreter of the process, on the paths, or where the launcher put it; empty if nowhere."""
    for place in (*interpreter_folders(pid), *search_path(pid)):
        path = os.path.join(place, NAME)
        if is_program(path):
            return path
    own = os.path.join(folder, "bin", NAME)
    return own if is_program(own) else ""


def interpreter_folders(pid: int) -> List[str]:
    """Give the folder of the interpreter as it was called, which is a virtual environment's own, and of its file."""
    folders = []
    first = read_text("/proc/%d/cmdline" % pid).split("\0", 1)[0]
    if os.path.isabs(first):
        folders.append(os.path.dirname(first))
    with contextlib.suppress(OSError):
        folders.append(os.path.dirname(os.readlink("/proc/%d/exe" % pid)))
    return folders


def search_path(pid: int) -> List[str]:
    """Give the folders that the rank and this program search for commands."""
    told = os.fsdecode(processes.environ_of(pid).get(b"PATH", b""))
    path = f"{told}:{os.environ.get('PATH', '')}".split(":")
    return [*(place for place in path if os.path.isabs(place)), os.path.expanduser("~/.local/bin")]


def is_program(path: str) -> bool:
    """Tell whether a file can be run."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def find_python(pid: int) -> int:
    """Give the Python of a rank: it may be started by a shell script or a wrapper, and stand below it."""
    if is_python(pid):
        return pid
    below = [process.pid for process in processes.descendants(pid) if process.state not in "ZX"]
    return next((one for one in sorted(below) if is_python(one)), pid)


def is_python(pid: int) -> bool:
    """Tell whether a process is a Python interpreter."""
    try:
        return os.path.basename(os.readlink("/proc/%d/exe" % pid)).startswith(("python", "pypy"))
    except OSError:
        return False


def dump(tool: str, pid: int, *, native: bool, until: float) -> str:
    """Take the stack of a process, which is not paused unless native frames are wanted.

    Raises:
        NoAnswerError: it could not be had; the text says why.
    """
    words = ["--native"] if native else ["--nonblocking"]
    for left in reversed(range(1 if native else TRIES)):
        limit_s = min(NATIVE_S if native else LIMIT_S, until - time.monotonic())
        if limit_s < LEAST_S:
            raise NoAnswerError("there was no time left for py-spy")
        try:
            text = ask([tool, "dump", *words, "--full-filenames", "--pid", str(pid)], limit_s)
            return hide_command(text, pid)
        except NoAnswerError as error:
            if not left or is_forbidden(error) or TIME_IS_UP in str(error):
                raise NoAnswerError(explain(error)) from None
    raise AssertionError  # the last try gives or raises


def hide_command(text: str, pid: int) -> str:
    """Replace the words of the process, which may be secret, by those that may be shown; what is below is kept."""
    below = text.rfind("\nPython v")
    if below < 0:
        below = text.find("\nThread ")
    return "Process %d: %s\n%s" % (pid, processes.command_of(pid), text[max(0, below) :])


def is_forbidden(error: NoAnswerError) -> bool:
    """Tell whether the system does not let py-spy look, however often it is tried."""
    said = f"{error} {error.said}".lower()
    return any(word in said for word in ("permission denied", "not permitted", "eperm", "eacces"))


def explain(error: NoAnswerError) -> str:
    """Say in a line why there is no stack."""
    if not is_forbidden(error):
        return str(error)
    scope = read_text(YAMA)
    if scope in ("1", "2", "3"):
        return f"the system keeps py-spy out (ptrace_scope is {scope})"
    return "the system keeps py-spy out (a container without SYS_PTRACE?)"
