"""Work that is begun in a thread of its own while something else goes on, to be taken over or called off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Later(Generic[Result]):
    """What comes of a piece of work, once somebody takes it; if nobody does, it is undone."""

    def __init__(self, name: str, work: Callable[[], Result], undo: Callable[[Result], None]) -> None:
        self._work, self._undo = work, undo
        self._made: list[Result] = []
        self._error: BaseException | None = None
        self._cancelled = False
        self._changing = threading.Lock()
        # A daemon: a node that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._do, name=name, daemon=True)
        self._thread.start()

    def _do(self) -> None:
        try:
            made = self._work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is taken
            self._error = error
            return
        with self._changing:
            if not self._cancelled:
                self._made.append(made)
                return
        self._undo(made)

    def take(self) -> Result:
        """Wait for the result, and have it; whoever takes it undoes it.

        Raises:
            BaseException: what the work has raised.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        with self._changing:
            assert self._made, "taken or called off before"
            return self._made.pop()

    def cancel(self, wait_s: float = 0.0) -> None:
        """Undo it unless it was taken; what is still being made after that time undoes itself once it is there."""
        self._cancelled = True
        if wait_s > 0:
            self._thread.join(wait_s)
        with self._changing:
            made, self._made = self._made, []
        for one in made:
            self._undo(one)
