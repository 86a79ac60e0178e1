"""Proves the addresses: the head listens, every node reads its nonce, and the way that all have is taken."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.facts import Facts
from orchestrator.facts.reach import Attempt, ReachFacts
from orchestrator.light_dataclass import dataclass
from orchestrator.nodeline import is_numeric
from orchestrator.phases.foreseen import TEST_S, UNSURE, EarlyReach, foresee_address, foresee_port
from orchestrator.phases.later import Later
from orchestrator.settings import Settings
from orchestrator.transport import Channel, Link
from orchestrator.transport.answers import read_answer, read_frame
from orchestrator.transport.fanout import fan_out
from orchestrator.values import Node

ANSWER_S = 20.0
DECOYS = ("docker", "veth", "br-", "virbr", "cni", "flannel", "lxc", "podman")


@dataclass(frozen=True)
class Place:
    """Where a node takes part: its own address and the interface that holds it."""

    address: str
    interface: str


class PortHold:
    """The port on the head, held by a program of ours until the store of the run takes it."""

    def __init__(self, channel: Channel, port: int, where: str) -> None:
        self.port = port
        self._channel = channel
        self._where = where

    def ask_release(self) -> None:
        """Let it stop listening and keep the port, so that the run's store can bind it and nobody else.

        Raises:
            LinkLostError: the head is gone.
        """
        self._channel.send({"op": "release"})

    def await_release(self) -> None:
        """Wait until it has.

        Raises:
            LinkLostError: the head does not answer.
        """
        read_frame(self._channel, self._where, ANSWER_S)

    def close(self) -> None:
        """Let go of the port."""
        self._channel.close()


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What all nodes have proved; without a master address nothing was."""

    master_addr: str
    master_port: int
    places: tuple[Place, ...]
    reach: ReachFacts
    hold: PortHold | None


@dataclass(frozen=True)
class PortQuestion:
    """The head is asked for a port; it needs to know nothing of the other nodes for that."""

    channel: Later[Channel]
    nonce: str
    early: EarlyReach

    def close(self) -> None:
        """Let go of the port, if there is one."""
        self.early.close()
        self.channel.cancel()


def ask_for_port(link: Link, settings: Settings) -> PortQuestion:
    """Let the head hold a port, and wait neither for its answer nor for the channel, which costs two round trips."""
    nonce, head = secrets.token_hex(16), link.node
    names = [head.addr] if head.addr and not is_numeric(head.addr) else []
    proposed = foresee_port()
    request = {"port": settings.master_port, "proposed": proposed, "nonce": nonce, "names": names}
    channel = Later("hold", lambda: link.open("hold", request), lambda channel: channel.close())
    return PortQuestion(channel, nonce, EarlyReach(foresee_address(head), settings.master_port or proposed, nonce))


def prove_addresses(
    links: Sequence[Link],
    nodes: Sequence[Node],
    facts: Sequence[Facts],
    settings: Settings,
    question: PortQuestion | None = None,
) -> Proof:
    """Hold a port on the head and let every node come to it; the hold stays open in the proof.

    Raises:
        LinkLostError: a node does not answer.
    """
    question = question or ask_for_port(links[0], settings)
    channel, nonce = question.channel.take(), question.nonce
    try:
        held = read_frame(channel, nodes[0].name, ANSWER_S).header
        if "trouble" in held:
            channel.close()
            return _unproved(
                ReachFacts(port=held.get("port"), trouble=str(held["trouble"]), owner=held.get("owner") or "")
            )
        hold = PortHold(channel, int(held["port"]), nodes[0].name)
        resolved = held.get("resolved", {})
        candidates = build_candidates(nodes[0], facts[0], resolved, one_machine=_one_machine(facts))
        request = {"port": hold.port, "nonce": nonce, "limit_s": TEST_S}
        attempts = _try_candidates(links, facts, candidates, request, settings, question.early)
        # A try that nobody waits for would keep the porter from becoming what starts the run.
        question.early.close()
    except BaseException:
        channel.close()
        raise
    winner = next((one for one in candidates if all(_at(tries, one).ok for tries in attempts)), "")
    reach = ReachFacts(port=hold.port, winner=winner, attempts=tuple(tuple(tries.values()) for tries in attempts))
    if not winner:
        hold.close()
        return _unproved(reach)
    places = tuple(
        _place(node, fact, _at(tries, winner), winner, is_head=rank == 0)
        for rank, (node, fact, tries) in enumerate(zip(nodes, facts, attempts, strict=True))
    )
    return Proof(master_addr=winner, master_port=hold.port, places=places, reach=reach, hold=hold)


def _unproved(reach: ReachFacts) -> Proof:
    return Proof(master_addr="", master_port=0, places=(), reach=reach, hold=None)


def _one_machine(facts: Sequence[Facts]) -> bool:
    keys = {fact.machine for fact in facts}
    return len(facts) == 1 or (len(keys) == 1 and all(all(key) for key in keys))


def build_candidates(
    head: Node, facts: Facts, resolved: Mapping[str, Sequence[str]], *, one_machine: bool
) -> tuple[str, ...]:
    """List the head's addresses, the likeliest first; an address of the list or an interface leaves no choice."""
    if head.addr:
        return tuple(resolved.get(head.addr, ())) or (head.addr,)
    held = [
        entry.address for entry in facts.addresses if not _is_decoy(entry.interface) or entry.interface == head.iface
    ]
    if head.iface:
        held = [entry.address for entry in facts.addresses if entry.interface == head.iface]
        first: list[str] = []
    else:
        first = [facts.ssh_server_address, *([head.host] if is_numeric(head.host) else [])]
    order = {"v4": 0, "v6": 1, "link local": 2, "loopback": 3}
    others = sorted(held, key=lambda address: order[_family(address)])
    usable = [address for address in (*first, *others) if address and _is_usable(address, one_machine=one_machine)]
    return tuple(dict.fromkeys(usable))


def _is_decoy(interface: str) -> bool:
    return interface.startswith(DECOYS)


def _family(address: str) -> str:
    value = ipaddress.ip_address(address)
    if value.is_loopback:
        return "loopback"
    if value.is_link_local:
        return "link local"
    return f"v{value.version}"


def _is_usable(address: str, *, one_machine: bool) -> bool:
    family = _family(address)
    # A link-local IPv6 address means nothing on another node; loopback only where there is no other machine.
    if family == "link local":
        return ":" not in address
    return family != "loopback" or one_machine


def _try_candidates(
    links: Sequence[Link],
    facts: Sequence[Facts],
    candidates: Sequence[str],
    request: Mapping[str, Any],
    settings: Settings,
    early: EarlyReach,
) -> list[dict[str, Attempt]]:
    """Try the likeliest address from everywhere; the others only when it does not do for all."""
    attempts: list[dict[str, Attempt]] = [{} for _ in links]
    for batch in (candidates[:1], candidates[1:]):
        if not batch:
            continue

        def ask(rank: int, batch: Sequence[str] = batch) -> Mapping[str, Attempt]:
            begun = early.take(rank, batch[0], request["port"])
            return _ask_node(links[rank], facts[rank], batch, request, begun, is_head=rank == 0)

        for tries, found in zip(attempts, fan_out(ask, range(len(links)), settings.fanout), strict=True):
            tries.update(found)
        if any(all(_at(tries, one).ok for tries in attempts) for one in batch):
            break
    return attempts


def _ask_node(
    link: Link,
    facts: Facts,
    candidates: Sequence[str],
    request: Mapping[str, Any],
    begun: Channel | None,
    *,
    is_head: bool,
) -> dict[str, Attempt]:
    """Let one node try the head's addresses; what cannot be tried fails here, what has begun is waited for."""
    # The head comes from its own address anyway; the others from the one that the list gives them.
    sources, broken = ({}, {}) if is_head else find_sources(link.node, facts, candidates)
    asked = [address for address in candidates if address not in broken]
    early = [] if begun is None else read_answer(begun, link.node.name, TEST_S + ANSWER_S)["results"]
    results = [result for result in early if result["ok"] or result["step"] not in UNSURE]
    asked = [address for address in asked if all(result["address"] != address for result in results)]
    if asked:
        answer = link.call("reach", {**request, "candidates": asked, "sources": sources}, TEST_S + ANSWER_S)
        results += answer["results"]
    found = [Attempt(**result) for result in results]
    found = [one.model_copy(update={"interface": facts.interface_of(one.local)}) if one.ok else one for one in found]
    return {**broken, **{attempt.address: attempt for attempt in found}}


def find_sources(node: Node, facts: Facts, candidates: Sequence[str]) -> tuple[dict[str, str], dict[str, Attempt]]:
    """Choose the address that a node comes from, by family, and refuse the candidates for which it has none."""
    sources: dict[str, str] = {}
    if node.addr:
        sources["v6" if ":" in node.addr else "v4"] = node.addr
    elif node.iface:
        for entry in facts.addresses:
            if entry.interface == node.iface and not entry.address.startswith("fe80:"):
                sources.setdefault("v6" if ":" in entry.address else "v4", entry.address)
    else:
        return {}, {}
    broken = {}
    for address in candidates:
        kind = "v6" if ":" in address else "v4"
        if kind not in sources:
            detail = f"{node.addr} is of the other family" if node.addr else f"{node.iface} has no IP{kind} address"
            broken[address] = Attempt(address=address, ok=False, step="no such address", detail=detail)
    return sources, broken


def _at(tries: Mapping[str, Attempt], address: str) -> Attempt:
    return tries.get(address) or Attempt(address=address, ok=False, step="not tried")


def _place(node: Node, facts: Facts, attempt: Attempt, winner: str, *, is_head: bool) -> Place:
    if not is_head:
        return Place(attempt.local, node.iface or attempt.interface)
    # Behind an address translation no interface of the head holds the address that the others use.
    own = facts.interface_of(winner) or facts.interface_of(facts.ssh_server_address) or attempt.interface
    return Place(winner, node.iface or own)
