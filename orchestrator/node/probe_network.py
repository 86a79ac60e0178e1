"""The network as this node sees it, without `ip`: addresses, speeds, routes, its own name."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import time
from typing import Any, Dict, List, Optional

from orchestrator.node.probe_command import read_text

Facts = Dict[str, Any]
IFF_UP = 1
SIOCGIFMTU = 0x8921


class _Interface(ctypes.Structure):
    """struct ifaddrs of libc; only its first fields are read."""


_Interface._fields_ = [
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def probe_addresses(request: Facts) -> Facts:
    """List every address with its interface, MTU and speed, and the one that SSH came to."""
    del request
    # SSH_CONNECTION: client address, client port, server address, server port.
    server = "".join(os.environ.get("SSH_CONNECTION", "").split()[2:3])
    return {
        "addresses": read_addresses(),
        "ssh_server_address": server.partition("%")[0].replace("::ffff:", ""),
        "port_range": [int(word) for word in read_text("/proc/sys/net/ipv4/ip_local_port_range").split()],
    }


def read_addresses() -> List[Facts]:
    """Ask libc for the addresses of the interfaces that are up."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Interface)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), "getifaddrs")
    found: List[Facts] = []
    try:
        place = first
        while place:
            entry = place.contents
            address = _address(entry.address) if entry.flags & IFF_UP and entry.address else None
            if address is not None:
                name = entry.name.decode("utf-8", "replace")
                found.append(
                    {"interface": name, "address": address, "mtu": _mtu(name), "speed_mbit": _speed_mbit(name)}
                )
            place = entry.next
    finally:
        libc.freeifaddrs(first)
    return found


def _address(sockaddr: int) -> Optional[str]:
    family = ctypes.c_ushort.from_address(sockaddr).value
    if family == socket.AF_INET:
        return socket.inet_ntop(family, ctypes.string_at(sockaddr + 4, 4))
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, ctypes.string_at(sockaddr + 8, 16))
    return None


def _mtu(name: str) -> Optional[int]:
    # The ioctl answers for our own network namespace; /sys may show another one.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock.fileno(), SIOCGIFMTU, struct.pack("16si", name.encode()[:15], 0) + b"\0" * 20)
        except OSError:
            return None
    return int(struct.unpack("i", answer[16:20])[0])


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
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((target, 9))
            return str(sock.getsockname()[0])
        except OSError:
            return ""


def probe_hostname(request: Facts) -> Facts:
    """Say what this node's own name resolves to: what gloo and others take when nobody tells them better."""
    del request
    began = time.monotonic()
    try:
        answers = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return {"hostname_addresses": [], "hostname_s": round(time.monotonic() - began, 2)}
    addresses = sorted({str(answer[4][0]) for answer in answers})
    return {"hostname_addresses": addresses, "hostname_s": round(time.monotonic() - began, 2)}
