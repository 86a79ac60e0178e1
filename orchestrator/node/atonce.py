"""Does several things at the same time, without the cost of the module threading."""

from __future__ import annotations

import _thread

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Callable, List, Sequence


def do_at_once(works: Sequence[Callable[[], None]]) -> None:
    """Do all of them, each in a thread of its own but the last, and wait for their ends; they see to their own errors."""
    ends: List[_thread.LockType] = [start_thread(work) for work in works[:-1]]
    for work in works[-1:]:
        work()
    for end in ends:
        end.acquire()


def start_thread(work: Callable[[], None]) -> _thread.LockType:
    """Start a thread that nobody waits for at our end; its end frees the lock."""
    end = _thread.allocate_lock()
    end.acquire()

    def run() -> None:
        try:
            work()
        finally:
            end.release()

    _thread.start_new_thread(run, ())
    return end
