"""What the kernel and the firewall's settings say of the interfaces that are up."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from orchestrator.node.probe_command import read_text
from orchestrator.node.probe_network import read_addresses

Facts = Dict[str, Any]


def probe_interfaces(request: Facts) -> Facts:
    """Read counters and filters of every interface with an address."""
    del request
    names = sorted({entry["interface"] for entry in read_addresses() if entry["interface"] != "lo"})
    return {"network": {"interfaces": [_interface(name) for name in names], "ufw": _ufw()}}


def _interface(name: str) -> Facts:
    base = f"/sys/class/net/{name}"
    filters = [_whole(f"/proc/sys/net/ipv4/conf/{place}/rp_filter") for place in ("all", name)]
    known = [value for value in filters if value is not None]
    return {
        "name": name,
        # The kernel takes the larger one of the two.
        "rp_filter": max(known, default=None),
        "duplex": read_text(f"{base}/duplex"),
        "carrier_changes": _whole(f"{base}/carrier_changes"),
        "errors": _sum(base, ("rx_errors", "tx_errors")),
        "dropped": _sum(base, ("rx_dropped", "tx_dropped")),
        "packets": _sum(base, ("rx_packets", "tx_packets")),
    }


def _sum(base: str, names: "tuple[str, ...]") -> Optional[int]:
    found: List[Optional[int]] = [_whole(f"{base}/statistics/{name}") for name in names]
    known = [value for value in found if value is not None]
    return sum(known) if known else None


def _whole(path: str) -> Optional[int]:
    text = read_text(path)
    return int(text) if text.isdigit() else None


def _ufw() -> Optional[bool]:
    if not os.path.exists("/etc/ufw/ufw.conf"):
        return None
    return parse_ufw(read_text("/etc/ufw/ufw.conf"))


def parse_ufw(text: str) -> bool:
    """Tell whether ufw.conf switches the firewall on."""
    lines = [line.partition("#")[0].strip().lower() for line in text.splitlines()]
    return any(line.replace(" ", "") == "enabled=yes" for line in lines)
