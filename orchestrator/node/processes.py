"""The process table of this machine, read from /proc; every process is known by pid and start ticks, never by pid alone."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself costs a fifth of a start of Python
import os
import select

from orchestrator.node.record import record

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from ctypes import CDLL
    from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SYS_PIDFD_SEND_SIGNAL = 424
SYS_PIDFD_OPEN = 434
"""The same on every machine; a Python that was built against old kernel headers (conda's) lacks both functions."""
PIECE = 1 << 14
SECRET_NAME = r"secret|passw|credential|(api|access|auth|private)[-_]?key|(^|[^a-z0-9])(token|key)$"  # noqa: S105 - a pattern
SECRET_WORDS = ("secret", "passw", "credential", "token", "key")
"""No secret's name is without one of them."""
IN_THE_OPEN = r"(?<=//)[^/@\s]+(?=@)|(?<=bearer )\S+|(?<=basic )\S+"
"""Who logs in, within a URL or a header."""
OPEN_WORDS = ("//", "bearer ", "basic ")

if TYPE_CHECKING:

    class Process(NamedTuple):
        """One process as /proc/PID/stat tells it."""

        pid: int
        ticks: int
        """Start time since boot in clock ticks: tells a re-used pid from the one that was meant."""
        ppid: int
        state: str
        session: int
        exit_status: int
        """The wait status of a zombie; 0 also while it runs."""

else:
    Process = record("Process", "pid", "ticks", "ppid", "state", "session", "exit_status")


def read_all(path: str) -> bytes:
    """Read a file of /proc.

    Raises:
        OSError: it is not there, or not ours to read.
    """
    # Python's own files cost more than the reading.
    handle = os.open(path, os.O_RDONLY)
    try:
        data = os.read(handle, PIECE)
        # The kernel gives a page at a time of some files.
        while part := os.read(handle, PIECE):
            data += part
    finally:
        os.close(handle)
    return data


def read_process(pid: int) -> Process | None:
    """Read one process; None when there is none."""
    try:
        text = read_all("/proc/%d/stat" % pid).decode("utf-8", "replace")
    except OSError:
        return None
    # The command may hold spaces and brackets: the fields begin behind the last bracket.
    fields = text.rsplit(")", 1)[1].split()
    return Process(
        pid=pid,
        ticks=int(fields[19]),
        ppid=int(fields[1]),
        state=fields[0],
        session=int(fields[3]),
        exit_status=int(fields[49]),  # field 52 of proc(5)
    )


def alive(pid: int, ticks: int) -> bool:
    """Tell whether that very process still runs; a zombie does not."""
    process = read_process(pid)
    return process is not None and process.ticks == ticks and process.state not in "ZX"


def boot_id() -> str:
    """Tell this boot from every other one, of every other machine."""
    try:
        return read_all("/proc/sys/kernel/random/boot_id").decode("ascii").strip()
    except OSError:
        return ""


def command_of(pid: int) -> str:
    """Give the words of a process, at most 200 characters; what may be a secret is hidden: they are shown and saved."""
    try:
        words = read_all("/proc/%d/cmdline" % pid)[:4096].decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return ""
    return hide_secrets(words)[:200]


def hide_secrets(words: list[str]) -> str:
    """Join the words of a command; values of options that are named like secrets, and passwords in URLs, are hidden."""
    # Most commands have none, and the module for patterns costs as much as reading a hundred of them.
    whole = "\0".join(words).lower()
    if not any(mark in whole for mark in (*SECRET_WORDS, *OPEN_WORDS)) and whole.isascii():
        return " ".join(words).strip()
    import re  # noqa: PLC0415 - as said

    secret_name, in_the_open = re.compile(SECRET_NAME, re.IGNORECASE), re.compile(IN_THE_OPEN, re.IGNORECASE)
    shown: list[str] = []
    secret = False
    for word in words:
        name, equals, value = word.partition("=")
        named = secret_name.search(name) is not None
        if secret and not word.startswith("-"):
            shown.append("***")
        elif named and equals and value:
            shown.append(name + "=***")
        else:
            shown.append(in_the_open.sub("***", word))
        secret = named and not equals and word.startswith("-")
    return " ".join(shown).strip()


def environ_of(pid: int) -> dict[bytes, bytes]:
    """Read the environment that a process was started with; empty when it may not be read."""
    try:
        pairs = read_all("/proc/%d/environ" % pid).split(b"\0")
    except OSError:
        return {}
    return dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair)


def all_pids() -> list[int]:
    """List every pid of this machine (of this pid namespace)."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children(pid: int) -> list[int]:
    """List the children of a process, over all its threads."""
    found: list[int] = []
    try:
        threads = os.listdir("/proc/%d/task" % pid)
    except OSError:
        return found
    for thread in threads:
        try:
            found += [int(word) for word in read_all("/proc/%d/task/%s/children" % (pid, thread)).split()]
        except FileNotFoundError:
            if os.path.exists("/proc/%d" % pid) and not os.path.exists("/proc/self/task/%d/children" % os.getpid()):
                return _children_by_parent(pid)  # a kernel built without CONFIG_PROC_CHILDREN
        except OSError:
            continue
    return found


def _children_by_parent(pid: int) -> list[int]:
    table = [read_process(other) for other in all_pids()]
    return [process.pid for process in table if process is not None and process.ppid == pid]


def descendants(pid: int) -> list[Process]:
    """List everything below a process, zombies too."""
    found: list[Process] = []
    queue = children(pid)
    known = set(queue)
    while queue:
        process = read_process(queue.pop())
        if process is None:
            continue
        found.append(process)
        fresh = [child for child in children(process.pid) if child not in known]
        known.update(fresh)
        queue += fresh
    return found


def line_of(pid: int) -> list[int]:
    """Give a process and those above it, the nearest first."""
    line: list[int] = []
    while pid > 1 and pid not in line:
        line.append(pid)
        process = read_process(pid)
        pid = 0 if process is None else process.ppid
    return line


def is_own(pid: int) -> bool:
    """Tell whether a process is this user's: root can read everyone's environment."""
    try:
        return os.stat("/proc/%d" % pid).st_uid == os.getuid()
    except OSError:
        return False


def marked(run_id: str, node_rank: int | None = None) -> list[Process]:
    """List the living processes whose environment carries this run's id (and node rank: two nodes may be one machine)."""
    wanted = {b"AORTA_RUN_ID": run_id.encode()}
    if node_rank is not None:
        wanted[b"AORTA_NODE_RANK"] = b"%d" % node_rank
    own = os.getpid()
    found = []
    for pid in all_pids():
        environ = environ_of(pid) if pid != own else {}
        if environ and all(environ.get(name) == value for name, value in wanted.items()):
            process = read_process(pid)
            if process is not None and process.state not in "ZX":
                found.append(process)
    return found


def open_handle(pid: int) -> int:
    """Open a pidfd: readable once the process has ended, and never another process.

    Raises:
        OSError: there is no such process, or the kernel is older than 5.3.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _system_call(SYS_PIDFD_OPEN, pid, 0)


def signal_handle(handle: int, number: int) -> None:
    """Signal the process behind a pidfd."""
    if hasattr(_signal, "pidfd_send_signal"):
        _signal.pidfd_send_signal(handle, number)
    else:
        _system_call(SYS_PIDFD_SEND_SIGNAL, handle, number, None, 0)


def wait_end(handle: int, limit_s: float) -> bool:
    """Wait until the process behind a pidfd has ended with all its threads; False when the time is over before."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(limit_s * 1000))


def open_libc() -> CDLL:
    """Open the C library: the module for it is dear, and few need it; once it is open, a fork can use it."""
    import ctypes  # noqa: PLC0415 - as said

    return ctypes.CDLL(None, use_errno=True)


def _system_call(number: int, *words: int | None) -> int:
    import ctypes  # noqa: PLC0415 - for old Pythons alone

    result = int(open_libc().syscall(number, *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def send_signal(process: Process, number: int) -> bool:
    """Signal that very process and no other that took its pid; tell whether it was there."""
    try:
        handle = open_handle(process.pid)
    except OSError:
        return _send_without_handle(process, number)
    try:
        # The handle pins the process: if its start time is right now, it cannot become another one.
        now = read_process(process.pid)
        if now is None or now.ticks != process.ticks:
            return False
        signal_handle(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _send_without_handle(process: Process, number: int) -> bool:
    now = read_process(process.pid)
    if now is None or now.ticks != process.ticks:
        return False
    try:
        os.kill(process.pid, number)
    except OSError:
        return False
    return True


def become_subreaper() -> bool:
    """Make every orphan below this process its child, whatever sessions and forks it went through."""
    return bool(open_libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def die_with_parent(number: int = _signal.SIGTERM) -> None:
    """Ask the kernel to signal this process when its parent's main thread dies; runs between fork and exec."""
    open_libc().prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
