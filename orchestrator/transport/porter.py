"""Our end of the porter, the program that stays on a node and starts the others: many programs over one channel."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from orchestrator.errors import AortaError
from orchestrator.transport import Channel, Frame
from orchestrator.transport.cargo import list_needed, pack_modules
from orchestrator.transport.frames import FrameReader
from orchestrator.transport.program import first_bytes

PROGRAM = "porter"
IDLE_S = 60.0
"""One that did nothing for so long is not asked any more: it ends by itself, at more than twice that."""
NUMBER = "c"
"""The key in the headers of those frames that are of a program of the porter."""
CLOCK = "clock"
"""The key under which the porter tells the node's time."""
TELL_TIME: Mapping[str, Any] = {"op": CLOCK}
"""An order to any program of a porter; it is answered at once, by a frame that has nothing but the time."""
ALONE = frozenset({"pump", "hold"})
"""Programs that have a channel alone: they run as long as a run does, or bring much."""
HEIR = "start"
"""Has a channel alone as well: that of the porter, when nothing else is at work there."""


def pack_ahead() -> None:
    """Build now what each of many nodes is sent; the first one that is reached would do it otherwise, and the others wait."""
    first_bytes(PROGRAM, "", {})
    pack_modules("probe", list_needed(PROGRAM))


class Base(Channel, Protocol):
    """The channel that the porter has."""

    def send(self, order: Mapping[str, Any], body: bytes = b"") -> None:
        """Send one order, with bytes behind it."""

    def drop_frames(self, key: str) -> None:
        """Give no frame any more whose header has this key."""


class PorterChannel:
    """One program that the porter has started."""

    def __init__(self, porter: Porter, number: int, where: str) -> None:
        self.nonce = secrets.token_hex(8)
        self.ended = False
        self.last: Frame | None = None
        """What is said of the porter's own end, after all that the program itself has said."""
        self.frames = FrameReader(self.nonce, where)
        self.times: deque[Frame] = deque()
        """What the porter has told of its clock."""
        self._porter = porter
        self._number = number

    def read(self, timeout_s: float | None = None) -> Frame | None:
        """Wait for the next frame; None when the program has ended."""
        return self._porter.read(self, timeout_s)

    def send(self, order: Mapping[str, Any]) -> None:
        """Send one order; that to tell the time is for the porter, which has nothing else to do."""
        if order == TELL_TIME:
            self._porter.ask_time(self, self._number)
        else:
            self._porter.send({"op": "order", NUMBER: self._number, "order": order})

    def close(self) -> None:
        """Close our end; the program sees end of file on its stdin."""
        self._porter.close_program(self._number)


class Porter:
    """The programs of one node that go over one channel.

    There is no thread for it: of those who wait for their programs, one reads for all.
    """

    def __init__(self, base: Base, where: str) -> None:
        self._base = base
        self._where = where
        self._numbers = itertools.count(1)
        self._open: dict[int, PorterChannel] = {}
        self._asked: dict[int, PorterChannel] = {}
        """Who waits for the time; also one whose program has ended."""
        self._sent: frozenset[str] = list_needed(PROGRAM)
        self._news = threading.Condition()
        self._someone_reads = False
        self._over = False
        self._used = time.monotonic()

    def open(self, program: str, request: Mapping[str, Any]) -> PorterChannel:
        """Have a program started."""
        with self._news:
            number = next(self._numbers)
            channel = PorterChannel(self, number, self._where)
            self._open[number] = channel
            order = {"op": "open", "c": number, "program": program, "nonce": channel.nonce, "request": request}
            self._give(order, program)
        return channel

    def become(self, program: str, request: Mapping[str, Any]) -> Channel:
        """Let a program have the channel, in place of the porter."""
        with self._news:
            self._over = True
            # A program that ends while we close our end of it is told as ended nevertheless, and maybe only now.
            self._base.drop_frames(NUMBER)
            self._give({"op": "become", "program": program, "request": request}, program)
        return self._base

    def _give(self, order: Mapping[str, Any], program: str) -> None:
        # Under the lock: what counts as sent must have gone before the orders of other threads that build on it.
        modules = pack_modules(program, self._sent) if list_needed(program) - self._sent or program == HEIR else b""
        self._sent |= list_needed(program)
        self._used = time.monotonic()
        self._base.send({**order, "bytes": len(modules)}, modules)

    @property
    def usable(self) -> bool:
        """It is there still, as far as we know."""
        return not self._over and (bool(self._open) or time.monotonic() - self._used < IDLE_S)

    @property
    def idle(self) -> bool:
        """It can become something else: nothing of it is in use."""
        return self.usable and not self._open and not self._someone_reads

    def send(self, order: Mapping[str, Any]) -> None:
        """Send an order; one for a program that has ended gets lost there."""
        self._used = time.monotonic()
        self._base.send(order)

    def ask_time(self, channel: PorterChannel, number: int) -> None:
        """Have the node's time told to a channel."""
        with self._news:
            self._asked[number] = channel
        self.send({"op": CLOCK, NUMBER: number})

    def close_program(self, number: int) -> None:
        """Close our end of one program."""
        with self._news:
            self._asked.pop(number, None)
            channel = self._open.pop(number, None)
            if channel is None:
                return
            channel.ended = True
            self._used = time.monotonic()
            if not self._over:
                # Over a lost link there is nothing to be ended, and what is told of the loss is told by others.
                with suppress(AortaError):
                    self._base.send({"op": "close", "c": number})

    def close(self) -> None:
        """End the porter, and with it all that it has started."""
        self._over = True
        self._base.close()

    def read(self, channel: PorterChannel, timeout_s: float | None) -> Frame | None:
        """Wait for a frame of one program, and meanwhile take those of the others."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._news:
                if channel.times:
                    return channel.times.popleft()
                if (frame := channel.frames.next()) is not None:
                    return frame
                if channel.ended and (self._over or channel not in self._asked.values()):
                    last, channel.last = channel.last, None
                    return last
                left_s = None if until is None else until - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise TimeoutError
                if self._someone_reads:
                    self._news.wait(left_s)
                    continue
                self._someone_reads = True
            try:
                self._take(self._base.read(left_s))
            finally:
                with self._news:
                    self._someone_reads = False
                    self._news.notify_all()

    def _take(self, frame: Frame | None) -> None:
        with self._news:
            if frame is None or "error" in frame.header:
                # Whatever ends the porter ends its programs.
                self._over = True
                for one in self._open.values():
                    one.ended, one.last = True, frame
                self._open.clear()
                return
            number = int(frame.header.get(NUMBER, 0))
            if CLOCK in frame.header and number in self._asked:
                self._asked.pop(number).times.append(Frame({CLOCK: frame.header[CLOCK]}))
                return
            channel = self._open.get(number)
            if channel is None:
                return  # we have closed our end
            if frame.header.get("end"):
                channel.ended = True
                del self._open[number]
                self._used = time.monotonic()
            else:
                channel.frames.feed(frame.body)


class Programs:
    """Starts the programs of one link: most through its porter, those that are to have a channel alone without it."""

    def __init__(self, where: str, start: Callable[[str, Mapping[str, Any]], Base]) -> None:
        self._where = where
        self._start = start
        self._porter: Porter | None = None
        self._opening = threading.Lock()

    def prepare(self) -> None:
        """Have the porter come up before anything is asked; whatever is wrong with it is told when a program is opened."""
        with suppress(Exception), self._opening:
            if self._porter is None:
                self._porter = self._start_porter()

    def _start_porter(self) -> Porter:
        return Porter(self._start(PROGRAM, {}), self._where)

    def open(self, program: str, request: Mapping[str, Any]) -> Channel:
        """Start one program."""
        if program in ALONE:
            # Not while others wait for the porter: a channel costs two round trips.
            return self._start(program, request)
        with self._opening:
            porter = self._porter if self._porter is not None and self._porter.usable else None
            if program != HEIR:
                if porter is None:
                    self.close()
                    porter = self._porter = self._start_porter()
                return porter.open(program, request)
            if porter is not None and porter.idle:
                self._porter = None
                return porter.become(program, request)
        return self._start(program, request)

    def close(self) -> None:
        """End the porter, if there is one."""
        if self._porter is not None:
            self._porter.close()
            self._porter = None
