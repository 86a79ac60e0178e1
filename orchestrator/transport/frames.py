"""Cuts the byte stream of a program on a node into frames."""

from __future__ import annotations

import json
from collections.abc import Callable

from orchestrator.errors import NodeError
from orchestrator.node.boot import WISH
from orchestrator.transport import Frame
from orchestrator.transport.program import NO_PYTHON

NOISE_LIMIT = 1 << 20
"""A login shell may print this much before the marker; more is no banner."""


class FrameReader:
    """Collects bytes, gives whole frames; skips what a noisy shell printed before the marker."""

    def __init__(self, nonce: str, where: str, send_sources: Callable[[], None] | None = None) -> None:
        self._marker = b"AORTA " + nonce.encode() + b"\n"
        self._wish = WISH + nonce.encode() + b"\n"
        self._send_sources = send_sources
        self._where = where
        self._started = False
        self._data = bytearray()
        self._header: dict[str, object] | None = None
        self.without = ""
        """Frames whose header has this key are dropped: they are meant for somebody who listens no more."""

    @property
    def started(self) -> bool:
        """The marker has come: the program runs."""
        return self._started

    @property
    def noise(self) -> str:
        """What came before the marker, while none has come."""
        return "" if self._started else self._data.decode("utf-8", "replace").strip()

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self._data += data
        if not self._started:
            self._skip_noise()

    def _skip_noise(self) -> None:
        if self._send_sources is not None and (place := self._data.find(self._wish)) >= 0:
            del self._data[: place + len(self._wish)]
            send, self._send_sources = self._send_sources, None
            send()
        place = self._data.find(self._marker)
        if place >= 0:
            del self._data[: place + len(self._marker)]
            self._started = True
        elif NO_PYTHON in self._data:
            raise NodeError(
                what="no Python 3.9 or newer was found for the launcher's own programs",
                where=self._where,
                remedy="install python3, or name one with python=/path/to/python in the node list or launch.python",
            )
        elif len(self._data) > NOISE_LIMIT:
            raise NodeError(
                what="the login shell prints without end before our program starts",
                where=self._where,
                remedy="guard what .bashrc or the like prints: [[ $- == *i* ]] || return",
            )

    def next(self) -> Frame | None:
        """Give the next whole frame, or None while it is not all there."""
        while (frame := self._next()) is not None and self.without in frame.header:
            pass
        return frame

    def _next(self) -> Frame | None:
        if not self._started:
            return None
        if self._header is None:
            end = self._data.find(b"\n")
            if end < 0:
                return None
            self._header = json.loads(self._data[:end])
            del self._data[: end + 1]
        length = int(str(self._header.get("n", 0)))
        if len(self._data) < length:
            return None
        header, self._header = self._header, None
        with memoryview(self._data) as view:
            body = bytes(view[:length])
        del self._data[:length]
        return Frame(header, body)
