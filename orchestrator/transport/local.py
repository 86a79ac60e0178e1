"""The link to this very machine: the same programs in the same way, without SSH."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import LinkLostError
from orchestrator.transport import Channel, Frame, RsyncTarget
from orchestrator.transport.answers import read_answer
from orchestrator.transport.frames import FrameReader
from orchestrator.transport.porter import Programs
from orchestrator.transport.program import first_bytes, remote_words, source_bytes
from orchestrator.values import Node

CHUNK = 1 << 18


class LocalChannel:
    """A program of ours on this machine."""

    def __init__(self, node: Node, program: str, request: Mapping[str, Any], pythons: tuple[str, ...]) -> None:
        nonce = secrets.token_hex(8)
        self._where = node.name
        self._sending = threading.Lock()
        self._frames = FrameReader(nonce, node.name, lambda: self._write(source_bytes()))
        self._process = subprocess.Popen(
            remote_words(pythons),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=os.path.expanduser("~"),  # noqa: PTH111 - as sshd would start it
            bufsize=0,
            # Ctrl-C at the terminal is for the launcher alone; it tells the nodes what to do.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)
        self._write(first_bytes(program, nonce, request))

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(data)
        try:
            with self._sending:
                while view:
                    view = view[self._process.stdin.write(view) :]
        except (OSError, ValueError) as error:
            raise LinkLostError(what=f"the program on this machine is gone ({error})", where=self._where) from error

    def read(self, timeout_s: float | None = None) -> Frame | None:
        """Wait for the next frame; None when the program has ended."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while (frame := self._frames.next()) is None:
            left = None if end is None else max(0.0, end - time.monotonic())
            try:
                ready = self._selector.select(left)
                data = os.read(self._out, CHUNK) if ready else b""
            except (OSError, ValueError, RuntimeError):
                return None  # closed while we waited, by whoever closes the link
            if not ready:
                raise TimeoutError
            if not data:
                return None
            self._frames.feed(data)
        return frame

    def send(self, order: Mapping[str, Any], body: bytes = b"") -> None:
        """Send one order as a JSON line, and what belongs behind it."""
        self._write(json.dumps(order).encode() + b"\n" + body)

    def drop_frames(self, key: str) -> None:
        """Give no frame any more whose header has this key."""
        self._frames.without = key

    def close(self) -> None:
        """Close our end and wait for the program's."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._selector.close()
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class LocalLink:
    """This machine as a node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.pythons: tuple[str, ...] = ()
        self.round_trip_s = 0.0
        self._programs = Programs(node.name, lambda program, asked: LocalChannel(node, program, asked, self.pythons))

    def prepare(self) -> None:
        """Let what our programs need on the node come up; whatever is wrong with it is told when one is opened."""
        self._programs.prepare()

    def open(self, program: str, request: Mapping[str, Any]) -> Channel:
        """Start a program of orchestrator.node and keep it."""
        return self._programs.open(program, request)

    def call(self, program: str, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Run a program of orchestrator.node to its single answer."""
        return read_answer(self.open(program, request), self.node.name, timeout_s)

    def rsync_target(self) -> RsyncTarget:
        """No shell and no host: rsync copies on this machine."""
        return RsyncTarget(shell=(), prefix="")

    def close(self) -> None:
        """End what runs here for this link alone."""
        self._programs.close()
