"""Several things found out at the same time: one that hangs, or breaks, keeps back nothing of the others."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, Mapping, Tuple

Facts = Dict[str, Any]
LATE = "no answer in time"


class Parts:
    """What is being found out, each by a thread of its own; for a process that ends itself when it has the answer."""

    def __init__(self, works: Mapping[str, Callable[[], Any]]) -> None:
        self._found: Facts = {}
        self._missing: Dict[str, str] = dict.fromkeys(works, LATE)
        self._threads = [
            threading.Thread(target=self._work, args=(name, work), daemon=True) for name, work in works.items()
        ]
        for thread in self._threads:
            thread.start()

    def take(self, until: float) -> Tuple[Facts, Dict[str, str]]:
        """Wait until that moment at most; give what was found, and for the rest why there is nothing."""
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        # Copied: who comes late must not change what is being written down.
        found = dict(self._found)
        return found, {name: why for name, why in dict(self._missing).items() if name not in found}

    def _work(self, name: str, work: Callable[[], Any]) -> None:
        try:
            self._found[name] = work()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and the others count
            self._missing[name] = f"{type(error).__name__}: {error}"
