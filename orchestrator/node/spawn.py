"""Starts commands and talks with them, as the module subprocess does, which costs twice as much as a start of Python."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself costs a fifth of a start of Python
import os
import select
import sys
import time

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

OF_310, OF_311 = (3, 10), (3, 11)
PIECE = 1 << 16
TAIL_S = 0.2


class Child:
    """A command that runs in a session of its own, so that it can be killed with all that it started."""

    def __init__(
        self, argv: Sequence[str], env: Optional[Mapping[str, str]] = None, cwd: str = "/", *, fed: bool = False
    ) -> None:
        """Start it; fed is one that gets something over its stdin.

        Raises:
            OSError: it cannot be started.
        """
        ours: List[int] = []
        theirs: List[int] = []
        try:
            for place in range(3):
                if place == 0 and not fed:
                    theirs.append(os.open("/dev/null", os.O_RDONLY))
                    continue
                ends = os.pipe()
                ours.append(ends[place == 0])
                theirs.append(ends[place != 0])
            self.pid = start_process(argv, env, cwd, (theirs[0], theirs[1], theirs[2]))
        except BaseException:
            _close_all(ours)
            raise
        finally:
            _close_all(theirs)
        self._into = ours.pop(0) if fed else -1
        self._out, self._err = ours
        self._open: Set[int] = {*ours, *([self._into] if fed else [])}

    def converse(self, text: bytes, until: float, room: int) -> Tuple[bytes, bytes, int]:
        """Give it the text, and take what it writes to both outputs and its exit code.

        Raises:
            TimeoutError: it has not ended by then.
            OverflowError: it writes more than there is room for.
        """
        poll = select.poll()
        written: Dict[int, List[bytes]] = {self._out: [], self._err: []}
        for handle in self._open:
            poll.register(handle, select.POLLIN if handle in written else select.POLLOUT)
        if self._into >= 0:
            os.set_blocking(self._into, False)
        while self._open:
            ready = poll.poll(max(0.0, until - time.monotonic()) * 1000)
            if time.monotonic() >= until:
                raise TimeoutError
            for handle, _ in ready:
                if handle in written:
                    chunk = os.read(handle, PIECE)
                    written[handle].append(chunk)
                    room -= len(chunk)
                else:
                    chunk = text = _feed(handle, text)
                if room < 0:
                    raise OverflowError
                if not chunk:
                    poll.unregister(handle)
                    self._open.discard(handle)
                    os.close(handle)
        code = wait_for(self.pid, until)
        if code is None:
            raise TimeoutError
        return b"".join(written[self._out]), b"".join(written[self._err]), code

    def end(self) -> None:
        """Kill it with its session; one that hangs in the kernel (a driver, a mount) cannot be waited for by anybody."""
        try:
            os.killpg(self.pid, _signal.SIGKILL)
        except OSError:
            pass
        _close_all(self._open)
        self._open = set()
        wait_for(self.pid, time.monotonic() + TAIL_S)


def _close_all(handles: Any) -> None:
    for handle in handles:
        os.close(handle)


def _feed(handle: int, text: bytes) -> bytes:
    """Write what fits, and give what is left; nothing is left for one that reads no more."""
    try:
        return text[os.write(handle, text[:PIECE]) :]
    except BlockingIOError:
        return text
    except OSError:
        return b""


def wait_for(pid: int, until: float) -> Optional[int]:
    """Wait for the end of a child and give its exit code, below zero the signal that ended it; None when time is up."""
    pause_s = 0.0005
    while True:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return 0  # who started us lets nobody wait
        if ended:
            return os.waitstatus_to_exitcode(status)
        left_s = until - time.monotonic()
        if left_s <= 0:
            return None
        pause_s = min(pause_s * 2, left_s, 0.05)
        time.sleep(pause_s)


def start_process(
    argv: Sequence[str],
    env: Optional[Mapping[str, str]],
    cwd: str,
    handles: Tuple[int, int, int],
    before: Optional[Callable[[], None]] = None,
) -> int:
    """Start a process in a session of its own with these three handles, and give its number.

    What is done `before` the new process becomes the program wants a caller without other threads.

    Raises:
        OSError: there is no such folder, or no such program, or it is none, or what was to be done before failed.
        ValueError: a word or a variable has a null byte.
    """
    fork_exec = _find_fork_exec()
    if fork_exec is None:
        return _start_slowly(argv, env, cwd, handles, before)
    told_read, told_write = os.pipe()
    try:
        try:
            pid = fork_exec(_words(argv, env, cwd, handles, (told_read, told_write), before))
        except TypeError:  # a Python to come
            return _start_slowly(argv, env, cwd, handles, before)
        finally:
            os.close(told_write)
        told = b"".join(iter(lambda: os.read(told_read, PIECE), b""))
    finally:
        os.close(told_read)
    if told:
        os.waitpid(pid, 0)
        # The kind of error, its number in hex, and what was being done.
        _, errno, step = told.split(b":", 2)
        number = int(errno, 16)
        why = os.strerror(number) if number else "what had to be done before it failed"
        # As subprocess reads it: before exec was called, it was about the folder.
        raise OSError(number, why, cwd if step.startswith(b"noexec") else argv[0])
    return pid


def _find_fork_exec() -> Optional[Callable[[Tuple[Any, ...]], int]]:
    """Find what subprocess itself is built upon: fork and exec with no Python in between, by vfork where it can be."""
    try:
        from _posixsubprocess import fork_exec  # noqa: PLC0415 - another Python than CPython may have none
    except ImportError:
        return None
    return lambda words: int(fork_exec(*words))


def _words(
    argv: Sequence[str],
    env: Optional[Mapping[str, str]],
    cwd: str,
    handles: Tuple[int, int, int],
    told: Tuple[int, int],
    before: Optional[Callable[[], None]],
) -> Tuple[Any, ...]:
    path = (os.environ if env is None else env).get("PATH", os.defpath)
    places = [argv[0]] if "/" in argv[0] else [os.path.join(folder, argv[0]) for folder in path.split(os.pathsep)]
    listed = None if env is None else [os.fsencode(f"{name}={value}") for name, value in env.items()]
    into, out, err = handles
    new = sys.version_info >= OF_311
    return (
        *([os.fsencode(word) for word in argv], [os.fsencode(place) for place in places]),
        *(True, (told[1],), os.fsencode(cwd), listed),  # close all other handles
        *(into, -1, -1, out, -1, err, *told),
        *(True, True),  # signals as they were, a session of its own
        *((-1,) if new else ()),  # no process group
        *(None, None, None, -1),  # group, groups, user, umask
        # Nothing to do between fork and exec; but without anything Python 3.10 loads subprocess, to ask about vfork.
        before or (int if sys.version_info[:2] == OF_310 else None),
        *((True,) if new else ()),  # vfork
    )


def _start_slowly(
    argv: Sequence[str],
    env: Optional[Mapping[str, str]],
    cwd: str,
    handles: Tuple[int, int, int],
    before: Optional[Callable[[], None]],
) -> int:
    import subprocess  # noqa: PLC0415 - seldom needed, and dear

    into, out, err = handles
    process = subprocess.Popen(
        list(argv),
        stdin=into,
        stdout=out,
        stderr=err,
        cwd=cwd,
        env=env,
        start_new_session=True,
        preexec_fn=before,  # noqa: PLW1509 - as start_process says
    )
    # It is waited for by its number: its object has nothing more to do.
    process.returncode = 0
    return process.pid
