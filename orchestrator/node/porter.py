"""Stays on a node while the launch host is connected, and starts our programs.

Each one after it costs no login shell, no channel and no start of Python.

Orders come as JSON lines, each with the number of its program under "c": open (program, nonce, request, and under "bytes"
the length of the modules that follow it), order, close; become takes the place of the porter itself, so that what runs
long has the channel alone. What programs write goes back as frames with their number; a frame with "end" is the last.
The order clock is answered at once, with the node's time under "clock": programs are at work, and would be late.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself costs a fifth of a start of Python
import _thread
import os
import select
import time

from orchestrator.node import boot, glance
from orchestrator.node.fastjson import dumps, loads
from orchestrator.node.wire import Wire, frame

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple, Union

    Modules = Dict[str, Union[str, bytes]]
    Order = Tuple[Dict[str, Any], bytes]

IDLE_S = 150.0
"""Without a program and without an order for so long, the launch host has no more use for us, or is gone."""
CHUNK = 1 << 16
WITHIN = ("reach",)
"""Programs that touch no disk and no driver and end by themselves: a process of their own would cost more than they do."""


class Inbox:
    """Cuts what comes over stdin into orders and the bodies that some of them have."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> List[Order]:
        """Take the next bytes and give the orders that are whole; nothing is taken of what follows a become."""
        self.rest += data
        orders: List[Order] = []
        while (end := self.rest.find(b"\n")) >= 0:
            header = loads(self.rest[:end])
            after = end + 1 + int(header.get("bytes", 0))
            if len(self.rest) < after:
                break
            orders.append((header, self.rest[end + 1 : after]))
            self.rest = self.rest[after:]
            if header["op"] == "become":
                break
        return orders


class Child:
    """One program that was started, by the pipes that lead to it and from it; -1: closed."""

    def __init__(self, number: int, to_it: int, from_it: int) -> None:
        self.number, self.to_it, self.from_it = number, to_it, from_it
        self.pending = b""
        os.set_blocking(to_it, False)

    def feed(self) -> None:
        """Write what the program takes now: it may be long in reading its orders."""
        if self.to_it < 0:
            return
        try:
            while self.pending:
                self.pending = self.pending[os.write(self.to_it, self.pending[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            self.pending = b""  # it reads no more
        if self.from_it < 0:
            os.close(self.to_it)
            self.to_it = -1

    def hang_up(self) -> None:
        """Listen no more, and close its stdin once it has taken what it was told before."""
        if self.from_it >= 0:
            os.close(self.from_it)
            self.from_it = -1
        self.feed()


class Porter:
    """The state of the porter."""

    def __init__(self, wire: Wire, modules: Modules) -> None:
        self.wire, self.modules = wire, modules
        self.inbox = Inbox()
        self.early, wire.early = wire.early, b""
        self.children: Dict[int, Child] = {}
        self.heard = time.monotonic()

    def run(self) -> Optional[Order]:
        """Do what comes, until the launch host is gone; gives the order to become something else."""
        orders = self.inbox.feed(self.early)
        if not orders and not select.select([0], [], [], 0)[0]:
            glance.look_early()
        while True:
            for order in orders:
                if order[0]["op"] == "become":
                    self.leave()
                    return order
                self.obey(*order)
            data = self.wait()
            if data is None:
                self.leave()
                return None
            orders = self.inbox.feed(data) if data else []

    def obey(self, header: Dict[str, Any], body: bytes) -> None:
        """Do one order."""
        self.heard = time.monotonic()
        if header["op"] == "open":
            learn(self.modules, body)
            self.open(header)
            return
        if header["op"] == "clock":
            self.wire.send({"c": header["c"], "clock": time.time()})
            return
        child = self.children.get(header["c"])
        if child is None:
            return  # it has ended meanwhile
        if header["op"] == "order":
            child.pending += dumps(header["order"]).encode() + b"\n"
            child.feed()
        else:
            child.hang_up()

    def open(self, header: Dict[str, Any]) -> None:
        """Start a program, with pipes in place of the channel."""
        order_read, order_write = os.pipe()
        frame_read, frame_write = os.pipe()
        try:
            if header["program"] in WITHIN:
                # Here and not in the thread: whoever is forked while a thread loads a module could load it no more.
                __import__("orchestrator.node." + header["program"])
                _thread.start_new_thread(self.be_within, (header, order_read, frame_write))
            elif os.fork() == 0:
                self.be_child(header, order_read, frame_write)
            else:
                os.close(order_read)
                os.close(frame_write)
        except (OSError, RuntimeError) as error:
            for handle in (order_read, order_write, frame_read, frame_write):
                os.close(handle)
            why = error.strerror if isinstance(error, OSError) else str(error)
            self.refuse(header, "no further process can be started here: %s" % why)
            return
        self.children[header["c"]] = Child(header["c"], order_write, frame_read)

    def refuse(self, header: Dict[str, Any], why: str) -> None:
        """Say in the place of a program why it does not run."""
        remedy = "look at `ulimit -u` and at the pids limit of the control group"
        said = b"AORTA %s\n" % header["nonce"].encode() + frame({"error": why, "remedy": remedy})
        self.wire.send({"c": header["c"]}, said)
        self.wire.send({"c": header["c"], "end": True})

    def be_within(self, header: Dict[str, Any], order_read: int, frame_write: int) -> None:
        """Be a program in a thread of ours; it is given no orders."""
        try:
            boot.run(header["program"], header["request"], Wire(header["nonce"], frame_write), self.modules)
        except (SystemExit, BrokenPipeError):
            pass  # it has been told, or nobody listens any more
        finally:
            os.close(order_read)
            os.close(frame_write)

    def be_child(self, header: Dict[str, Any], order_read: int, frame_write: int) -> None:
        """Be the program that was asked for; never returns."""
        code = 1
        try:
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
            os.dup2(order_read, 0)
            os.dup2(frame_write, 1)
            # What stays open in a child would keep others, and the channel itself, from ending.
            os.closerange(3, highest_handle() + 1)
            boot.run(header["program"], header["request"], Wire(header["nonce"]), self.modules)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BrokenPipeError:
            pass
        finally:
            os._exit(code)

    def wait(self) -> Optional[bytes]:
        """Wait for whatever comes first, and pass on what programs said; None when the launch host is gone."""
        self.children = {number: child for number, child in self.children.items() if child.to_it >= 0}
        poll = select.poll()
        poll.register(0, select.POLLIN)
        speaking = {child.from_it: child for child in self.children.values() if child.from_it >= 0}
        for handle in speaking:
            poll.register(handle, select.POLLIN)
        for child in self.children.values():
            if child.pending:
                poll.register(child.to_it, select.POLLOUT)
        limit_ms = None if speaking else max(0.0, self.heard + IDLE_S - time.monotonic()) * 1000
        ready = [handle for handle, _ in poll.poll(limit_ms)]
        if not ready:
            return None
        for handle in ready:
            if handle in speaking:
                self.pass_on(speaking[handle])
        for child in self.children.values():
            child.feed()
        if 0 not in ready:
            return b""
        return os.read(0, CHUNK) or None

    def pass_on(self, child: Child) -> None:
        """Send what a program has written, or that it has ended."""
        data = os.read(child.from_it, CHUNK)
        if data:
            self.wire.send({"c": child.number}, data)
            return
        child.hang_up()
        self.heard = time.monotonic()
        self.wire.send({"c": child.number, "end": True})

    def leave(self) -> None:
        """Let go of every program: it finds its orders ended, as if its own channel had been closed."""
        for child in self.children.values():
            child.hang_up()


def highest_handle() -> int:
    """Give the highest number of an open file of this process."""
    return max(int(name) for name in os.listdir("/proc/self/fd"))


def learn(modules: Modules, packed: bytes) -> None:
    """Add modules that came with an order; code objects are of no use where sources were asked for."""
    if packed:
        for name, text in boot.unpack_modules(packed).items():
            modules.setdefault(name, text)


def main(request: Dict[str, Any], wire: Wire, modules: Modules) -> None:
    """Serve the launch host until it is gone, or become what it orders."""
    del request
    # Programs that end are nobody's to wait for.
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
    porter = Porter(wire, modules)
    order = porter.run()
    if order is None:
        os._exit(0)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    header, body = order
    learn(modules, body)
    wire.early = porter.inbox.rest
    boot.run(header["program"], header["request"], wire, modules)
