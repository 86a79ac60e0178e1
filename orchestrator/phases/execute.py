"""Runs one command on many nodes at once, and ends it everywhere when the user has had enough."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.errors import AortaError, LinkLostError, NodeError
from orchestrator.transport import Channel, Frame, Link
from orchestrator.transport.fanout import nobody
from orchestrator.values import Executed, Stream

BEAT_S = 5.0
"""A node that hears nothing for the time of `lost_after_s` ends the command: so often it hears that we are there."""
STOP_S = 20.0
"""For all nodes to say that nothing is left: 2 s grace, 10 s for what hangs in the kernel, and the way."""
MOST_KEPT = 1 << 20
LEAST_KEPT = 1 << 16
ALL_KEPT = 1 << 28
"""Bytes of output that all nodes together may give."""


class Execution:
    """One command on every link."""

    def __init__(
        self, links: Mapping[int, Link], words: Sequence[bytes], timeout_s: float | None, silence_s: float
    ) -> None:
        self.results: dict[int, Executed] = {}
        self.errors: dict[int, AortaError] = {}
        self._links = links
        self._request: dict[str, Any] = {
            "words": [word.hex() for word in words],
            "timeout_s": timeout_s,
            "silence_s": max(silence_s, 3 * BEAT_S),
            "keep": kept_bytes(len(links)),
        }
        self._channels: dict[int, Channel] = {}
        self._stopping = threading.Event()
        self._ended: queue.SimpleQueue[tuple[int, Executed | BaseException]] = queue.SimpleQueue()

    def run(self, done: Callable[[int], None] = nobody) -> None:
        """Run it everywhere and wait for all; results and errors are there by place, also when this is interrupted."""
        for place in self._links:
            threading.Thread(target=self._work, args=(place,), name=f"exec {place}", daemon=True).start()
        self._collect(done, None)

    def stop(self) -> None:
        """End it wherever it still runs, and wait until every node has said so, within limits."""
        self._stopping.set()
        for place in self.unheard:
            # One that is cut off must not keep the others waiting.
            threading.Thread(target=self._send_stop, args=(place,), daemon=True).start()
        self._collect(nobody, time.monotonic() + STOP_S)

    @property
    def unheard(self) -> list[int]:
        """The places that have not said how it ended there."""
        return [place for place in self._links if place not in self.results and place not in self.errors]

    def name(self, place: int) -> str:
        """Name the node at a place."""
        return self._links[place].node.name

    def _collect(self, done: Callable[[int], None], end: float | None) -> None:
        while self.unheard:
            try:
                place, ending = self._ended.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
            except queue.Empty:
                return
            if isinstance(ending, Executed):
                self.results[place] = ending
            elif isinstance(ending, AortaError):
                self.errors[place] = ending
            else:
                raise ending
            done(place)

    def _send_stop(self, place: int) -> None:
        if place in self._channels:
            with contextlib.suppress(AortaError):
                self._channels[place].send({"op": "stop"})

    def _work(self, place: int) -> None:
        link = self._links[place]
        try:
            channel = link.open("execute", self._request)
            try:
                self._channels[place] = channel
                if self._stopping.is_set():
                    self._send_stop(place)
                self._ended.put((place, parse_end(link.node.name, self._await_end(channel, link.node.name))))
            finally:
                channel.close()
        except BaseException as error:  # noqa: BLE001 - it is looked at in the caller's thread
            self._ended.put((place, error))

    def _await_end(self, channel: Channel, where: str) -> Frame:
        while True:
            try:
                frame = channel.read(BEAT_S)
            except TimeoutError:
                # What it ended with may be on its way already; the next read tells.
                with contextlib.suppress(AortaError):
                    channel.send({"op": "beat"})
                continue
            if frame is None:
                raise LinkLostError(
                    what="our program there ended without a word: how the command ended is not known",
                    where=where,
                    remedy="was it killed there (out of memory, or by somebody)? look into the node's log: journalctl -k",
                )
            if "error" in frame.header:
                raise NodeError(what=str(frame.header["error"]), where=where)
            return frame


def kept_bytes(nodes: int) -> int:
    """Choose how much of each stream of each node is kept: a MiB, less where many nodes would fill our memory."""
    return max(LEAST_KEPT, min(MOST_KEPT, ALL_KEPT // (2 * max(1, nodes))))


def parse_end(node: str, frame: Frame) -> Executed:
    """Turn the last frame of a node into how the command ended there."""
    header = frame.header
    split = int(header["stdout"]["bytes"])
    return Executed(
        node=node,
        code=header["code"],
        signal=header["signal"],
        ended=str(header.get("ended", "")),
        not_started=str(header.get("not_started", "")),
        stdout=_parse_stream(header["stdout"], frame.body[:split]),
        stderr=_parse_stream(header["stderr"], frame.body[split:]),
        left_behind=int(header.get("left_behind", 0)),
        survivors=tuple((int(left["pid"]), str(left["command"])) for left in header.get("survivors", ())),
        seconds=float(header["seconds"]),
    )


def _parse_stream(header: Mapping[str, Any], data: bytes) -> Stream:
    return Stream(data=data, cut_at=int(header["cut_at"]), left_out=int(header["left_out"]))
