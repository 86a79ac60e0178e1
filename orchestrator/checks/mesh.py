"""Judges the ways between all nodes: firewalls, sizes of packets, ways back, and ways that are slower than the others."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts, Survey
from orchestrator.facts.mesh import Way
from orchestrator.settings import Settings
from orchestrator.values import Node

SMALLEST = 1280
"""Every network has to let packets of this size pass, for IPv6."""
Answers = list[tuple[int | None, Seen]]


def _not_tried(survey: Survey, facts: Sequence[Facts]) -> Answers:
    why = "not tried" if survey.mesh is None else survey.mesh.skipped
    return [(fact.node_rank, skip(why)) for fact in facts] if why else []


def _ways(survey: Survey) -> tuple[Way, ...]:
    return survey.mesh.ways if survey.mesh else ()


def find_place(survey: Survey, node_rank: int) -> tuple[str, str]:
    """Give the address and the interface with which a node takes part; empty where nothing was proved."""
    reach = survey.reach
    if reach is None or node_rank >= len(reach.attempts):
        return "", ""
    won = [attempt for attempt in reach.attempts[node_rank] if attempt.address == reach.winner and attempt.ok]
    return (won[-1].local, won[-1].interface) if won else ("", "")


def check_pairs(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """Every node reaches every other one on any port, as gloo and NCCL will."""
    del settings
    if survey.mesh is None or survey.mesh.skipped:
        return _not_tried(survey, facts)
    ways = _ways(survey)
    lost = {way.source: way for way in ways if way.source == way.target}
    blamed = _blame_ends(
        [way for way in ways if not way.ok and way.step != "stalled" and way.source not in lost], len(nodes)
    )
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        rank = fact.node_rank
        mine = blamed.get(rank, [])
        if rank in lost:
            look = on_node(node, "uptime")
            answers.append((rank, fail(f"went away while the ways were tried: {lost[rank].detail}", look)))
            continue
        if not mine:
            met = {way.target for way in ways if way.source == rank and way.ok}
            answers.append((rank, ok(f"reaches and is reached by {len(met)} on any port")))
            continue
        inward = [way for way in mine if way.target == rank]
        others = sorted({way.source if way.target == rank else way.target for way in mine})
        names = ", ".join(nodes[other].name for other in others)
        said = mine[0]
        kind = f"{names} cannot reach it" if inward else f"it cannot reach {names}"
        detail = f"{kind} on ports beside the rendezvous: {said.step}, {said.detail}"
        answers.append((rank, fail(detail, _open(node, fact, survey, others, inward=bool(inward)))))
    return answers


def _blame_ends(closed: Sequence[Way], number: int) -> dict[int, list[Way]]:
    """Put each closed way to the end that is likelier the cause: the receiver's firewall, unless a sender reaches nobody."""
    outward = Counter(way.source for way in closed)
    inward = Counter(way.target for way in closed)
    shut = {rank for rank, ways in inward.items() if ways == number - 1}
    # Who reaches nobody because all others are shut is not the one to look at.
    mute = {way.source for way in closed if outward[way.source] == number - 1 and way.target not in shut}
    blamed: dict[int, list[Way]] = {}
    for way in closed:
        end = way.source if way.source in mute and way.target not in shut else way.target
        blamed.setdefault(end, []).append(way)
    return blamed


def _open(node: Node, facts: Facts, survey: Survey, others: Sequence[int], *, inward: bool) -> str:
    addresses = [address for address in (find_place(survey, other)[0] for other in others) if address]
    rules = "sudo nft list ruleset" if facts.network.nft_input else "sudo iptables -S"
    if not addresses:
        return on_node(node, rules, terminal=True)
    if not inward:
        return on_node(node, f"ip route get {addresses[0]}; {rules}", terminal=True)
    return on_node(node, "; ".join(_let_in(facts, address) for address in addresses), terminal=True)


def _let_in(facts: Facts, address: str) -> str:
    """Build the command that lets an address in, for the firewall that this node starts with."""
    six = ":" in address
    if facts.network.ufw:
        return f"sudo ufw allow from {address}"
    if facts.network.firewalld:
        return f"sudo firewall-cmd --zone=trusted --add-source={address}"
    if facts.network.nft_input:
        # A rule of iptables would stand in a table of its own, and the drop of this one would still count.
        return f"sudo nft insert rule {facts.network.nft_input} {'ip6' if six else 'ip'} saddr {address} accept"
    return f"sudo {'ip6tables' if six else 'iptables'} -I INPUT -s {address} -j ACCEPT"


def check_path_mtu(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """Packets of the interface's full size pass between all nodes without being fragmented."""
    del settings
    if survey.mesh is None or survey.mesh.skipped:
        return _not_tried(survey, facts)
    answers: Answers = []
    for fact in facts:
        mine = [way for way in _ways(survey) if way.source == fact.node_rank != way.target]
        stalled = [way for way in mine if way.step == "stalled"]
        small = [way for way in mine if _is_small(way)]
        passing = [way for way in mine if way.ok]
        if stalled or small:
            told = _tell_small(nodes, facts, survey, stalled or small)
            answers.append((fact.node_rank, (fail if stalled else warn)(told, _widen(nodes, facts, survey, mine))))
        elif passing and all(way.udp == "silent" for way in passing):
            answers.append((fact.node_rank, unknown("UDP does not come back, so it was not measured")))
        elif not passing:
            answers.append((fact.node_rank, skip("it reaches nobody")))
        else:
            answers.append((fact.node_rank, ok(f"{max((way.full_bytes or 0 for way in mine), default=0)} bytes pass")))
    return answers


def _is_small(way: Way) -> bool:
    return bool(way.passes_bytes and way.full_bytes and way.passes_bytes < way.full_bytes)


def _own_mtu(facts: Sequence[Facts], survey: Survey, node_rank: int) -> int | None:
    address, _ = find_place(survey, node_rank)
    return next((entry.mtu for entry in facts[node_rank].addresses if entry.address == address), None)


def _tell_small(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, ways: Sequence[Way]) -> str:
    names = ", ".join(nodes[way.target].name for way in ways)
    first, passes = ways[0], [way.passes_bytes or 0 for way in ways if _is_small(way)]
    if first.step == "stalled":
        told = "large packets are lost" + (f", {min(passes)} bytes pass" if passes else "")
    else:
        told = f"{first.full_bytes} bytes do not pass in one piece, {min(passes)} do"
    theirs = _own_mtu(facts, survey, first.target)
    narrow = bool(theirs and first.full_bytes and theirs < first.full_bytes)
    return f"to {names}: {told}" + (f" (its own MTU is {theirs})" if narrow and len(ways) == 1 else "")


def _widen(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, ways: Sequence[Way]) -> str:
    """Build the line that makes the sizes fit: at the other end where that one is odd, else here."""
    bad = [way for way in ways if _is_bad(way)]
    sizes = [_own_mtu(facts, survey, fact.node_rank) or 0 for fact in facts]
    full = max((way.full_bytes or 0 for way in bad), default=0)
    odd = [way.target for way in bad if 0 < sizes[way.target] < full]
    if odd and 2 * sum(size >= full for size in sizes) >= len(sizes):
        return _set_mtu(nodes, survey, odd[0], full)
    everyone = [way for way in _ways(survey) if _is_bad(way)]
    inward = Counter(way.target for way in everyone)
    # A node to which nobody gets large packets has a narrow cable.
    narrow = {way.target for way in bad if inward[way.target] == len(nodes) - 1 > 1}
    here = bad[0].source
    if narrow and inward[here] < len(nodes) - 1:
        here = min(narrow)
    most = min(
        (way.passes_bytes or 0 for way in everyone if here in (way.source, way.target) and _is_small(way)), default=0
    )
    return _set_mtu(nodes, survey, here, max(most, SMALLEST))


def _is_bad(way: Way) -> bool:
    return way.step == "stalled" or _is_small(way)


def _set_mtu(nodes: Sequence[Node], survey: Survey, node_rank: int, size: int) -> str:
    interface = find_place(survey, node_rank)[1] or "eth0"
    return on_node(nodes[node_rank], f"sudo ip link set dev {interface} mtu {size}", terminal=True)


def check_routes(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """Answers go back the way the question came, and addresses are not translated."""
    del settings
    if survey.mesh is None or survey.mesh.skipped:
        return _not_tried(survey, facts)
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        here, interface = find_place(survey, fact.node_rank)
        inward = [way for way in _ways(survey) if way.target == fact.node_rank and (way.ok or way.seen)]
        translated = [
            (way, place)
            for way in inward
            if (place := find_place(survey, way.source)[0]) and way.seen not in ("", place)
        ]
        crooked = [
            way for way in inward if way.back and way.back_interface and interface and way.back_interface != interface
        ]
        if translated:
            way, place = translated[0]
            look = on_node(node, f"ip route get {place}")
            answers.append(
                (fact.node_rank, warn(f"sees {nodes[way.source].name} as {way.seen}, which is {place}", look))
            )
        elif crooked:
            way = crooked[0]
            names = ", ".join(nodes[one.source].name for one in crooked)
            look = on_node(node, f"ip route get {way.seen} from {here}")
            detail = f"{names} come in by {interface}, but the way back is {way.back_interface} ({way.back})"
            answers.append((fact.node_rank, warn(detail, look)))
        else:
            answers.append(
                (fact.node_rank, ok("ways back are the ways there") if inward else skip("nobody reaches it"))
            )
    return answers


def check_latency(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """No way between two nodes is much longer or narrower than the others."""
    if survey.mesh is None or survey.mesh.skipped:
        return _not_tried(survey, facts)
    ways = [way for way in _ways(survey) if way.ok and way.rtt_ms is not None and way.rate_mbs]
    if not ways:
        return [(fact.node_rank, skip("no way is open")) for fact in facts]
    # One slow node has its part in most ways of three nodes: what is usual is what the best way of most nodes does.
    rtt_ms = statistics.median(min(way.rtt_ms or 0.0 for way in mine) for mine in _by_source(ways).values())
    rate = statistics.median(max(way.rate_mbs or 0.0 for way in mine) for mine in _by_source(ways).values())
    longest = max(threshold(settings, "latency", "warn_ms"), threshold(settings, "latency", "warn_times") * rtt_ms)
    least = min(threshold(settings, "latency", "warn_mbs"), threshold(settings, "latency", "warn_share") * rate)
    bad = [way for way in ways if (way.rtt_ms or 0.0) > longest or (way.rate_mbs or 0.0) < least]
    slow = {rank for rank, mine in _by_source(bad).items() if len(mine) == len(_by_source(ways)[rank]) > 1}
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        mine = [way for way in ways if way.source == fact.node_rank]
        # A node that is slow to all others is told once.
        told = [way for way in bad if way.source == fact.node_rank and (way.source in slow or way.target not in slow)]
        if told:
            words = "; ".join(f"to {nodes[way.target].name} {way.rtt_ms:g} ms, {way.rate_mbs:g} MB/s" for way in told)
            usual = f"{rtt_ms:.3g} ms and {rate:.3g} MB/s are usual"
            answers.append((fact.node_rank, warn(f"{words}; {usual}", on_node(node, "ip -s link"))))
        elif mine:
            good = [way.rtt_ms or 0.0 for way in mine if way not in bad]
            best = f"at most {max(good):.3g} ms to another node" if good else "slow only to nodes that are slow to all"
            answers.append((fact.node_rank, ok(best)))
        else:
            answers.append((fact.node_rank, skip("it reaches nobody")))
    return answers


def _by_source(ways: Sequence[Way]) -> dict[int, list[Way]]:
    found: dict[int, list[Way]] = {}
    for way in ways:
        found.setdefault(way.source, []).append(way)
    return found


CHECKS = (
    Check(
        name="pairs",
        headline=True,
        looks_at="TCP between every two nodes, on ports that the kernel picks (up to 16 nodes)",
        why="gloo and NCCL connect every two nodes on ports of their own, and would hang",
        fails="a node cannot reach another",
        whole=check_pairs,
    ),
    Check(
        name="path-mtu",
        looks_at="packets of full size between every two nodes, sent so that nobody may fragment them",
        why="the run would connect and then stall at its first large message",
        fails="a payload stalls",
        warns="smaller packets pass than the interface sends",
        whole=check_path_mtu,
    ),
    Check(
        name="routes",
        looks_at="which address a node is seen with, and by which interface the answers leave",
        why="answers by another way are dropped by strict routers, and NCCL takes the wrong interface",
        warns="an address is translated, or the way back is another one",
        whole=check_routes,
    ),
    Check(
        name="latency",
        looks_at="round trip and rate of a short payload between every two nodes",
        why="one long way holds up every collective",
        warns="above {warn_ms:g} ms and {warn_times:g} x what is usual, or below {warn_mbs:g} MB/s and {warn_share:g} of it",
        whole=check_latency,
    ),
)
