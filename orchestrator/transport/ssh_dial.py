"""From a name to an open socket on which an SSH server has spoken: each way to fail is told apart."""

from __future__ import annotations

import errno
import queue
import select
import socket
import subprocess
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

from orchestrator.errors import LinkError, SilentError
from orchestrator.light_dataclass import dataclass
from orchestrator.nodeline import is_numeric
from orchestrator.transport.sshconfig import SshHost, expand_tokens, home_folder

if TYPE_CHECKING:
    from orchestrator.transport.ssh_socket import SshSocket

FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
NO_ROUTE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EADDRNOTAVAIL})
GREETING_LIMIT = 4096


class DroppedError(SilentError):
    """The server hung up before it spoke SSH: too many logins at once, or none wanted from here."""


@dataclass(frozen=True)
class Deadline:
    """The time that all steps to one node share."""

    total_s: float
    end: float

    @classmethod
    def after(cls, total_s: float) -> Deadline:
        """Start the time."""
        return cls(total_s, time.monotonic() + total_s)

    @property
    def left_s(self) -> float:
        """What is left; never quite nothing, so that it can be given to calls for which 0 means for ever."""
        return max(0.01, self.end - time.monotonic())

    @property
    def over(self) -> bool:
        """Nothing is left."""
        return time.monotonic() >= self.end


Resolved = tuple[socket.AddressFamily, tuple[Any, ...]]


def resolve(host: SshHost, where: str, deadline: Deadline) -> list[Resolved]:
    """Look the name up within the time; a resolver that hangs would take its own, and an address asks none."""
    answer: queue.SimpleQueue[list[Resolved] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            family = FAMILIES.get(host.family, socket.AF_UNSPEC)
            found = socket.getaddrinfo(host.hostname, host.port, family, socket.SOCK_STREAM)
            answer.put([(entry[0], entry[4]) for entry in found])
        except (OSError, UnicodeError) as error:
            answer.put(error if isinstance(error, OSError) else OSError(str(error)))

    if is_numeric(host.hostname):
        look_up()
    else:
        threading.Thread(target=look_up, name="resolve", daemon=True).start()
    remedy = "check the spelling and /etc/hosts or DNS, or write the address in the node list"
    try:
        result = answer.get(timeout=deadline.left_s)
    except queue.Empty:
        what = f"the name {host.hostname!r} was not resolved within {deadline.total_s:g} s"
        raise LinkError(what=what, where=where, step="resolve", remedy=remedy) from None
    if isinstance(result, OSError):
        reason = result.strerror or str(result)
        what = f"the name {host.hostname!r} does not resolve ({reason})"
        raise LinkError(what=what, where=where, step="resolve", remedy=remedy)
    return result


def dial(host: SshHost, addresses: list[Resolved], where: str, deadline: Deadline) -> socket.socket:
    """Open a TCP connection to the first address that takes one."""
    failure: OSError | None = None
    for place, (family, address) in enumerate(addresses):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            # A dead first address must leave time for the others.
            sock.settimeout(deadline.left_s / (len(addresses) - place))
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    assert failure is not None
    raise _dial_error(failure, host, where, deadline) from failure


def _dial_error(error: OSError, host: SshHost, where: str, deadline: Deadline) -> LinkError:
    place = f"{host.hostname} port {host.port}"
    if isinstance(error, TimeoutError):
        return SilentError(
            what=f"no answer from {place} within {deadline.total_s:g} s: packets vanish",
            where=where,
            step="connect",
            remedy="is the node up, the address right and no firewall in between? --connect-timeout gives more time",
        )
    if error.errno == errno.ECONNREFUSED:
        remedy = "start sshd on the node, or give its port (port= in the node list, --ssh-port)"
        return LinkError(what=f"{place} refuses connections", where=where, remedy=remedy)
    if error.errno in NO_ROUTE:
        remedy = "is the node up and on a network that this machine reaches? jump= goes through another host"
        return LinkError(what=f"there is no route to {host.hostname} ({error.strerror})", where=where, remedy=remedy)
    return LinkError(what=f"no connection to {place}: {error.strerror or error}", where=where)


class Proxy:
    """Ssh_config's ProxyCommand, running on one end of a socket pair; the other end is the connection."""

    def __init__(self, host: SshHost) -> None:
        self.command = expand_tokens(host.proxy_command, host, home_folder())
        self.socket, theirs = socket.socketpair()
        # A file takes whatever it complains of and never fills up like a pipe that nobody reads.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", "exec " + self.command],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._complaints,
                start_new_session=True,  # Ctrl-C is for the launcher alone
            )

    def error(self, where: str) -> LinkError:
        """Say how it ended."""
        try:
            ending = f"ended with status {self._process.wait(0.5)}"
        except subprocess.TimeoutExpired:
            ending = "closed the connection"
        self._complaints.seek(0)
        said = " ".join(self._complaints.read(4096).decode("utf-8", "replace").split())[-200:]
        what = f"the ProxyCommand `{self.command}` {ending}" + (f": {said}" if said else "")
        remedy = "try it by hand, and mend ProxyCommand in ssh_config"
        return LinkError(what=what, where=where, step="proxy", remedy=remedy)

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()
        self._complaints.close()


def await_greeting(sock: SshSocket, host: SshHost, where: str, deadline: Deadline) -> None:
    """Wait until the server has said SSH-…, without taking the bytes from whoever reads next."""
    place = f"{host.hostname} port {host.port}" + (", through its ProxyCommand," if host.proxy_command else "")
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    seen = b""
    while not seen.startswith(b"SSH-") and b"\nSSH-" not in seen:
        if deadline.over or len(seen) >= GREETING_LIMIT:
            raise _greeting_error(seen, place, where, deadline)
        if not poll.poll(deadline.left_s * 1000):
            continue
        try:
            data = sock.recv(GREETING_LIMIT, socket.MSG_PEEK)
        except OSError as error:
            raise _dropped(seen, str(error.strerror), place, where) from error
        if data == seen:
            # Bytes that were seen keep the socket readable; so does the end after them.
            if poll_hang_up(sock):
                raise _dropped(seen, "closed", place, where)
            time.sleep(0.02)
        if not data:
            raise _dropped(seen, "closed", place, where)
        seen = data


def poll_hang_up(sock: socket.socket) -> bool:
    """Say whether the other end has closed, with bytes still to be read."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(poll.poll(0))


def _greeting_error(seen: bytes, place: str, where: str, deadline: Deadline) -> LinkError:
    if not seen:
        return SilentError(
            what=f"{place} takes the connection and says nothing for {deadline.total_s:g} s",
            where=where,
            remedy="is sshd stuck or the node out of memory? or is another service on this port?",
        )
    said = seen.splitlines()[0][:80].decode("utf-8", "replace")
    remedy = "give the port of sshd (port= in the node list, --ssh-port)"
    return LinkError(what=f"{place} is no SSH server; it says {said!r}", where=where, step="answer", remedy=remedy)


def _dropped(seen: bytes, how: str, place: str, where: str) -> LinkError:
    said = seen.splitlines()[0][:80].decode("utf-8", "replace") if seen.strip() else ""
    if said and not said.startswith(("Exceeded", "Not allowed")):
        remedy = "give the port of sshd (port= in the node list, --ssh-port)"
        return LinkError(what=f"{place} is no SSH server; it says {said!r}", where=where, step="answer", remedy=remedy)
    what = f"sshd at {place} drops the login before it has begun ({said or how})"
    remedy = "too many logins at once (MaxStartups in sshd_config)? try a smaller --fanout; or sshd bars this machine"
    return DroppedError(what=what, where=where, step="answer", remedy=remedy)
