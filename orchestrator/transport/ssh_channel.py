"""A program of ours on a node, over one channel of the node's SSH connection."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from orchestrator.errors import LinkLostError, NodeError
from orchestrator.transport import Frame
from orchestrator.transport.frames import FrameReader
from orchestrator.transport.program import first_bytes, remote_command, source_bytes
from orchestrator.transport.ssh_base import paramiko

CHUNK = 1 << 18
SLICE_S = 0.5
"""How long one wait lasts before stderr and the link are looked at again."""
KEPT_STDERR = 4096
DYING_S = 0.5
"""The channels of a dying connection are closed a moment before it says that it is dead."""


def _ask_exec(channel: paramiko.Channel, command: str) -> None:
    """Do as paramiko's exec_command does, but do not wait for sshd's word: the program's bytes go right behind."""
    message = paramiko.Message()
    message.add_byte(paramiko.common.cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("exec")
    message.add_boolean(True)  # sshd answers, and read() finds what
    message.add_string(command)
    begin: Any = channel  # neither of these is public
    begin._event_pending()  # noqa: SLF001 - the answer is noted there
    begin.transport._send_user_message(message)  # noqa: SLF001


class SshChannel:
    """A running program on a node; one thread may read while others send."""

    def __init__(
        self,
        channel: paramiko.Channel,
        where: str,
        lost: Callable[[], str],
        heard: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._where = where
        self._lost = lost
        self._heard = heard
        self._nonce = secrets.token_hex(8)
        self._frames = FrameReader(self._nonce, where, self._send_sources)
        self._sending = threading.Lock()
        self._stderr = b""

    def start(self, program: str, request: Mapping[str, Any], pythons: tuple[str, ...]) -> None:
        """Run the fixed command line and send the program over its stdin."""
        self._channel.settimeout(SLICE_S)
        try:
            _ask_exec(self._channel, remote_command(pythons))
        except (paramiko.SSHException, EOFError, OSError) as error:
            self._raise_if_lost()
            raise self._refused(str(error)) from error
        # A program that never started takes no bytes; why is said by what it printed, which read() tells.
        self._write(first_bytes(program, self._nonce, request), may_end=True)

    def read(self, timeout_s: float | None = None) -> Frame | None:
        """Wait for the next frame; None when the program has ended."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while (frame := self._frames.next()) is None:
            left_s = SLICE_S if end is None else end - time.monotonic()
            if left_s <= 0 and not self._channel.recv_ready():
                raise TimeoutError
            # Never 0: that would make a sender in another thread spin.
            self._channel.settimeout(min(SLICE_S, max(left_s, 0.01)))
            try:
                data = self._channel.recv(CHUNK)
            except TimeoutError:
                self._drain_stderr()
                self._raise_if_lost()
                continue
            self._drain_stderr()
            if not data:
                self._judge_end()
                return None
            self._heard()
            self._frames.feed(data)
        return frame

    def send(self, order: Mapping[str, Any], body: bytes = b"") -> None:
        """Send one order as a JSON line, and what belongs behind it."""
        self._write(json.dumps(order).encode() + b"\n" + body, may_end=False)

    def _send_sources(self) -> None:
        self._write(source_bytes(), may_end=True)

    def drop_frames(self, key: str) -> None:
        """Give no frame any more whose header has this key."""
        self._frames.without = key

    def close(self) -> None:
        """Close our end; the program sees end of file on its stdin."""
        self._channel.close()

    @property
    def stderr_tail(self) -> str:
        """The last that the program, or the shell before it, wrote to stderr."""
        return self._stderr.decode("utf-8", "replace").strip()

    def _write(self, data: bytes, *, may_end: bool) -> None:
        view = memoryview(data)
        with self._sending:
            while view:
                try:
                    # paramiko wants bytes; a slice of the window's size at a time keeps the copies small.
                    sent = self._channel.send(bytes(view[:CHUNK]))
                except TimeoutError:
                    self._drain_stderr()
                    self._raise_if_lost()
                    continue
                except (paramiko.SSHException, EOFError, OSError) as error:
                    sent, reason = 0, str(error)
                else:
                    reason = "closed"
                if sent == 0:
                    self._raise_if_lost()
                    if may_end:
                        return
                    self._raise_gone(reason)
                view = view[sent:]

    def _drain_stderr(self) -> None:
        # Both streams share one window: what nobody takes from stderr would stop stdout.
        while self._channel.recv_stderr_ready():
            data = self._channel.recv_stderr(CHUNK)
            if not data:
                return
            self._stderr = (self._stderr + data)[-KEPT_STDERR:]

    def _raise_if_lost(self) -> None:
        if reason := self._lost():
            raise LinkLostError(
                what=reason + self._moment(), where=self._where, remedy="is the node up and the network between whole?"
            )

    def _moment(self) -> str:
        return "" if self._frames.started else " before our program started"

    def _raise_gone(self, reason: str) -> NoReturn:
        if not self._frames.started:
            # Whatever ran in place of our program has left its reason behind.
            while data := self._channel.recv(CHUNK):
                self._frames.feed(data)
            self._drain_stderr()
            self._judge_end()
        raise LinkLostError(
            what=f"the program on the node is gone ({reason})",
            where=self._where,
            remedy="was it killed there (out of memory, or by somebody)? look into the node's log: journalctl -k",
        )

    def _refused(self, how: str) -> NodeError:
        remedy = "look at the node's sshd_config and authorized_keys: is a command allowed for this user?"
        return NodeError(what=f"sshd does not start our program ({how})", where=self._where, remedy=remedy)

    def _judge_end(self) -> None:
        """Tell the end of a program from the end of the link, and from a program that never began."""
        if not self._channel.event_ready and not self._frames.started and not self._channel.eof_received:
            if self._channel.transport is not None:
                self._channel.transport.join(DYING_S)
            self._raise_if_lost()
            raise self._refused("request refused")
        if not self._channel.eof_received and self._channel.exit_status < 0:
            self._raise_if_lost()
            # The channels of a dying connection are closed a moment before it says that it is dead.
            raise LinkLostError(
                what="the connection to the node broke" + self._moment(),
                where=self._where,
                remedy="is the node up? was its sshd restarted?",
            )
        if self._frames.started:
            return
        said = " ".join((self._frames.noise + " " + self.stderr_tail).split())[-300:]
        raise NodeError(
            what=f"the login shell ended before our program started: {said or 'it said nothing'}",
            where=self._where,
            remedy="can this user run commands over ssh (login shell, forced command, exec in .bashrc)? try: ssh NODE python3 -V",
        )
