"""One piece of work for many nodes at once, with a bound, and every error told together."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from orchestrator.errors import AortaError, Several

Item = TypeVar("Item")
Result = TypeVar("Result")


def nobody(place: int) -> None:
    """Take no notice that the work for one item has ended."""
    del place


def fan_out(
    work: Callable[[Item], Result], items: Sequence[Item], width: int, done: Callable[[int], None] = nobody
) -> list[Result]:
    """Do the work for every item, at most width at once; wait for all, then give the results in order.

    Done hears the place of each item whose work has ended, in the caller's thread.

    Raises:
        AortaError: the one that happened, or Several of them.
    """
    results, errors = try_all(work, items, width, done)
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        raise Several([error for _, error in sorted(errors.items())])
    return [results[place] for place in range(len(items))]


def try_each(
    work: Callable[[Item], Result], names: Sequence[Item], width: int, done: Callable[[Item], None] = lambda _: None
) -> tuple[dict[Item, Result], dict[Item, AortaError]]:
    """Do the work for every item that can name it (a node's place, its rank), and give results and errors by item."""
    results, errors = try_all(work, names, width, lambda place: done(names[place]))
    return (
        {names[place]: result for place, result in results.items()},
        {names[place]: error for place, error in errors.items()},
    )


def try_all(
    work: Callable[[Item], Result], items: Sequence[Item], width: int, done: Callable[[int], None] = nobody
) -> tuple[dict[int, Result], dict[int, AortaError]]:
    """Do the same, and give results and errors by place instead of raising.

    The threads are daemons and the caller waits on a queue: Ctrl-C gets through at once, and a node that hangs
    cannot keep the process from ending.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    ended: queue.SimpleQueue[tuple[int, Result | None, BaseException | None]] = queue.SimpleQueue()
    for place in range(len(items)):
        waiting.put(place)

    def labour() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                place = waiting.get_nowait()
                try:
                    ended.put((place, work(items[place]), None))
                except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
                    ended.put((place, None, error))

    for number in range(max(1, min(width, len(items)))):
        threading.Thread(target=labour, name=f"fan-out {number}", daemon=True).start()
    results: dict[int, Result] = {}
    errors: dict[int, AortaError] = {}
    bugs: list[BaseException] = []
    for _ in items:
        place, result, error = ended.get()
        done(place)
        if error is None:
            results[place] = result  # type: ignore[assignment] # None only where Result may be None
        elif isinstance(error, AortaError):
            errors[place] = error
        else:
            bugs.append(error)
    if bugs:
        raise bugs[0]
    return results, errors
