"""Judges how every node came to the head's address and port."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip
from orchestrator.facts import Facts, Survey
from orchestrator.facts.reach import Attempt, ReachFacts
from orchestrator.settings import Settings
from orchestrator.values import Node


def check_master_port(
    nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings
) -> list[tuple[int | None, Seen]]:
    """The rendezvous port could be held on the head."""
    del facts, settings
    reach = survey.reach
    if reach is None:
        return [(0, skip("not tried"))]
    if not reach.trouble:
        return [(0, ok(f"port {reach.port} is free"))]
    if reach.port is None:
        return [(0, fail(f"no port can be opened: {reach.trouble}", on_node(nodes[0], "ss -ltn")))]
    owner = f" by {reach.owner}" if reach.owner else ""
    busy = "in use" in reach.trouble.lower()
    look = on_node(nodes[0], f"ss -ltnp sport = :{reach.port}")
    detail = f"port {reach.port} is taken{owner}" if busy else f"port {reach.port} cannot be opened: {reach.trouble}"
    remedy = f"leave out --master-port {reach.port}: a free port is picked" + (f"; to look: {look}" if busy else "")
    return [(0, fail(detail, remedy))]


def check_addresses(
    nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings
) -> list[tuple[int | None, Seen]]:
    """Every node comes to the head, proved by a connection; else at which step it ended and what to do."""
    del settings
    reach = survey.reach
    if reach is None or reach.trouble:
        return [(fact.node_rank, skip("not tried: the head holds no port" if reach else "not tried")) for fact in facts]
    tried = list(dict.fromkeys(attempt.address for tries in reach.attempts for attempt in tries))
    if not tried:
        remedy = f"add addr=ADDRESS to {nodes[0].name} in the node list"
        return [(0, fail("it has no address that another node could reach", remedy))]
    shown = reach.winner or max(tried, key=lambda address: sum(_at(tries, address).ok for tries in reach.attempts))
    return [
        (rank, _judge(nodes, facts[0], node, tries, shown, reach))
        for rank, (node, tries) in enumerate(zip(nodes, reach.attempts, strict=True))
    ]


def _at(tries: Sequence[Attempt], address: str) -> Attempt:
    found = [attempt for attempt in tries if attempt.address == address]
    return found[-1] if found else Attempt(address=address, ok=False, step="not tried")


def _judge(
    nodes: Sequence[Node], head: Facts, node: Node, tries: Sequence[Attempt], shown: str, reach: ReachFacts
) -> Seen:
    attempt = _at(tries, shown)
    port = reach.port or 0
    if attempt.ok:
        return ok(f"reaches {shown} port {port} from {attempt.local} ({attempt.interface}) in {attempt.took_ms:g} ms")
    others = "; ".join(f"{other.address}: {other.step}" for other in tries if not other.ok and other is not attempt)
    there = shown if shown == nodes[0].name else f"{nodes[0].name} at {shown}"
    detail = f"does not reach {there} port {port}: {attempt.step}, {attempt.detail}"
    return fail(detail + (f" (also tried {others})" if others else ""), _remedy(nodes[0], head, node, attempt, port))


def is_global(address: str) -> bool:
    """Tell an address that means something beyond this node and this link."""
    value = ipaddress.ip_address(address)
    return not value.is_loopback and not value.is_link_local


def _remedy(head: Node, facts: Facts, node: Node, attempt: Attempt, port: int) -> str:
    if head.addr and not facts.interface_of(attempt.address):
        held = ", ".join(
            f"{entry.address} ({entry.interface})" for entry in facts.addresses if is_global(entry.address)
        )
        return f"correct addr={head.addr} of {head.name} in the node list: {head.name} has {held or 'no address'}"
    other = f"{'correct' if head.addr else 'add'} addr=ADDRESS of {head.name} in the node list"
    if attempt.step == "no such address":
        return f"correct addr= or iface= of {node.name} in the node list; its addresses: {on_node(node, 'ip -brief address')}"
    if attempt.step in ("timeout", "forbidden"):
        opened = on_node(head, f"sudo ufw allow {port}/tcp", terminal=True)
        # Without the flag the next start would pick another port.
        return f"open the port and keep to it: {opened}, then --master-port {port}; or another address: {other}"
    if attempt.step == "no route":
        return f"{on_node(node, f'ip route get {attempt.address}')}; or name an address that it has a way to: {other}"
    return f"{attempt.address} is another machine or is closed: {other}"


CHECKS = (
    Check(
        name="master-port",
        looks_at="the rendezvous port on the head",
        why="node 0 would end with EADDRINUSE while the others wait for it",
        fails="it cannot be held",
        whole=check_master_port,
    ),
    Check(
        name="addresses",
        headline=True,
        looks_at="a connection of every node to the head's address and port",
        why="torchrun would wait in silence for minutes",
        fails="a node does not reach the head",
        whole=check_addresses,
    ),
)
