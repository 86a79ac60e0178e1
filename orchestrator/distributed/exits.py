"""An exit that cannot hang: with a peer gone, NCCL's destructor and some threads wait for ever."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import signal
import sys
import threading
from collections.abc import Iterator

LIMIT_S = 20.0
"""What the end of a process may take after the last line of its script."""
_watched = False
_in_group = False


def watch_exit() -> None:
    """See to it that this process, if it ends in a group, is gone within a limit."""
    global _watched, _in_group  # noqa: PLW0603 - once a process
    _in_group = True
    if not _watched:
        _watched = True
        # The last to register is the first to run: before the destructors that may hang.
        atexit.register(_arm)


def rest() -> None:
    """Give the end of this process all the time that it wants: the group was left well, there is no peer to hang on.

    What the script's libraries write then (an upload, a flush to a slow disk) is not ours to cut off.
    """
    global _in_group  # noqa: PLW0603 - as above
    _in_group = False


def hurry() -> None:
    """See to it, after a failure, that threads of the script that wait for a peer do not hold the end up either."""
    with contextlib.suppress(Exception):
        # Python waits for threads before atexit's functions run; the last to register here is the first to run.
        threading._register_atexit(_arm)  # type: ignore[attr-defined] # noqa: SLF001 - there is no public way, and without it _arm still comes later


def _arm() -> None:
    if not _in_group:
        return
    with contextlib.suppress(Exception):
        # A watchdog in C, which needs no lock of Python's: it writes the stacks and ends the process with 1.
        faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=sys.__stderr__ or sys.stderr)
    with contextlib.suppress(Exception):
        # Python stops that watchdog before the destructors of libraries run: those are the kernel's.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 1.5 * LIMIT_S)


@contextlib.contextmanager
def bounded(what: str, limit_s: float = LIMIT_S) -> Iterator[None]:
    """End the process with 1 and its stacks when a block takes longer than a limit."""
    done = threading.Event()

    def tell() -> None:
        if not done.wait(limit_s - 0.5):
            sys.stderr.write(f"{what} takes longer than {limit_s:g} s: this process ends by force\n")
            sys.stderr.flush()

    threading.Thread(target=tell, daemon=True).start()
    with contextlib.suppress(Exception):
        faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        done.set()
        faulthandler.cancel_dump_traceback_later()
