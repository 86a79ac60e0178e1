"""Judges the interfaces that the run will use, and variables that name others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.mesh import Answers, find_place
from orchestrator.checks.names import SOFT
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Address, Facts, Survey
from orchestrator.settings import Settings
from orchestrator.values import Node

NCCL, GLOO = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"
STRICT = 1


def _entry(survey: Survey, fact: Facts) -> Address | None:
    address, interface = find_place(survey, fact.node_rank)
    found = [entry for entry in fact.addresses if entry.address == address]
    return next((entry for entry in found if entry.interface == interface), found[0] if found else None)


def _equal(
    nodes: Sequence[Node],
    facts: Sequence[Facts],
    survey: Survey,
    value_of: tuple[str, Callable[[Address], int | None]],
    differ: Callable[[Node, Address, int, int], Seen],
) -> Answers:
    """Judge a figure of each node's data interface against the usual one; differ gets the node's own and the usual."""
    what, read = value_of
    entries = [_entry(survey, fact) for fact in facts]
    values = [None if entry is None else read(entry) for entry in entries]
    known = Counter(value for value in values if value is not None)
    usual = max(known, key=lambda value: (known[value], value), default=0)
    answers: Answers = []
    for node, fact, entry, value in zip(nodes, facts, entries, values, strict=True):
        if entry is None:
            seen = skip("no interface was proved")
        elif value is None:
            seen = skip(f"{entry.interface} does not tell its {what}")
        elif value == usual:
            seen = ok(f"{what} {value} on {entry.interface}")
        else:
            seen = differ(node, entry, value, usual)
        answers.append((fact.node_rank, seen))
    return answers


def check_mtu_equal(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """The interfaces of the run send packets of one size."""
    del settings

    def differ(node: Node, entry: Address, mtu: int, usual: int) -> Seen:
        remedy = on_node(node, f"sudo ip link set dev {entry.interface} mtu {usual}", terminal=True)
        return warn(f"MTU {mtu} on {entry.interface}, but {usual} elsewhere", remedy)

    return _equal(nodes, facts, survey, ("MTU", lambda entry: entry.mtu), differ)


def check_speed_equal(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """The interfaces of the run are equally fast."""
    del settings
    what = "speed in Mbit/s"

    def differ(node: Node, entry: Address, speed: int, usual: int) -> Seen:
        if speed > usual:
            return ok(f"{what} {speed} on {entry.interface}")
        look = on_node(node, f"sudo ethtool {entry.interface}", terminal=True)
        return warn(f"{speed} Mbit/s on {entry.interface}, but {usual} elsewhere", look)

    return _equal(nodes, facts, survey, (what, lambda entry: entry.speed_mbit), differ)


def check_address_family(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """The interfaces of the run begin with addresses of one family: gloo takes the first."""
    del settings
    firsts = [_first_address(fact, find_place(survey, fact.node_rank)[1]) for fact in facts]
    known = Counter(":" in address for address in firsts if address)
    six = known[True] > known[False]
    answers: Answers = []
    for node, fact, address in zip(nodes, facts, firsts, strict=True):
        interface = find_place(survey, fact.node_rank)[1]
        if not address:
            answers.append((fact.node_rank, skip("no interface was proved")))
        elif (":" in address) == six:
            answers.append((fact.node_rank, ok(f"{'IPv6' if six else 'IPv4'} on {interface}")))
        else:
            told = f"gloo takes {address} of {interface}, but {'IPv6' if six else 'IPv4'} on the others"
            look = on_node(node, f"ip -brief address show dev {interface}")
            answers.append((fact.node_rank, warn(told, look)))
    return answers


def _first_address(fact: Facts, interface: str) -> str:
    held = [entry.address for entry in fact.addresses if entry.interface == interface]
    return next((address for address in held if not address.startswith("fe80:")), "")


def check_link_errors(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """The interface of the run loses nothing and speaks both ways at once."""
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        interface = find_place(survey, fact.node_rank)[1]
        found = next((one for one in fact.network.interfaces if one.name == interface), None)
        if found is None:
            answers.append((fact.node_rank, skip("no interface was proved, or it has no counters")))
            continue
        most = threshold(settings, "link-errors", "warn_per_million") * max(found.packets or 0, 1_000_000) / 1e6
        look = on_node(node, f"ip -s link show dev {interface}")
        if found.duplex == "half":
            answers.append((fact.node_rank, warn(f"{interface} is half duplex", look)))
        elif (found.errors or 0) > most:
            told = f"{found.errors} errors in {found.packets} packets on {interface}"
            answers.append((fact.node_rank, warn(told, look)))
        elif (found.carrier_changes or 0) >= threshold(settings, "link-errors", "warn_changes"):
            told = f"{interface} lost or found its carrier {found.carrier_changes} times since boot"
            answers.append((fact.node_rank, warn(told, look)))
        elif found.errors is None:
            answers.append((fact.node_rank, skip(f"{interface} does not count")))
        else:
            answers.append((fact.node_rank, ok(f"{found.errors} errors on {interface}")))
    return answers


def check_rp_filter(node: Node, facts: Facts, settings: Settings) -> Seen:
    """No interface drops packets because another one leads to their sender."""
    del settings
    addresses = {entry.interface: entry.address for entry in facts.addresses if "." in entry.address}
    strict = [one.name for one in facts.network.interfaces if one.rp_filter == STRICT and one.name in addresses]
    nets: dict[str, list[str]] = {}
    for name in strict:
        # Without the masks the first three figures are the subnet that is meant nearly always.
        nets.setdefault(addresses[name].rpartition(".")[0], []).append(name)
    shared = next((names for names in nets.values() if len(names) > 1), None)
    if shared is None:
        return ok("no two interfaces in one subnet") if addresses else skip("no interfaces")
    remedy = "; ".join(f"sudo sysctl -w net.ipv4.conf.{name}.rp_filter=2" for name in shared)
    return warn(f"{', '.join(shared)} are in one subnet and rp_filter is 1", on_node(node, remedy, terminal=True))


def check_port_range(node: Node, facts: Facts, settings: Settings) -> Seen:
    """No outgoing connection takes the port of the rendezvous."""
    port = settings.master_port
    if facts.node_rank:
        return skip("it is not the head")
    if port is None:
        return skip("a free port is picked")
    if len(facts.port_range) < 2:  # noqa: PLR2004 - lowest and highest
        return unknown("the range is not told")
    low, high = facts.port_range[0], facts.port_range[-1]
    if not low <= port <= high:
        return ok(f"port {port} is outside {low}-{high}")
    if _is_reserved(port, facts.network.reserved_ports):
        return ok(f"port {port} is reserved among {low}-{high}")
    # What is reserved already has to stay so.
    reserved = ",".join(word for word in (facts.network.reserved_ports, str(port)) if word)
    remedy = on_node(node, f"sudo sysctl -w net.ipv4.ip_local_reserved_ports={reserved}", terminal=True)
    return warn(f"port {port} is among {low}-{high}, which outgoing connections are given", remedy)


def _is_reserved(port: int, ranges: str) -> bool:
    bounds = [word.partition("-") for word in ranges.split(",") if word]
    return any(int(low) <= port <= int(high or low) for low, _, high in bounds if low.isdigit())


def check_socket_ifname(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """Variables that name an interface name one that is there, and the one that was proved."""
    del settings
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        named = survey.named_interfaces[fact.node_rank] if fact.node_rank < len(survey.named_interfaces) else {}
        proved = find_place(survey, fact.node_rank)[1]
        alone = len(nodes) == 1
        seen = [_judge_ifname(node, fact, name, value, proved, alone=alone) for name, value in sorted(named.items())]
        worst = [one for one in seen if one.status == "fail"] or [one for one in seen if one.status == "warn"] or seen
        answers.append((fact.node_rank, worst[0] if worst else skip("none is given: the proved interface is set")))
    return answers


def _judge_ifname(node: Node, fact: Facts, name: str, value: str, proved: str, *, alone: bool) -> Seen:
    if fact.why_unknown("addresses"):
        return unknown(fact.why_unknown("addresses"))
    interfaces = list(dict.fromkeys(entry.interface for entry in fact.addresses))
    chosen = [interface for interface in interfaces if _matches(interface, name, value)]
    missing = [word for word in value.split(",") if word not in interfaces] if name == GLOO else []
    remedy = f"leave {name} out: each node gets the interface that was proved" + (f", {proved} here" if proved else "")
    # Without a GPU nobody loads NCCL, and what is told it hurts nobody.
    refuse = warn if name == NCCL and not fact.gpus and not fact.gpu_kind else fail
    if not chosen or missing:
        word = value if not chosen else ", ".join(missing)
        return refuse(f"{name}={word} names no interface with an address; there are {', '.join(interfaces)}", remedy)
    told = f"{name}={value} is {', '.join(chosen)}"
    if not alone and all(interface.startswith(SOFT) for interface in chosen) and proved not in chosen:
        return refuse(f"{told}, which no other node reaches" + (f"; {proved} was proved" if proved else ""), remedy)
    if proved and proved not in chosen:
        return warn(f"{told}, but {proved} was proved", f"add iface={chosen[0]} to {node.name}, so that it is proved")
    return ok(told)


def _matches(interface: str, name: str, value: str) -> bool:
    """Read the value as NCCL and gloo do: NCCL takes prefixes, = for exact names and ^ for all others."""
    if name == GLOO:
        return interface in value.split(",")
    text = value.lstrip("^=")
    exact = value.startswith(("=", "^="))
    hit = any(interface == word if exact else interface.startswith(word) for word in text.split(",") if word)
    return hit != value.startswith("^") and (interface != "lo" or not value.startswith("^"))


CHECKS = (
    Check(
        name="socket-ifname",
        looks_at="NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME of the run",
        why="one node fails at once and the others wait for it for minutes",
        fails="one names no interface with an address, or one that never leaves the node",
        warns="one names another interface than the one that was proved",
        whole=check_socket_ifname,
    ),
    Check(
        name="mtu-equal",
        looks_at="MTU of the interfaces of the run",
        why="large packets of one node are too large for another",
        warns="a node differs from most",
        whole=check_mtu_equal,
    ),
    Check(
        name="speed-equal",
        looks_at="speed of the interfaces of the run",
        why="the slowest interface holds up every collective",
        warns="a node differs from most",
        whole=check_speed_equal,
    ),
    Check(
        name="address-family",
        looks_at="the first address of the interfaces of the run",
        why="gloo takes the first address of an interface, and IPv4 does not meet IPv6",
        warns="it is IPv4 on some nodes and IPv6 on others",
        whole=check_address_family,
    ),
    Check(
        name="link-errors",
        looks_at="errors, carrier and duplex of the interfaces of the run",
        why="a bad cable costs most of the speed",
        warns="more than {warn_per_million:g} errors in a million packets, {warn_changes:g} changes of the carrier, or half duplex",
        whole=check_link_errors,
    ),
    Check(
        name="rp-filter",
        looks_at="interfaces in one subnet, and the kernel's filter of ways back",
        why="connections to one of them time out",
        warns="two interfaces are in one subnet and both filter strictly",
        each=check_rp_filter,
    ),
    Check(
        name="port-range",
        looks_at="--master-port against ip_local_port_range of the head",
        why="an outgoing connection can take the port between check and start",
        warns="it is inside",
        each=check_port_range,
    ),
)
