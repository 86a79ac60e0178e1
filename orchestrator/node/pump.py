"""The one persistent channel of a node: carries logs, events and files to the launch host, and its orders back.

It reads the log files itself and only talks to the supervisor for events and orders: when the supervisor was killed
the logs still come, and a stop order still ends the run.
"""

from __future__ import annotations

import _socket  # what socket lays over it costs as much as a start of Python
import os
import select
import time

from orchestrator.node import clock, ending, gpu_memory, missing, runfolder
from orchestrator.node.asked import Questions
from orchestrator.node.fastjson import dumps
from orchestrator.node.logfiles import LogFiles
from orchestrator.node.wire import Lines, Wire, frame

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Any

FOR_EVER = float("inf")
POLL_S = 0.1
"""Often enough to look live, seldom enough that a message is worth its cost."""
BEAT_S = 5.0
RECONNECT_S = 0.2
GONE_S = 60.0
"""A launch host that orders nothing and sends no beat for so long has lost this link, whatever sshd believes."""
DRAINED = 2
"""Looks that found nothing new after the last word: then all has been read."""
PENDING = 1 << 18
"""Bytes that may wait for the launch host; beyond it we stop reading, and the logs wait in their files."""


class Pump:
    """The state of one pump."""

    def __init__(self, request: dict[str, Any], wire: Wire) -> None:
        self.folder: str = request["run_folder"]
        self.run_id: str = request["run_id"]
        self.owner = bool(request.get("owner"))
        self.wire = wire
        self.files = LogFiles(self.folder, self.run_id, request["attempt"], request["offsets"])
        self.pending = bytearray()
        self.supervisor: _socket.socket | None = None
        self.lines = Lines()
        self.went = False
        self.final = False
        self.gone = False
        self.stdin_open = True
        self.stop_by = FOR_EVER
        """A supervisor that was told to stop and has not ended by then hangs."""
        self.next_look = self.next_beat = 0.0
        self.heard = time.monotonic()
        self.ends: dict[str, int] | None = None
        self.next_connect = FOR_EVER
        self.said_end = False
        self.busy = False
        self.questions = Questions(self.folder)
        os.set_blocking(wire.out, False)

    # -- to the launch host

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Queue one frame."""
        self.pending += frame(header, body)

    def flush(self) -> None:
        """Write what the channel takes now."""
        while self.pending:
            try:
                written = os.write(self.wire.out, self.pending[: 1 << 16])
            except BlockingIOError:
                return
            del self.pending[:written]

    def look(self) -> None:
        """Send what the files hold that is new."""
        self.files.find()
        self.busy = False
        for header, data in self.files.frames(PENDING - len(self.pending)):
            self.send(header, data)
            self.busy = True
        for name, data in self.files.errors():
            self.send({"t": "file", "f": name}, data)

    def send_answers(self) -> None:
        """Send the answers that are ready; one that waits for a driver keeps nobody waiting."""
        for header, body in self.questions.answers():
            self.send(header, body)

    def has_all(self) -> bool:
        """Tell whether all was sent that stood in the files at the end; a survivor may write without end."""
        if self.ends is None:
            self.ends = self.files.lengths()
        return all(self.files.offsets.get(name, 0) >= end for name, end in self.ends.items())

    # -- to the supervisor

    def connect(self) -> None:
        """Reach the supervisor by its socket; the path is relative because it may be long."""
        os.chdir(self.folder)
        self.next_connect = FOR_EVER
        client = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        client.settimeout(5.0)
        try:
            client.connect(runfolder.SOCKET)
        except OSError:
            client.close()
            self.lost()
            return
        client.setblocking(False)
        self.supervisor = client

    def lost(self) -> None:
        """The supervisor is not there: its last word, if there is one, stands in the status file."""
        if self.supervisor is not None:
            self.supervisor.close()
            self.supervisor = None
        if self.final or self.gone:
            return
        status = runfolder.read_status(self.folder) or {}
        if self.repeat(status):
            return
        if runfolder.supervisor_of(status) is not None:
            # It only let us go: it does not wait for those who read slowly.
            self.next_connect = time.monotonic() + RECONNECT_S
            return
        self.gone = True
        self.send({"t": "event", "ev": "supervisor_lost", "time": clock.now()})

    def repeat(self, status: dict[str, Any]) -> bool:
        """Tell what stands in the status file, whoever takes the run over knows nothing of it; True with the last word."""
        for event in status.get("events", []):
            self.send({"t": "event", **event})
            self.final = self.final or event["ev"] == "final"
        return self.final

    def read_supervisor(self) -> None:
        """Pass the supervisor's events on."""
        assert self.supervisor is not None
        try:
            data = self.supervisor.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for event in self.lines.feed(data):
            self.send({"t": "event", **event})
            self.questions.note(event)
            self.final = self.final or event["ev"] == "final"
        if not data:
            self.lost()

    def obey(self, order: dict[str, Any]) -> None:
        """Pass an order on; without a supervisor, stopping is done here."""
        if self.questions.take(order):
            return
        self.went = self.went or order["op"] == "go"
        if order["op"] == "offsets":
            self.files.go_back(order["offsets"])
            return
        if order["op"] == "lengths":
            self.send({"t": "lengths", "id": order.get("id"), "lengths": self.files.lengths()})
            return
        if self.supervisor is not None:
            try:
                self.supervisor.sendall(dumps(order).encode() + b"\n")
            except OSError:
                self.lost()
            else:
                if order["op"] == "stop":
                    self.stop_by = min(self.stop_by, time.monotonic() + self.patience_s(float(order["grace_s"])))
                return
        if order["op"] == "signal":
            self.send({"t": "event", "ev": "signalled", "id": order.get("id"), "signal": order["signal"], "ranks": []})
        if order["op"] == "stop" and not self.final:
            self.sweep(float(order.get("grace_s", 0)), str(order.get("reason", "")), str(order.get("state", "stopped")))

    def patience_s(self, grace_s: float) -> float:
        """Say how long the supervisor may take to end the run; one that was suspended does nothing at all."""
        supervisor = runfolder.supervisor_of(runfolder.read_status(self.folder) or {})
        return 0.0 if supervisor is not None and supervisor.state in "Tt" else grace_s + ending.OVERDUE_S

    def take_over(self) -> None:
        """End a supervisor that hangs, and the run with it."""
        self.stop_by = FOR_EVER
        supervisor = runfolder.supervisor_of(runfolder.read_status(self.folder) or {})
        if supervisor is not None:
            ending.end_supervisor(supervisor)
        self.sweep(0.0, "its supervisor hung", "stopped")

    def sweep(self, grace_s: float, reason: str, state: str) -> None:
        """End a run whose supervisor was killed."""
        status = runfolder.read_status(self.folder) or {}
        recorded = runfolder.recorded(status)
        result = ending.sweep(self.run_id, status.get("node_rank"), recorded, grace_s, self.show_life)
        self.final = True
        gpus = {} if result["survivors"] else gpu_memory.after_sweep([status])
        state = ending.proved(state, result["survivors"], gpus)
        event = {"ev": "final", "time": clock.now(), "state": state, "reason": reason, **result, **gpus}
        self.send({"t": "event", **event})
        runfolder.note_final(self.folder, event)

    def show_life(self) -> None:
        """Let the launch host hear of us while something else takes time."""
        if time.monotonic() >= self.next_beat:
            self.send({"t": "beat"})
            self.next_beat = time.monotonic() + BEAT_S
            try:
                self.flush()
            except BrokenPipeError:
                pass

    # -- the loop

    def run(self) -> None:
        """Pump until the run on this node is over and all is sent, or until the launch host closes its end."""
        # A supervisor that stands still lets us in and tells nothing.
        self.repeat(runfolder.read_status(self.folder) or {})
        self.connect()
        for order in self.wire.early_orders():
            self.obey(order)
        drained = 0
        while True:
            now = time.monotonic()
            if now >= self.next_look and len(self.pending) < PENDING:
                self.look()
                self.next_look = now + (0.0 if self.files.more else POLL_S)
                drained = drained + 1 if self.final and (not self.busy or self.has_all()) else 0
            if now >= self.stop_by and not self.final:
                self.take_over()
            self.send_answers()
            self.show_life()
            if now >= self.next_connect:
                self.connect()
            over = drained >= DRAINED and not self.questions.waiting
            if over and not self.said_end:
                self.said_end = True
                self.send({"t": "end"})
            try:
                self.flush()
            except BrokenPipeError:
                self.abandoned()
                return
            if over and not self.pending:
                return
            silent = now - self.heard > GONE_S
            if not self.wait() or ((silent or not self.stdin_open) and self.abandoned()):
                return

    def wait(self) -> bool:
        """Wait for whatever comes first; False when the launch host has hung up."""
        poll = select.poll()
        if self.stdin_open:
            poll.register(0, select.POLLIN)
        if self.supervisor is not None:
            poll.register(self.supervisor, select.POLLIN)
        poll.register(self.wire.out, select.POLLOUT if self.pending else 0)
        full = len(self.pending) >= PENDING
        due = BEAT_S if full else max(0.0, min(self.next_look, self.next_beat) - time.monotonic())
        for handle, what in poll.poll(due * 1000):
            if handle == self.wire.out and what & (select.POLLERR | select.POLLHUP):
                self.abandoned()
                return False
            if handle == 0:
                orders = self.wire.ready_orders()
                self.stdin_open = orders is not None
                self.heard = time.monotonic()
                for order in orders or []:
                    self.obey(order)
            elif self.supervisor is not None and handle == self.supervisor.fileno():
                self.read_supervisor()
        return True

    def abandoned(self) -> bool:
        """The launch host is gone: a run that was never told to go is undone, one that runs goes on."""
        if self.owner and not self.went:
            self.obey({"op": "stop", "grace_s": 0, "reason": "the launch host left before the start"})
        return True


def main(request: dict[str, Any], wire: Wire, modules: dict[str, str]) -> None:
    """Pump one run on this node."""
    del modules
    status = runfolder.read_status(request["run_folder"])
    if status is None:
        missing.tell(request["run_folder"], request["run_id"], wire)
        return
    if not runfolder.is_of_this_boot(status):
        wire.send({"t": "event", "ev": "rebooted", "time": clock.now()})
    pump = Pump(request, wire)
    try:
        pump.run()
    finally:
        pump.questions.close()
