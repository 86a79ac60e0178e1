"""What the kernel and the firewall's settings say of the interfaces that are up."""

from __future__ import annotations

import os

from orchestrator.node.probe_command import list_names, read_text
from orchestrator.node.probe_network import list_interfaces

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    Facts = Dict[str, Any]


UNITS = "/etc/systemd/system"


def probe_interfaces(request: Facts) -> Facts:
    """Read counters and filters of every interface with an address."""
    del request
    names = list_interfaces()
    firewalls = {"ufw": _ufw(), "firewalld": _is_enabled("firewalld"), "nft_input": _nft_input()}
    reserved = read_text("/proc/sys/net/ipv4/ip_local_reserved_ports")
    return {"network": {"interfaces": [_interface(name) for name in names], "reserved_ports": reserved, **firewalls}}


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


def _is_enabled(service: str) -> bool:
    """Tell whether systemd starts a service with the machine: a link in what wants it, readable for everybody."""
    folders = list_names(UNITS, end=".wants")
    return any(os.path.lexists(f"{UNITS}/{folder}/{service}.service") for folder in folders)


def _nft_input() -> str:
    return parse_nft_input(read_text("/etc/nftables.conf")) if _is_enabled("nftables") else ""


def parse_nft_input(text: str) -> str:
    """Name the family, the table and the chain that what comes in has to pass; empty when there is none."""
    import re  # noqa: PLC0415 - dear, and few nodes have such a file

    lines = "\n".join(line.partition("#")[0] for line in text.splitlines())
    table = chain = ""
    for words in re.findall(r"\btable\s+(?:\w+\s+)?\S+\s*\{|\bchain\s+\S+\s*\{|\bhook\s+input\b", lines):
        if words.startswith("table"):
            table = " ".join(words.rstrip("{").split()[1:])
        elif words.startswith("chain"):
            chain = words.rstrip("{").split()[1]
        elif table and chain:
            # Without a family it is IPv4's.
            return f"{table if ' ' in table else f'ip {table}'} {chain}"
    return ""


def parse_ufw(text: str) -> bool:
    """Tell whether ufw.conf switches the firewall on."""
    lines = [line.partition("#")[0].strip().lower() for line in text.splitlines()]
    return any(line.replace(" ", "") == "enabled=yes" for line in lines)
