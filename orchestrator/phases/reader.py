"""One thread a node: takes the frames of its pump, keeps the logs, and turns the rest into events."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.diagnosis.events import Event
from orchestrator.errors import AortaError
from orchestrator.phases.logstore import LogStore
from orchestrator.transport import Channel, Frame, Link
from orchestrator.values import NodePlan, Plan

SILENT_S = 18.0
"""A pump says something every 5 s; a link that is quiet for longer is tried anew."""
BACK_OFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)


class NodeReader(threading.Thread):
    """Follows one node to its last word, over as many links as it takes."""

    def __init__(
        self,
        *,
        plan: Plan,
        node: NodePlan,
        link: Link,
        channel: Channel,
        store: LogStore,
        events: queue.SimpleQueue[Event],
        reopen: Callable[[NodePlan], Link],
        lost_after_s: float,
        clock_offset_s: float,
    ) -> None:
        super().__init__(name=f"node {node.node_rank}", daemon=True)
        self.node = node
        self.link = link
        self._plan = plan
        self._channel = channel
        self._store = store
        self._events = events
        self._reopen = reopen
        self._lost_after_s = lost_after_s
        self._clock_offset_s = clock_offset_s
        self._known: set[str] = set()
        self._stop_order: Mapping[str, Any] | None = None
        self._store_broken = False
        self._give_up = threading.Event()
        self._why = "no answer"
        self._broken_at: float | None = None
        """Since when the node's pump has not spoken."""

    def order(self, order: Mapping[str, Any]) -> None:
        """Send an order; one that cannot be sent now goes out with the next link."""
        if order["op"] == "stop":
            self._stop_order = order
        with contextlib.suppress(AortaError):
            self._channel.send(order)

    def give_up(self) -> None:
        """Stop trying to get a lost link back."""
        self._give_up.set()

    def run(self) -> None:
        """Follow the node until it has ended or is lost."""
        try:
            while not self._follow():
                if not self._come_back():
                    return
        except Exception as error:  # noqa: BLE001 - a bug here must not leave a run that nobody watches
            self._post("lost", {"why": f"the launcher broke: {type(error).__name__}: {error}"})
        finally:
            with contextlib.suppress(OSError):  # a full disk was told of before
                self._store.close()
            self._channel.close()

    def _follow(self) -> bool:
        """Read one channel to its end; True when the node has said everything."""
        heard = time.monotonic()
        while not self._give_up.is_set():
            try:
                frame = self._channel.read(1.0)
            except TimeoutError:
                if time.monotonic() - heard > SILENT_S:
                    self._post("suspect", {"why": f"silent for {SILENT_S:g} s"})
                    return False
                continue
            except AortaError as error:
                self._post("suspect", {"why": error.what})
                return False
            if frame is None:
                self._post("suspect", {"why": "the channel was closed"})
                return False
            if "error" in frame.header:
                self._why = str(frame.header["error"])
                self._post("suspect", {"why": self._why})
                return False
            heard, self._broken_at, self._why = time.monotonic(), None, "no answer"
            if self._take(frame):
                return True
        return False

    def _take(self, frame: Frame) -> bool:
        what = frame.header.get("t")
        if what == "log":
            self._keep(lambda: self._store.write(frame.header["f"], int(frame.header["o"]), frame.body))
        elif what == "file":
            self._keep(lambda: self._store.write_error_file(frame.header["f"], frame.body))
        elif what == "event":
            self._event(frame.header)
        return what == "end"

    def _keep(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self._store_broken:
                self._store_broken = True
                self._post("store_error", {"why": str(error)})

    def _event(self, header: Mapping[str, Any]) -> None:
        # A new channel tells everything from the start: each thing is passed on once.
        key = json.dumps(header, sort_keys=True)
        if key in self._known:
            return
        self._known.add(key)
        data = {name: value for name, value in header.items() if name not in ("t", "ev", "time")}
        at = float(header.get("time", time.time())) - self._clock_offset_s
        self._events.put(Event(kind=header["ev"], time=at, node_rank=self.node.node_rank, data=data))

    def _post(self, kind: Any, data: Mapping[str, Any]) -> None:
        self._events.put(Event(kind=kind, time=time.time(), node_rank=self.node.node_rank, data=data))

    def _come_back(self) -> bool:
        """Try to reach the node again until it counts as lost."""
        self._channel.close()
        self.link.close()
        if self._broken_at is None:
            self._broken_at = time.monotonic()
        # Not from each break on: a node that lets us in and knows nothing of the run is lost as well.
        end = self._broken_at + self._lost_after_s
        tries = 0
        self._give_up.wait(BACK_OFF_S[0])
        while time.monotonic() < end and not self._give_up.is_set():
            try:
                self.link = self._reopen(self.node)
                self._channel = self.link.open(
                    "pump",
                    {
                        "run_folder": self.node.run_folder,
                        "run_id": self._plan.run_id,
                        "attempt": self._plan.attempt,
                        "offsets": self._store.offsets(),
                    },
                )
                if self._stop_order is not None:
                    self._channel.send(self._stop_order)
            except AortaError as error:
                self._why = error.what
                self._give_up.wait(BACK_OFF_S[min(tries, len(BACK_OFF_S) - 1)])
                tries += 1
            else:
                self._post("back", {})
                return True
        self._post("lost", {"why": f"{self._why}; not back within {self._lost_after_s:g} s"})
        return False
