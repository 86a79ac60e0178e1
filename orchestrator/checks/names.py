"""Compares what has to be a node's own: its name, its machine id, its addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.mesh import find_place
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.facts import Facts, Survey
from orchestrator.settings import Settings
from orchestrator.values import Node

Nodes = Sequence[Node]
AllFacts = Sequence[Facts]
SAME_EVERYWHERE = ("10.0.2.15", "10.0.2.2")
"""What VirtualBox, QEMU and KubeVirt give to every machine on a net that each has for itself."""
LOCAL = ("127.", "169.254.", "fe80:", "::1")
SOFT = (
    "docker",
    "veth",
    "br-",
    "virbr",
    "cni",
    "flannel",
    "lxc",
    "lxd",
    "incus",
    "podman",
    "cali",
    "kube-",
    "dummy",
    "lo",
)
"""Software on each machine gives these the same addresses everywhere, and no packet leaves by them: kube-ipvs0 and lo hold
addresses of services on every node."""


def check_hostnames(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """No two machines have one name."""
    del settings
    return _unique(nodes, facts, lambda fact: fact.hostname, "hostname", _rename)


def _rename(node: Node, fact: Facts) -> str:
    return on_node(node, f"sudo hostnamectl set-hostname {fact.hostname}-{fact.node_rank}", terminal=True)


def check_machine_ids(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """No two machines are copies of one image that kept its machine id."""
    del settings
    return _unique(nodes, facts, lambda fact: fact.machine_id, "machine id", _new_id)


def _new_id(node: Node, fact: Facts) -> str:
    del fact
    # What D-Bus keeps would be taken as the new one.
    return on_node(
        node, "sudo rm -f /etc/machine-id /var/lib/dbus/machine-id && sudo systemd-machine-id-setup", terminal=True
    )


def _unique(
    nodes: Nodes, facts: AllFacts, key: Callable[[Facts], str], what: str, remedy: Callable[[Node, Facts], str]
) -> list[Seen]:
    seen: list[Seen] = []
    for rank, (node, fact) in enumerate(zip(nodes, facts, strict=True)):
        value = key(fact)
        # Two lines for one machine are told by same-machine.
        twins = [
            nodes[other].name
            for other, there in enumerate(facts)
            if other != rank and value and key(there) == value and there.machine != fact.machine
        ]
        if not value:
            # A container has none, and that is as it should be.
            seen.append(skip(f"no {what}"))
        elif twins:
            seen.append(warn(f"the same {what} as {', '.join(twins)}: {value}", remedy(node, fact)))
        else:
            seen.append(ok(f"{what} {value}"))
    return seen


def check_addresses_unique(
    nodes: Nodes, facts: AllFacts, survey: Survey, settings: Settings
) -> list[tuple[int | None, Seen]]:
    """No two machines have one address."""
    del settings
    held = [
        {
            entry.address: entry.interface
            for entry in fact.addresses
            if not entry.address.startswith(LOCAL) and not entry.interface.startswith(SOFT)
        }
        for fact in facts
    ]
    answers: list[tuple[int | None, Seen]] = []
    for fact, mine in zip(facts, held, strict=True):
        rank = fact.node_rank
        used = find_place(survey, rank)[1]
        twins = [
            (interface != used and bool(used), address in SAME_EVERYWHERE, address, other)
            for address, interface in mine.items()
            for other, theirs in enumerate(held)
            if other != rank and address in theirs and facts[other].machine != fact.machine
        ]
        if not twins:
            answers.append((rank, ok("addresses of its own") if mine else unknown("no addresses")))
            continue
        aside, expected, address, other = min(twins)
        later = max(rank, other)
        look = on_node(nodes[later], f"ip -brief address show dev {held[later][address]}")
        told = f"{address} ({mine[address]}) is also on {nodes[other].name}"
        if not aside:
            answers.append((rank, fail(told, f"give one of the two another address: {look}")))
        elif expected:
            answers.append((rank, ok(f"{told}, as a hypervisor gives it to each; the run uses {used}")))
        else:
            answers.append((rank, warn(f"{told}; the run uses {used}", f"give one of the two another address: {look}")))
    return answers


CHECKS = (
    Check(
        name="hostnames",
        looks_at="names of the machines",
        why="logs cannot be told apart, and whoever takes the name for the machine joins two into one",
        warns="two machines have one name",
        across=check_hostnames,
    ),
    Check(
        name="machine-ids",
        looks_at="/etc/machine-id of every node",
        why="a copied image: DHCP and licences take two machines for one",
        warns="two machines have one",
        across=check_machine_ids,
    ),
    Check(
        name="addresses-unique",
        looks_at="addresses of all interfaces but loopback and those of containers",
        why="packets reach one of the two by chance",
        fails="an interface of the run has an address that another machine has too",
        warns="another interface has one",
        whole=check_addresses_unique,
    ),
)
