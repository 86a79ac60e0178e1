"""The controller of a run: whoever watches it owns its lock, and answers other shells on its socket meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import queue
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.diagnosis.events import Event
from orchestrator.errors import NotReadyError
from orchestrator.node import clock
from orchestrator.phases.control import lock_path, short_path, socket_path, take_lock
from orchestrator.phases.stacks import gather_stacks
from orchestrator.transport.fanout import fan_out

if TYPE_CHECKING:
    from orchestrator.diagnosis.decider import Decider
    from orchestrator.phases.reader import NodeReader
    from orchestrator.phases.record import Record
    from orchestrator.phases.signals import Signals

REPORT_S = 8.0
"""A node gathers its report within 5 s, or says that something there hangs."""
SIGNAL_S = 10.0
LENGTHS_S = 2.0
ASK_WIDTH = 64
REQUEST_LIMIT = 1 << 16
EXTRA_S = 60.0
"""Beyond the grace of a stop: see phases/stop.py."""


class Controller:
    """Holds the run for this process, and serves requests in threads of its own."""

    def __init__(self, record: Record, signals: Signals) -> None:
        self._record = record
        self._signals = signals
        self._run_id: str = record.document["run_id"]
        self._lock: int | None = None
        self._listener: socket.socket | None = None
        self._watchers: set[socket.socket] = set()
        self._ended = threading.Event()
        self._events: queue.SimpleQueue[Event] | None = None
        self._readers: Sequence[NodeReader] = ()
        self._decider: Decider | None = None

    def open(self) -> bool:
        """Take the lock and listen; False when another process controls the run."""
        self._lock = take_lock(self._run_id)
        if self._lock is None:
            return False
        who = json.dumps({"pid": os.getpid(), "host": platform.node()}).encode() + b"\n"
        with contextlib.suppress(OSError):
            # In this order its first line is always whole for whoever reads it.
            os.pwrite(self._lock, who, 0)
            os.ftruncate(self._lock, len(who))
        try:
            self._listen()
        except OSError:
            return True  # HOME on a file system without sockets: the run is reached by its nodes then
        threading.Thread(target=self._serve, name="control", daemon=True).start()
        return True

    def follow(self, events: queue.SimpleQueue[Event], readers: Sequence[NodeReader], decider: Decider) -> None:
        """Take in what the attempt that runs now is made of."""
        self._events, self._readers, self._decider = events, readers, decider

    def unfollow(self) -> None:
        """An attempt is over and another one follows: until then a stop has to unwind what we are at."""
        self._events, self._readers, self._decider = None, (), None

    def note_end(self) -> None:
        """Let those hear who wait for the end: nothing of the run is left that could be stopped."""
        self._ended.set()

    def close(self) -> None:
        """Let the run go."""
        self._ended.set()
        with contextlib.suppress(OSError):
            socket_path(self._run_id).unlink()
        for one in (self._listener, *tuple(self._watchers)):
            if one is not None:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
        if self._lock is not None:
            # The file stays: two who lock a name that was removed in between would both have it.
            os.close(self._lock)
            self._lock = None

    def _listen(self) -> None:
        path = socket_path(self._run_id)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_path(path) as name:
            listener.bind(name)
        path.chmod(0o600)
        listener.listen(16)
        self._listener = listener

    def _serve(self) -> None:
        assert self._listener is not None
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), name="control client", daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            client.settimeout(10.0)
            with client.makefile("rb") as lines:
                request = json.loads(lines.readline(REQUEST_LIMIT))
            client.settimeout(None)
            client.sendall(b'{"heard": true}\n')
            if request["op"] == "watch":
                self._keep(client)
            else:
                client.sendall(json.dumps(self._do(request), default=str).encode() + b"\n")
        client.close()

    def _keep(self, client: socket.socket) -> None:
        """Hold a connection whose end tells the other side of ours, until that side has left."""
        self._watchers.add(client)
        try:
            while client.recv(1 << 12):
                pass
        finally:
            self._watchers.discard(client)

    def _do(self, request: Mapping[str, Any]) -> dict[str, Any]:
        what = request["op"]
        if what == "report":
            return {**self._hello(), "nodes": self._report()}
        if what == "stop":
            return self._stop(float(request["grace_s"]), "interrupt" if request.get("how") == "interrupt" else "kill")
        if what == "signal":
            return {"nodes": self._signal(int(request["signal"]))}
        if what == "stacks":
            return {**self._hello(), **gather_stacks(self._readers, native=bool(request.get("native")))}
        if what == "lengths":
            return {"nodes": self._lengths()}
        return self._hello()

    def _hello(self) -> dict[str, Any]:
        return {
            "run_id": self._run_id,
            "pid": os.getpid(),
            "mode": "background" if self._signals.background else "foreground",
            "state": self._record.document["state"],
        }

    def _report(self) -> list[dict[str, Any]]:
        decider = self._decider
        if decider is None:
            return []

        def ask(reader: NodeReader) -> dict[str, Any]:
            rank = reader.node.node_rank
            place = {"node_rank": rank, "node": reader.node.node.name}
            history = decider.history
            if rank in history.lost:
                return {**place, "contact": "lost", "error": history.lost[rank]}
            if rank in history.suspect:
                return {**place, "contact": "suspect", "error": "the link is silent"}
            # A reader that has heard the last word asks nobody any more.
            frame = reader.ask({"op": "report"}, REPORT_S) if reader.is_alive() else None
            if frame is not None:
                return {**place, "contact": "ok", **frame["report"]}
            if rank in history.finals:
                return {**place, "contact": "ok", **history.finals[rank]}
            return {**place, "contact": "ok", "error": f"no report within {REPORT_S:g} s"}

        return fan_out(ask, self._readers, ASK_WIDTH)

    def _signal(self, number: int) -> list[dict[str, Any]]:
        def ask(reader: NodeReader) -> dict[str, Any]:
            place = {"node_rank": reader.node.node_rank, "node": reader.node.node.name}
            frame = reader.ask({"op": "signal", "signal": number}, SIGNAL_S) if reader.is_alive() else None
            return {**place, "ranks": frame["ranks"]} if frame is not None else {**place, "error": "no answer"}

        return fan_out(ask, self._readers, ASK_WIDTH)

    def _lengths(self) -> list[dict[str, Any]]:
        def ask(reader: NodeReader) -> dict[str, Any]:
            place = {"node_rank": reader.node.node_rank, "node": reader.node.node.name}
            if not reader.is_alive():
                return {**place, "lengths": {}}  # it has said everything, or is lost
            frame = reader.ask({"op": "lengths"}, LENGTHS_S)
            return {**place, "lengths": frame["lengths"]} if frame is not None else {**place, "error": "no answer"}

        return fan_out(ask, self._readers, ASK_WIDTH)

    def _stop(self, grace_s: float, kind: Literal["interrupt", "kill"]) -> dict[str, Any]:
        if self._events is None:
            # Nothing runs yet: the main thread unwinds what it is at, as for a signal from a terminal.
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self._events.put(Event(kind=kind, time=clock.now(), data={"grace_s": grace_s}))
        over = self._ended.wait(grace_s + EXTRA_S)
        return {"over": over, "nodes": self._finals()}

    def _finals(self) -> list[dict[str, Any]]:
        decider = self._decider
        if decider is None:
            return []
        history = decider.history
        return [
            {
                "node_rank": node.node_rank,
                "node": node.node.name,
                "final": history.finals.get(node.node_rank),
                "error": history.lost.get(node.node_rank, ""),
            }
            for node in history.plan.nodes
        ]


@contextlib.contextmanager
def controlling(record: Record, signals: Signals) -> Iterator[Controller]:
    """Be the controller of a new run for the time of a block; enter it before anybody can know of the run.

    Raises:
        NotReadyError: another process holds a run of this name.
    """
    controller = Controller(record, signals)
    # Where HOME cannot be written, the record says so in its own words.
    with contextlib.suppress(OSError):
        if not controller.open():
            raise NotReadyError(what=f"another process holds a run of the name {record.document['run_id']}")
    try:
        yield controller
    finally:
        controller.close()
        if not record.entry.exists():  # nobody can have known of it
            with contextlib.suppress(OSError):
                lock_path(record.document["run_id"]).unlink()
