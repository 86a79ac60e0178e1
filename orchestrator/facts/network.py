"""Interfaces, routes and kernel settings beyond the addresses."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class InterfaceFacts(FactGroup):
    """What the kernel says of one interface that is up."""

    name: str
    rp_filter: int | None = None
    """1: packets that would be answered by another interface are dropped."""
    duplex: str = ""
    carrier_changes: int | None = None
    errors: int | None = None
    """Received and sent with errors, since boot."""
    dropped: int | None = None
    packets: int | None = None


class NetworkFacts(FactGroup):
    """Interfaces, routes and kernel settings beyond the addresses."""

    interfaces: tuple[InterfaceFacts, ...] = ()
    ufw: bool | None = None
    """The firewall of Debian and Ubuntu is switched on."""
    firewalld: bool | None = None
    """That of Fedora and its like starts with the machine."""
    nft_input: str = ""
    """Family, table and chain of nftables that what comes in has to pass, where they are loaded with the machine."""
    reserved_ports: str = ""
    """Ports and ranges that no outgoing connection is given, as the kernel writes them."""
