"""The socket below an SSH connection, with few calls to the kernel: at each of them a thread gives its turn away."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any

AHEAD = 1 << 14
"""So many bytes are asked for at once, unless more are wanted; the SSH library asks for a packet in two or three parts."""


class SshSocket(socket.socket):
    """A connection that reads ahead, and waits in the kernel instead of asking it first.

    With a limit on time Python looks before every call whether it would wait, which is a call more; the limits that
    the kernel keeps for a socket itself need none. And our own greeting goes at once. Both sides may greet at the same
    time, but the library begins only when the server has been heard, and a server offers its algorithms only when it
    has heard us: that would be half a round trip of waiting.
    """

    def __init__(self, sock: socket.socket, greeting: str) -> None:
        super().__init__(fileno=sock.detach())
        super().settimeout(None)
        self._said = f"{greeting}\r\n".encode()
        self._ahead = memoryview(b"")
        # Whoever hangs up, or takes nothing, is told apart by what comes back.
        with contextlib.suppress(OSError):
            self.sendall(self._said)

    def settimeout(self, value: float | None, /) -> None:
        """Limit each call to this many seconds; None for no limit."""
        # No time at all is no limit to the kernel.
        micros = 0 if value is None else max(1, round(value * 1e6))
        limit = struct.pack("@ll", *divmod(micros, 1_000_000))
        self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Give at most so many bytes, those first that were read ahead.

        Raises:
            TimeoutError: none came within the limit.
        """
        if flags:
            return super().recv(bufsize, flags)
        try:
            if not self._ahead:
                if bufsize >= AHEAD:
                    return super().recv(bufsize)
                self._ahead = memoryview(super().recv(AHEAD))
        except BlockingIOError as error:
            raise TimeoutError(*error.args) from None
        data, self._ahead = self._ahead[:bufsize], self._ahead[bufsize:]
        return bytes(data)

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Send; what the library says first has been said.

        Raises:
            TimeoutError: the other end took nothing within the limit.
        """
        if self._said and bytes(data) == self._said:
            self._said = b""
            return len(data)
        try:
            return super().send(data, flags)
        except BlockingIOError as error:
            raise TimeoutError(*error.args) from None
