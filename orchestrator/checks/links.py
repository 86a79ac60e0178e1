"""Names the node or the link that is closed or slow, with its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.collectives import TWO
from orchestrator.checks.measured import Answers, over_collectives
from orchestrator.checks.pairs import Blame, Limits, find_blame
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts
from orchestrator.facts.collectives import CollectivesFacts, PairFacts
from orchestrator.settings import Settings
from orchestrator.values import Node

MOST_PEERS = 6


def check_links(nodes: Sequence[Node], facts: Sequence[Facts], found: CollectivesFacts, settings: Settings) -> Answers:
    """No node and no link between two is closed, or much slower than the others."""
    del facts
    pairs = found.pairs
    if not pairs:
        return [(None, skip("one node" if len(nodes) < TWO else "no pairs were measured"))]
    enough = threshold(settings, "links", "enough_mbs") if found.device == "cpu" else 0.0
    limits = Limits(share=threshold(settings, "links", "warn_share"), enough_mbs=enough)
    blame = find_blame(pairs, limits)
    least = threshold(settings, "links", "fail_share") * blame.usual_mbs
    answers: Answers = [(rank, _judge_node(nodes, rank, blame, least)) for rank in sorted(blame.nodes)]
    answers += _judge_links(nodes, found.addresses, blame, least)
    if not answers:
        slowest = min(
            (rate for pair in pairs for rate in (pair.there_mbs, pair.back_mbs) if rate is not None), default=0.0
        )
        return [
            (
                None,
                ok(
                    f"{len(pairs)} pair{'s' if len(pairs) > 1 else ''}, the slowest {slowest:.0f} of {blame.usual_mbs:.0f} MB/s"
                ),
            )
        ]
    return answers


def _judge_node(nodes: Sequence[Node], rank: int, blame: Blame, least: float) -> Seen:
    bad = blame.nodes[rank]
    closed = [pair for pair in bad if pair.trouble]
    more = f" and {len(bad) - MOST_PEERS} more" if len(bad) > MOST_PEERS else ""
    peers = ", ".join(nodes[_other(pair, rank)].name for pair in bad[:MOST_PEERS]) + more
    name = nodes[rank].name
    remedy = f"{on_node(nodes[rank], 'ip -s link')}; or leave it out: --exclude {name}"
    if closed:
        return fail(f"no collectives with {peers}: {closed[0].trouble}", remedy)
    sends = [pair.there_mbs if pair.first == rank else pair.back_mbs for pair in bad]
    takes = [pair.back_mbs if pair.first == rank else pair.there_mbs for pair in bad]
    rates = f"sends {_mean(sends):.1f} MB/s, takes {_mean(takes):.1f} MB/s"
    worse = fail if min(_mean(sends), _mean(takes)) < least else warn
    return worse(f"{rates} with {peers}; {blame.usual_mbs:.0f} MB/s are usual", remedy)


def _judge_links(nodes: Sequence[Node], addresses: Sequence[str], blame: Blame, least: float) -> Answers:
    """Tell each bad link at its first node, all of one node in one answer."""
    by_first: dict[int, list[PairFacts]] = {}
    for pair in blame.links:
        by_first.setdefault(pair.first, []).append(pair)
    answers: Answers = []
    for first, pairs in sorted(by_first.items()):
        told = "; ".join(_describe_link(nodes, pair, blame) for pair in pairs)
        target = addresses[pairs[0].second] if addresses else nodes[pairs[0].second].host
        look = on_node(nodes[first], f"ip route get {target}; ip -s link")
        rates = [rate for pair in pairs for rate in (pair.there_mbs, pair.back_mbs) if rate is not None]
        closed = any(pair.trouble for pair in pairs)
        answers.append((first, (fail if closed or min(rates, default=0.0) < least else warn)(told, look)))
    return answers


def _describe_link(nodes: Sequence[Node], pair: PairFacts, blame: Blame) -> str:
    name = nodes[pair.second].name
    if pair.trouble:
        return f"no collectives with {name}: {pair.trouble}"
    there, back = pair.there_mbs or 0.0, pair.back_mbs or 0.0
    return (
        f"the link to {name}: {there:.1f} MB/s there, {back:.1f} MB/s back, {pair.latency_ms or 0:.2f} ms; "
        f"{blame.usual_mbs:.0f} MB/s are usual"
    )


def _other(pair: PairFacts, rank: int) -> int:
    return pair.second if pair.first == rank else pair.first


def _mean(rates: Sequence[float | None]) -> float:
    known = [rate for rate in rates if rate is not None]
    return sum(known) / len(known) if known else 0.0


CHECKS = (
    Check(
        name="links",
        headline=True,
        looks_at="every pair of nodes (more than 16: neighbours, then suspects with good ones)",
        why="one slow or closed way holds up every collective",
        fails="a pair cannot, or does less than {fail_share:g} of what is usual",
        warns="less than {warn_share:g} of what is usual (without GPUs: and less than {enough_mbs:g} MB/s)",
        level=1,
        whole=over_collectives(check_links),
    ),
)
