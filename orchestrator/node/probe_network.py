"""The network as this node sees it, without `ip`: addresses, speeds, routes, its own name."""

from __future__ import annotations

import _socket  # what socket lays over it costs as much as a start of Python
import fcntl
import os
import time
from _struct import pack, unpack_from

from orchestrator.node.probe_command import read_text

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

    Facts = Dict[str, Any]

IFF_UP = 1
SIOCGIFFLAGS = 0x8913
SIOCGIFMTU = 0x8921
# The kernel's own words, in linux/netlink.h and linux/rtnetlink.h.
NETLINK_ROUTE = 0
RTM_GETADDR, RTM_NEWADDR = 22, 20
WHOLE_TABLE = 0x301
NLMSG_ERROR, NLMSG_DONE = 2, 3
HEADER = "=IHHII"
"""Length, kind, flags, number, sender."""
HEADER_BYTES, BODY_BYTES = 16, 8
IFA_ADDRESS, IFA_LOCAL, IFA_LABEL = 1, 2, 3
MESSAGE_BYTES = 1 << 16


def read_port_range() -> List[int]:
    """Read the lowest and the highest port that the kernel picks from; nothing where it does not say."""
    return [int(word) for word in read_text("/proc/sys/net/ipv4/ip_local_port_range").split()]


def probe_addresses(request: Facts) -> Facts:
    """List every address with its interface, MTU and speed, and the one that SSH came to."""
    del request
    # SSH_CONNECTION: client address, client port, server address, server port.
    server = "".join(os.environ.get("SSH_CONNECTION", "").split()[2:3])
    return {
        "addresses": read_addresses(),
        "ssh_server_address": server.partition("%")[0].replace("::ffff:", ""),
        "port_range": read_port_range(),
    }


def read_addresses() -> List[Facts]:
    """Ask the kernel for the addresses of the interfaces that are up, as getifaddrs of the C library does.

    Raises:
        OSError: it does not answer.
    """
    found: List[Facts] = []
    speeds: Dict[str, Tuple[Optional[int], Optional[int]]] = {}
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM, 0)
    try:
        for name, address in _list_addresses():
            if name not in speeds:
                # The ioctl answers for our own network namespace; /sys may show another one.
                is_up = _ask_interface(sock, SIOCGIFFLAGS, name, "H")
                if is_up is None or not is_up & IFF_UP:
                    continue
                speeds[name] = (_ask_interface(sock, SIOCGIFMTU, name, "i"), _speed_mbit(name))
            mtu, speed_mbit = speeds[name]
            found.append({"interface": name, "address": address, "mtu": mtu, "speed_mbit": speed_mbit})
    finally:
        sock.close()
    return found


def list_interfaces() -> List[str]:
    """Name the interfaces that are up and have an address, the loopback left out."""
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM, 0)
    try:
        names = sorted({name for name, _ in _list_addresses() if name != "lo"})
        return [name for name in names if (_ask_interface(sock, SIOCGIFFLAGS, name, "H") or 0) & IFF_UP]
    finally:
        sock.close()


def _list_addresses() -> Iterator[Tuple[str, str]]:
    """List the names of interfaces, each with an address."""
    # Family AF_UNSPEC: of both kinds.
    order = pack(HEADER, HEADER_BYTES + BODY_BYTES, RTM_GETADDR, WHOLE_TABLE, 1, 0) + bytes(BODY_BYTES)
    sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, NETLINK_ROUTE)
    try:
        sock.send(order)
        while True:
            data = sock.recv(MESSAGE_BYTES)
            while len(data) >= HEADER_BYTES:
                size, kind = unpack_from("=IH", data)
                body, data = data[HEADER_BYTES:size], data[(size + 3) & ~3 :]
                if kind == NLMSG_DONE:
                    return
                if kind == NLMSG_ERROR:
                    number = -unpack_from("=i", body)[0]
                    raise OSError(number, os.strerror(number))
                if kind == RTM_NEWADDR:
                    yield from parse_address(body)
    finally:
        sock.close()


def parse_address(body: bytes) -> Iterator[Tuple[str, str]]:
    """Read one struct ifaddrmsg with what follows it; gives the interface and its address, nothing for odd families."""
    family, _, _, _, index = unpack_from("=BBBBI", body)
    if family not in (_socket.AF_INET, _socket.AF_INET6):
        return
    parts: Dict[int, bytes] = {}
    rest = body[BODY_BYTES:]
    while len(rest) >= 4:  # noqa: PLR2004 - size and kind
        size, kind = unpack_from("=HH", rest)
        parts[kind], rest = rest[4:size], rest[max(4, (size + 3) & ~3) :]
    # On a line from point to point the other one is the end over there.
    address = parts.get(IFA_LOCAL, parts.get(IFA_ADDRESS))
    if address is None:
        return
    label = parts.get(IFA_LABEL, b"").rstrip(b"\0").decode("utf-8", "replace")
    yield label or _socket.if_indextoname(index), _socket.inet_ntop(family, address)


def _ask_interface(sock: _socket.socket, what: int, name: str, shape: str) -> Optional[int]:
    try:
        answer = fcntl.ioctl(sock.fileno(), what, pack("16si", name.encode()[:15], 0) + bytes(20))
    except OSError:
        return None
    return int(unpack_from(shape, answer, 16)[0])


def _speed_mbit(name: str) -> Optional[int]:
    text = read_text(f"/sys/class/net/{name}/speed")
    # Virtual interfaces say -1 or nothing.
    return int(text) if text.isdigit() and int(text) > 0 else None


def interface_of(address: str) -> str:
    """Name the interface that holds an address; empty when none does."""
    return next((entry["interface"] for entry in read_addresses() if entry["address"] == address), "")


def probe_routes(request: Facts) -> Facts:
    """Say from which of its addresses this node would speak to each numeric address asked for."""
    return {"routes": {target: source_towards(target) for target in request.get("routes", [])}}


def source_towards(target: str) -> str:
    """Ask the kernel for the way without sending anything; empty when there is none."""
    sock = _socket.socket(_socket.AF_INET6 if ":" in target else _socket.AF_INET, _socket.SOCK_DGRAM, 0)
    try:
        sock.connect((target, 9))
        return str(sock.getsockname()[0])
    except OSError:
        return ""
    finally:
        sock.close()


def probe_hostname(request: Facts) -> Facts:
    """Say what this node's own name resolves to: what gloo and others take when nobody tells them better."""
    del request
    began = time.monotonic()
    try:
        # A name in bytes is asked for as it is; text would bring the codec of international names, which is dear.
        answers = _socket.getaddrinfo(os.fsencode(_socket.gethostname()), None, type=_socket.SOCK_STREAM)
    except OSError:
        return {"hostname_addresses": [], "hostname_s": round(time.monotonic() - began, 2)}
    addresses = sorted({str(answer[4][0]) for answer in answers})
    return {"hostname_addresses": addresses, "hostname_s": round(time.monotonic() - began, 2)}
