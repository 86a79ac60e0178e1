"""Judges the interfaces that the run will use, and variables that name others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.mesh import Answers, find_place
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Address, Facts, Survey
from orchestrator.settings import Settings
from orchestrator.values import Node

VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
STRICT = 1


def _entry(survey: Survey, fact: Facts) -> Address | None:
    address, interface = find_place(survey, fact.node_rank)
    found = [entry for entry in fact.addresses if entry.address == address]
    return next((entry for entry in found if entry.interface == interface), found[0] if found else None)


def _equal(
    nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, what: str, name: str
) -> list[tuple[Node, Facts, Address | None, Seen | None, int | None]]:
    """Pair each node with its data interface, a value of it and the usual value."""
    entries = [_entry(survey, fact) for fact in facts]
    values = [None if entry is None else getattr(entry, name) for entry in entries]
    known = Counter(value for value in values if value is not None)
    usual = max(known, key=lambda value: (known[value], value)) if known else None
    rows = []
    for node, fact, entry, value in zip(nodes, facts, entries, values, strict=True):
        seen: Seen | None = None
        if entry is None:
            seen = skip("no interface was proved")
        elif value is None:
            seen = skip(f"{entry.interface} does not tell its {what}")
        elif value == usual:
            seen = ok(f"{what} {value} on {entry.interface}")
        rows.append((node, fact, entry, seen, usual))
    return rows


def check_mtu_equal(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """The interfaces of the run send packets of one size."""
    del settings
    answers: Answers = []
    for node, fact, entry, seen, usual in _equal(nodes, facts, survey, "MTU", "mtu"):
        if seen is not None or entry is None:
            answers.append((fact.node_rank, seen or skip("no interface was proved")))
            continue
        remedy = on_node(node, f"sudo ip link set dev {entry.interface} mtu {usual}", terminal=True)
        answers.append((fact.node_rank, warn(f"MTU {entry.mtu} on {entry.interface}, but {usual} elsewhere", remedy)))
    return answers


def check_speed_equal(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """The interfaces of the run are equally fast."""
    del settings
    answers: Answers = []
    for node, fact, entry, seen, usual in _equal(nodes, facts, survey, "speed in Mbit/s", "speed_mbit"):
        if seen is not None or entry is None:
            answers.append((fact.node_rank, seen or skip("no interface was proved")))
            continue
        look = on_node(node, f"sudo ethtool {entry.interface}", terminal=True)
        told = f"{entry.speed_mbit} Mbit/s on {entry.interface}, but {usual} elsewhere"
        answers.append((fact.node_rank, warn(told, look)))
    return answers


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
        elif found.errors is None:
            answers.append((fact.node_rank, unknown(f"{interface} does not count")))
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
    if low <= port <= high:
        remedy = on_node(node, f"sudo sysctl -w net.ipv4.ip_local_reserved_ports={port}", terminal=True)
        return warn(f"port {port} is among {low}-{high}, which outgoing connections are given", remedy)
    return ok(f"port {port} is outside {low}-{high}")


def check_socket_ifname(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """Variables that name an interface name one that is there, and the one that was proved."""
    given = {**settings.env, **dict(word.partition("=")[::2] for word in settings.flag_env if "=" in word)}
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        values = {name: value for name, value in {**given, **dict(node.env)}.items() if name in VARIABLES}
        seen = [
            _judge_ifname(fact, name, value, find_place(survey, fact.node_rank)[1]) for name, value in values.items()
        ]
        worst = [one for one in seen if one.status == "fail"] or [one for one in seen if one.status == "warn"] or seen
        answers.append((fact.node_rank, worst[0] if worst else skip("none is given: the proved interface is set")))
    return answers


def _judge_ifname(fact: Facts, name: str, value: str, proved: str) -> Seen:
    interfaces = list(dict.fromkeys(entry.interface for entry in fact.addresses))
    chosen = [interface for interface in interfaces if _matches(interface, name, value)]
    remedy = f"leave {name} out: each node gets the interface that was proved" + (f", {proved} here" if proved else "")
    if not chosen:
        return fail(f"{name}={value} names no interface with an address; there are {', '.join(interfaces)}", remedy)
    if proved and proved not in chosen:
        return warn(f"{name}={value} is {', '.join(chosen)}, but {proved} was proved", remedy)
    return ok(f"{name}={value} is {', '.join(chosen)}")


def _matches(interface: str, name: str, value: str) -> bool:
    """Read the value as NCCL and gloo do: NCCL takes prefixes, = for exact names and ^ for all others."""
    if name == "GLOO_SOCKET_IFNAME":
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
        fails="one names no interface with an address",
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
        name="link-errors",
        looks_at="errors and duplex of the interfaces of the run",
        why="a bad cable costs most of the speed",
        warns="more than {warn_per_million:g} errors in a million packets, or half duplex",
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
