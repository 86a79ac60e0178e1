"""Paramiko's connection with less to do: it sleeps until something comes, and takes what comes in few steps.

As it is, the thread of each connection wakes ten times a second to see whether it is still wanted, reads every packet in
four pieces, copies what it holds from one array into another, and picks a cipher that goes over every byte twice.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

import paramiko
from paramiko.buffered_pipe import BufferedPipe, PipeTimeout
from paramiko.packet import NeedRekeyException, Packetizer

CHUNK = 1 << 16
ASLEEP_S = 20.0
"""The longest wait for bytes. Whoever closes the connection wakes us; this is for the case that he could not."""
LOOK_S = 0.1
"""The wait while new keys are due: paramiko's own."""
SWIFT = "aes128-gcm@openssh.com"
"""Enciphers and proves in one pass, at the speed of memory where the processor knows AES."""


class QuietPacketizer(Packetizer):
    """Takes from a socket all that is there, and sleeps while nothing is.

    Before there are keys, and over a channel of a jump host, it does as paramiko does.
    """

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self._sock = sock
        self._quiet = False
        self._got = b""

    def set_inbound_cipher(self, *words: Any, **options: Any) -> None:
        """Take new keys; with the first ones the time limits of the handshake are over."""
        super().set_inbound_cipher(*words, **options)
        self._quiet = isinstance(self._sock, socket.socket)

    def close(self) -> None:
        """Wake whoever waits for bytes, and close."""
        if self._quiet:
            with contextlib.suppress(OSError):  # not connected any more: then he is awake
                self._sock.shutdown(socket.SHUT_RDWR)
        super().close()

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:  # noqa: FBT001, FBT002 - as paramiko calls it
        """Wait for the next n bytes; what came with them is kept.

        Raises:
            EOFError: the connection has ended.
            NeedRekeyException: new keys are due, and no packet has begun.
        """
        if not self._quiet:
            return bytes(super().read_all(n, check_rekey))
        while len(self._got) < n:
            self._got += self._receive(check_rekey=check_rekey and not self._got)
        data, self._got = self._got[:n], self._got[n:]
        return data

    def _receive(self, *, check_rekey: bool) -> bytes:
        while True:
            handle = self._sock.fileno()
            if self.closed or handle < 0:
                raise EOFError
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            wait_s = LOOK_S if self.need_rekey() else ASLEEP_S
            if not poll.poll(wait_s * 1000):
                if check_rekey and self.need_rekey():
                    raise NeedRekeyException
                continue
            try:
                data: bytes = self._sock.recv(CHUNK)
            except TimeoutError:
                continue
            except OSError:
                if self.closed:
                    raise EOFError from None
                raise
            if not data:
                raise EOFError
            return data


class QuietPipe(BufferedPipe):
    """What has come for a channel, piece by piece: given out as it came in where that is possible."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: deque[bytes] = deque()
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        with self._lock:
            self._pieces.append(data)
            self._size += len(data)
            self._cv.notify_all()

    def read_ready(self) -> bool:
        """Tell whether a read would give something at once."""
        return self._size > 0

    def read(self, nbytes: int, timeout: float | None = None) -> bytes:
        """Wait for bytes; none once the pipe was closed.

        Raises:
            PipeTimeout: none came in time.
        """
        end = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while not self._size and not self._closed:
                left_s = None if end is None else end - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise PipeTimeout
                self._cv.wait(left_s)
            taken, size = [], 0
            while self._pieces and size < nbytes:
                taken.append(self._pieces.popleft())
                size += len(taken[-1])
            if size > nbytes:
                rest = taken[-1][nbytes - size :]
                taken[-1] = taken[-1][: nbytes - size]
                self._pieces.appendleft(rest)
                size = nbytes
            self._size -= size
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def empty(self) -> bytes:
        """Give all that is there."""
        with self._lock:
            held = b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
        return held

    def __len__(self) -> int:
        return self._size


def make_transport(sock: Any, **options: Any) -> paramiko.Transport:
    """Build paramiko's end of a connection."""
    transport = paramiko.Transport(sock, packetizer_class=QuietPacketizer, **options)
    chosen = transport.get_security_options()
    if knows_aes() and SWIFT in chosen.ciphers:
        chosen.ciphers = (SWIFT, *(cipher for cipher in chosen.ciphers if cipher != SWIFT))
    return transport


def make_quiet(channel: paramiko.Channel) -> paramiko.Channel:
    """Give a channel that has just been opened, and on which nothing has come, the quicker pipe."""
    channel.in_buffer = QuietPipe()
    if channel.closed:  # the connection has broken meanwhile, and closed the old one
        channel.in_buffer.close()
    return channel


@cache
def knows_aes() -> bool:
    """Tell whether this machine's processor has instructions for AES."""
    try:
        lines = Path("/proc/cpuinfo").read_text("ascii", "replace").splitlines()
    except OSError:
        return False
    return any("aes" in line.split() for line in lines if line.lower().startswith(("flags", "features")))
