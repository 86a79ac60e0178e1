"""One thread a node: takes the frames of its pump, keeps the logs, and turns the rest into events."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.diagnosis.events import Event
from orchestrator.errors import AortaError
from orchestrator.node import clock
from orchestrator.phases.catchup import CatchUp
from orchestrator.phases.contact import Contact
from orchestrator.phases.logstore import LogStore
from orchestrator.transport import Channel, Frame, Link
from orchestrator.values import NodePlan, Plan

SILENT_S = 18.0
"""A pump says something every 5 s; a link that is quiet for longer is tried anew."""
LEAST_SILENT_S = 11.0
"""Two of its words have to be missing."""
BEAT_S = 5.0
"""So often we say that a controller lives: leases are renewed by it."""
BACK_OFF_S = (0.2, 0.2, 0.5, 1.0, 2.0, 5.0)


class NodeReader(threading.Thread):
    """Follows one node to its last word, over as many links as it takes."""

    def __init__(
        self,
        *,
        plan: Plan,
        node: NodePlan,
        link: Link | None,
        channel: Channel | None,
        store: LogStore,
        events: queue.SimpleQueue[Event],
        reopen: Callable[[NodePlan], Link],
        lost_after_s: float,
        clock_offset_s: float,
        contact: Contact,
    ) -> None:
        """Take the open channel of a node, or none where a run is taken over: then one is opened."""
        super().__init__(name=f"node {node.node_rank}", daemon=True)
        self.node = node
        self.link = link
        self._plan = plan
        self._channel = channel
        self._store = store
        self._events = events
        self._reopen = reopen
        self._lost_after_s = lost_after_s
        self._silent_s = min(SILENT_S, max(lost_after_s / 2, LEAST_SILENT_S))
        self._clock_offset_s = clock_offset_s
        self._contact = contact
        self._known: set[str] = set()
        self._orders: dict[str, Mapping[str, Any]] = {"go": {"op": "go"}} if channel is not None else {}
        """What a new channel is told again: its node may not have heard it."""
        self._answers: dict[str, queue.SimpleQueue[Mapping[str, Any]]] = {}
        self._ids = itertools.count(1)
        self._store_broken = False
        self._catch_up = CatchUp(store, self._send)
        self._give_up = threading.Event()
        self._why = "no answer"
        self._coming_back = self._left = self.suspect = False
        self._tries = self._dials = 0
        self._broken_at: float | None = None
        """Since when the node's pump has not spoken."""

    def order(self, order: Mapping[str, Any]) -> None:
        """Send an order; one that cannot be sent now goes out with the next link."""
        if order["op"] == "stop":
            self._orders["stop"] = order
        self._send(order)

    def ask(self, order: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any] | None:
        """Send an order that is answered, and wait for the answer; None when none comes."""
        answer = self.ask_ahead(order)
        try:
            return answer.get(timeout=timeout_s)
        except queue.Empty:
            self._answers = {name: one for name, one in self._answers.items() if one is not answer}
            return None

    def ask_ahead(self, order: Mapping[str, Any]) -> queue.SimpleQueue[Mapping[str, Any]]:
        """Send an order that is answered; the answer comes in what is given back, if it comes."""
        # A new channel repeats what was answered to controllers before us.
        name = f"{os.getpid()}-{next(self._ids)}"
        answer: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._answers[name] = answer
        self._send({**order, "id": name})
        return answer

    def _send(self, order: Mapping[str, Any]) -> None:
        channel = self._channel
        if channel is not None:
            with contextlib.suppress(AortaError):
                channel.send(order)

    def give_up(self) -> None:
        """Stop trying to get a lost link back."""
        self._give_up.set()

    def leave(self) -> None:
        """Stop following: somebody else goes on with the run."""
        self._left = True
        self._give_up.set()

    def run(self) -> None:
        """Follow the node until it has ended or is lost."""
        try:
            if self._channel is None and not self._come_back():
                return
            while not self._follow():
                if not self._come_back():
                    return
            self._fetch_missed()
        except Exception as error:  # noqa: BLE001 - a bug here must not leave a run that nobody watches
            self._post("lost", {"why": f"the launcher broke: {type(error).__name__}: {error}"})
        finally:
            self._contact.drop(self.node.node_rank)
            with contextlib.suppress(OSError):  # a full disk was told of before
                self._store.close(over=not self._left)
            if self._channel is not None:
                self._channel.close()

    def _follow(self) -> bool:
        """Read one channel to its end; True when the node has said everything."""
        assert self._channel is not None
        heard = time.monotonic()
        beat = 0.0
        while not self._give_up.is_set():
            beat = self._tend(beat)
            try:
                frame = self._channel.read(1.0)
            except TimeoutError:
                if time.monotonic() - heard > self._silent_s:
                    self._broken_at = heard
                    self._doubt({"why": f"silent for {self._silent_s:g} s"})
                    return False
                continue
            except AortaError as error:
                self._doubt({"why": error.what})
                return False
            if frame is None:
                self._doubt({"why": "the channel was closed"})
                return False
            if "error" in frame.header and "t" not in frame.header:  # an agent that did not start has one too
                self._why = str(frame.header["error"])
                self._doubt({"why": self._why})
                return False
            heard, self._broken_at, self._why = time.monotonic(), None, "no answer"
            self._contact.note(self.node.node_rank)
            self.suspect, self._tries, self._dials = False, 0, 0
            if self._coming_back:
                self._coming_back = False
                if frame.header.get("ev") not in ("rebooted", "vanished"):
                    self._post("back", {})
            if self._take(frame):
                return True
        return False

    def _tend(self, beat: float) -> float:
        """Say that we live, when that is due, and have sent again what was missed; give when we last said so."""
        now = time.monotonic()
        if self._catch_up.look(now):
            self._store_works()
        if now - beat <= BEAT_S:
            return beat
        self._send({"op": "beat"})
        return now

    def _take(self, frame: Frame) -> bool:
        what = frame.header.get("t")
        if what == "log":
            self._keep(lambda: self._store.write(frame.header["f"], int(frame.header["o"]), frame.body))
        elif what == "gap":
            self._keep(lambda: self._drop(frame.header))
        elif what == "file":
            self._keep(lambda: self._store.write_error_file(frame.header["f"], frame.body))
        elif what == "event":
            self._event(frame.header)
        waiting = self._answers.pop(str(frame.header.get("id")), None)
        if waiting is not None:
            # A long answer comes as the body of its frame.
            waiting.put({**frame.header, **json.loads(frame.body)} if what == "answer" else frame.header)
        return what == "end"

    def _keep(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self._store_broken:
                self._store_broken = True
                self._post("store_error", {"why": str(error)})

    def _drop(self, header: Mapping[str, Any]) -> None:
        """Tell what the node dropped before it could be fetched, and go on behind it."""
        name, end = header["f"], int(header["to"])
        size = self._store.drop(name, int(header["from"]), end)
        if size:
            self._post("gap", {"file": name, "rank": self._store.rank(name), "from": end - size, "to": end})

    def _store_works(self) -> None:
        if self._store_broken:
            self._store_broken = False
            self._post("store_back", {})

    def _fetch_missed(self) -> None:
        """Ask an ended node once more, where the disk here was full until just now."""
        if self._store.behind and self._store.takes_more():
            self._store_works()
            with contextlib.suppress(AortaError):
                self._open_pump()
                self._follow()

    def _event(self, header: Mapping[str, Any]) -> None:
        # A new channel tells everything from the start: each thing is passed on once.
        asked = header["ev"] in ("rebooted", "supervisor_lost")  # it carries the time of each asking
        key = header["ev"] if asked else json.dumps(header, sort_keys=True)
        if key in self._known:
            return
        self._known.add(key)
        data = {name: value for name, value in header.items() if name not in ("t", "ev", "time")}
        at = float(header.get("time", clock.now())) - self._clock_offset_s
        self._events.put(Event(kind=header["ev"], time=at, node_rank=self.node.node_rank, data=data))

    def _post(self, kind: Any, data: Mapping[str, Any]) -> None:
        self._events.put(Event(kind=kind, time=clock.now(), node_rank=self.node.node_rank, data=data))

    def _doubt(self, data: Mapping[str, Any]) -> None:
        """Say that the node does not answer; once until it does."""
        if not self.suspect:
            self.suspect = True
            self._post("suspect", data)

    def _pause(self) -> None:
        self._give_up.wait(BACK_OFF_S[min(self._tries, len(BACK_OFF_S) - 1)])
        self._tries += 1

    def _come_back(self) -> bool:
        """Try to reach the node again until it counts as lost."""
        first = self._channel is None
        if self._channel is not None:
            self._channel.close()
            if self.link is not None:
                self.link.close()
            self.link = None
        if self._broken_at is None:
            self._broken_at = time.monotonic()
        if not first:
            self._pause()
        # Once it is tried in any case: what we waited for is not what the node was asked.
        while not self._give_up.is_set() and (self._dials == 0 or not self._is_lost()):
            self._dials += 1
            try:
                self._open_pump()
            except AortaError as error:
                self._why, self.link = error.what, None
                self._doubt({"why": error.what})
                self._pause()
            else:
                self._contact.note(self.node.node_rank)
                self._coming_back = not first or self.suspect
                return True
        self._post("lost", {"why": f"{self._why}; not back within {self._lost_after_s:g} s"})
        return False

    def _is_lost(self) -> bool:
        # Not from each break on: a node that lets us in and knows nothing of the run is lost as well.
        assert self._broken_at is not None
        rank, stopping = self.node.node_rank, "stop" in self._orders
        return self._contact.is_lost(rank, self._broken_at, self._lost_after_s, stopping=stopping)

    def _open_pump(self) -> None:
        if self.link is None:
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
        for order in list(self._orders.values()):
            self._channel.send(order)
