"""The link to a node over SSH: one connection through fabric, paramiko's channels read directly."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
import time
from dataclasses import field
from functools import partial
from typing import Any

from orchestrator.errors import AortaError, LinkError, LinkLostError, SilentError
from orchestrator.light_dataclass import dataclass
from orchestrator.transport.hostkeys import KnownHosts
from orchestrator.transport.ssh_base import fabric, paramiko
from orchestrator.transport.ssh_dial import (
    Deadline,
    DroppedError,
    Proxy,
    Resolved,
    await_greeting,
    dial,
    resolve,
)
from orchestrator.transport.ssh_hostkey import HostKeyRule, prefer_known_types
from orchestrator.transport.ssh_keys import KeyStore
from orchestrator.transport.ssh_login import KeyLogin
from orchestrator.transport.ssh_pulse import Pulse
from orchestrator.transport.ssh_rsync import has_aes
from orchestrator.transport.ssh_socket import SshSocket
from orchestrator.transport.sshconfig import SshHost

JUMP_WIDTH = 8
"""Logins at once through one jump host: an sshd drops some of more than ten."""
TRIES = 3
GREETING = f"SSH-2.0-paramiko_{paramiko.__version__}"
"""What we are called in sshd's log."""
SWIFT = "aes128-gcm@openssh.com"
"""Enciphers and proves in one pass; paramiko's first choice goes over every byte twice, for twice the time."""
LOOK_S = 5.0
"""So often a quiet link's thread looks whether it was closed, or has to change its keys."""
# Whatever goes wrong comes back as an exception; its log would only reach a user's screen.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class FabricConnection(fabric.Connection):  # type: ignore[misc] # fabric has no types
    """Fabric's connection, which notes what it is told in itself and not in its configuration.

    That would be merged anew each time, for most of what a connection costs, while other threads read half of it.
    """

    __setattr__ = object.__setattr__


class NoSshConfig(paramiko.SSHConfig):
    """Says of every host what an empty ssh_config says, without asking the system for all that could stand in one."""

    def lookup(self, hostname: str) -> paramiko.SSHConfigDict:
        """Give nothing but the name."""
        return paramiko.SSHConfigDict(hostname=hostname)


def _fabric_config() -> fabric.Config:
    # Everything is resolved before fabric is called; its own files and its reading of ssh_config stay out.
    config = fabric.Config(ssh_config=NoSshConfig(), lazy=True)
    # What it is asked for at every look and has not got costs four times what a connection does otherwise.
    config._set(_keypath=(), _root=config)  # noqa: SLF001 - as invoke sets it in the parts of a configuration
    return config


@dataclass(frozen=True)
class Session:
    """What the connections of one process share: keys parsed once, known_hosts read once."""

    accept_new: bool = False
    keys: KeyStore = field(default_factory=KeyStore)
    known: KnownHosts = field(default_factory=KnownHosts)
    config: fabric.Config = field(default_factory=_fabric_config)


class Connection:
    """One SSH connection to a node or to a jump host."""

    def __init__(self, host: SshHost, where: str, session: Session, via: Connection | None = None) -> None:
        self.host = host
        self.where = where
        self.via = via
        self.key = ""
        """The key file that opened it."""
        self.dials = threading.BoundedSemaphore(JUMP_WIDTH)
        self._session = session
        self._fabric: fabric.Connection | None = None
        self._proxy: Proxy | None = None
        self._pulse: Pulse | None = None
        self._reason = ""
        self._carried: set[Connection] = set()

    def open(self, deadline: Deadline, addresses: list[Resolved] | None = None) -> None:
        """Connect and log in within the time; a login that sshd drops is tried again.

        Raises:
            LinkError: with its own type and words for each way to fail.
        """
        for left in reversed(range(TRIES)):
            try:
                with self.via.dials if self.via else contextlib.nullcontext():
                    self._try(deadline, addresses)
            except DroppedError as error:
                self.close()
                wait_s = random.uniform(0.3, 1.0)  # noqa: S311 - jitter, no secret
                if not left or wait_s > deadline.left_s:
                    error.what += f", {TRIES - left} times"
                    raise
                time.sleep(wait_s)
            except BaseException:
                self.close()
                raise
            else:
                if self.via is not None:
                    self.via.carry(self)
                return

    def _try(self, deadline: Deadline, addresses: list[Resolved] | None) -> None:
        sock = self._socket(deadline, addresses)
        login = KeyLogin(self.host, self.where, self._session.keys, deadline)
        name = self.host.hostname
        connection = FabricConnection(
            f"[{name}]" if ":" in name else name,
            user=self.host.user,
            port=self.host.port,
            config=self._session.config,
            connect_kwargs={
                "sock": sock,
                "timeout": deadline.left_s,
                "banner_timeout": deadline.left_s,
                "channel_timeout": deadline.left_s,
                "auth_strategy": login,
                "transport_factory": partial(_transport, host=self.host, known=self._session.known),
            },
        )
        # fabric accepts every host key; our rule takes the place of its policy.
        rule = HostKeyRule(self.host, self.where, self._session.known, self._session.accept_new)
        connection.client.set_missing_host_key_policy(rule)
        self._fabric = connection
        try:
            connection.open()
        except AortaError:
            raise
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._handshake_error(error, deadline) from error
        assert login.accepted is not None
        self.key = login.accepted.path
        # paramiko looks ten times a second whether it was closed: with many quiet links that is most of what we cost.
        self.transport.sock.settimeout(LOOK_S)
        self._pulse = Pulse(self.transport, self._lose)

    def _socket(self, deadline: Deadline, addresses: list[Resolved] | None) -> socket.socket | paramiko.Channel:
        if self.via is not None:
            return self.via.tunnel(self.host, self.where, deadline)
        if self.host.proxy_command:
            self._proxy = Proxy(self.host)
            sock = self._proxy.socket
        else:
            sock = dial(self.host, addresses or resolve(self.host, self.where, deadline), self.where, deadline)
        sock = SshSocket(sock, GREETING)
        try:
            await_greeting(sock, self.host, self.where, deadline)
        except DroppedError as error:
            sock.close()
            raise self._proxy.error(self.where) if self._proxy else error from None
        except BaseException:
            sock.close()
            raise
        return sock

    def tunnel(self, host: SshHost, where: str, deadline: Deadline) -> paramiko.Channel:
        """Open a way through this host to another."""
        place = f"{host.hostname} port {host.port}"
        try:
            return self.transport.open_channel(
                "direct-tcpip", (host.hostname, host.port), ("", 0), timeout=deadline.left_s
            )
        except paramiko.ChannelException as error:
            what = f"the jump host {self.host.alias} cannot reach {place} ({error.text or error})"
            remedy = "does the jump host allow forwarding (AllowTcpForwarding), and does it see the node?"
            raise LinkError(what=what, where=where, remedy=remedy) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            what = f"no way through the jump host {self.host.alias} to {place} within {deadline.total_s:g} s"
            raise SilentError(what=what, where=where, step="connect", remedy="is the node up?") from error

    def _handshake_error(self, error: BaseException, deadline: Deadline) -> LinkError:
        transport = self.client_transport
        spoke = transport is not None and bool(transport.remote_version)
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            remedy = "the node's sshd offers only what paramiko cannot do: look at HostKey, KexAlgorithms and Ciphers in its sshd_config (host certificates and security keys are not supported)"
            return LinkError(what=f"no common algorithm with the node's sshd: {error}", where=self.where, remedy=remedy)
        if deadline.left_s < 0.2:  # noqa: PLR2004 - paramiko's own waits end a little early
            said = "stops in the middle of the handshake" if spoke else "takes the connection and says nothing"
            what = f"{self.host.hostname} port {self.host.port} {said} ({deadline.total_s:g} s)"
            return SilentError(what=what, where=self.where, remedy="is sshd stuck or the node overloaded?")
        what = f"sshd at {self.host.hostname} port {self.host.port} ends the connection during the handshake"
        remedy = "too many logins at once (MaxStartups)? look at sshd's log on the node"
        return DroppedError(what=what, where=self.where, remedy=remedy)

    @property
    def client_transport(self) -> paramiko.Transport | None:
        """Paramiko's transport, if it came to that."""
        if self._fabric is None:
            return None
        transport: paramiko.Transport | None = self._fabric.client.get_transport()
        return transport

    @property
    def transport(self) -> paramiko.Transport:
        """Paramiko's open transport."""
        transport = self.client_transport
        if transport is None:
            raise LinkLostError(what="the link is closed", where=self.where)
        return transport

    def _lose(self, reason: str) -> None:
        self._reason = reason
        # This wakes every reader and sender; they find the reason.
        _end(self.transport)

    def lost(self) -> str:
        """Say why the link is gone; nothing while it stands."""
        transport = self.client_transport
        if transport is not None and transport.is_active():
            return ""
        return self._reason or "the connection to the node broke"

    def heard(self) -> None:
        """Note that the node has sent something."""
        if self._pulse is not None:
            self._pulse.heard()

    def carry(self, other: Connection) -> None:
        """Stay open for a connection that goes through this one."""
        self._carried.add(other)

    def drop(self, other: Connection) -> None:
        """Close with the last connection that goes through this one."""
        if other in self._carried:
            self._carried.discard(other)
            if not self._carried:
                self.close()

    def close(self) -> None:
        """End the connection and what carries it."""
        if self._pulse is not None:
            self._pulse.end()
        transport = self.client_transport
        if transport is not None:
            _end(transport)
            # A transport that never became active keeps its socket.
            transport.sock.close()
        if self._fabric is not None:
            self._fabric.client.close()
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
        if self.via is not None:
            self.via.drop(self)


def _end(transport: paramiko.Transport) -> None:
    with contextlib.suppress(OSError, EOFError):
        transport.sock.shutdown(socket.SHUT_RDWR)  # its thread may wait for long, and finds this at once
    transport.close()


def _transport(sock: socket.socket, *, host: SshHost, known: KnownHosts, **options: Any) -> paramiko.Transport:
    transport = paramiko.Transport(sock, **options)
    transport.local_version = GREETING
    chosen = transport.get_security_options()
    if has_aes() and SWIFT in chosen.ciphers:
        chosen.ciphers = (SWIFT, *(cipher for cipher in chosen.ciphers if cipher != SWIFT))
    prefer_known_types(transport, host, known)
    return transport
