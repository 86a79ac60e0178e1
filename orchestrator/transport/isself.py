"""Tells whether an address is one of this machine's own."""

from __future__ import annotations

import ipaddress
import socket


def is_own_address(address: str) -> bool:
    """Say whether a numeric address stands on an interface of this machine.

    The kernel picks the address itself as the source of a packet to it exactly then. No packet is sent.
    """
    text = address.partition("%")[0]
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return False
    if parsed.is_loopback:
        return True
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6  # noqa: PLR2004 - IP has two versions
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return False
        return str(probe.getsockname()[0]).partition("%")[0] == text
