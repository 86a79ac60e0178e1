"""Judges level 2: every GPU, or the processors of every node, against the median of its equals."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.load_causes import describe_causes, find_gauges, index_of, look_closer, watch_gpus
from orchestrator.checks.measured import Answers, over_load
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts
from orchestrator.facts.load import GpuGauge, LoadFacts, MemberFacts
from orchestrator.light_dataclass import dataclass
from orchestrator.settings import Settings
from orchestrator.values import Node

Rate = Callable[[MemberFacts], float | None]
Members = Sequence[MemberFacts]
FEW = 3
"""Of fewer equals the fastest is the measure: a median of two is neither."""
MOST_TOLD = 3


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One rate that is compared: which check, of which load, in which unit."""

    check: str
    load: str
    unit: str
    rate: Rate


def slower_way(member: MemberFacts) -> float | None:
    """Give the slower of the two directions between a GPU and its host."""
    rates = [rate for rate in (member.to_device_gbs, member.from_device_gbs) if rate is not None]
    return min(rates, default=None)


COMPUTE = Measure(check="compute", load="compute", unit="TFLOPS", rate=lambda member: member.tflops)
MEMORY = Measure(check="memory-bandwidth", load="memory", unit="GB/s", rate=lambda member: member.memory_gbs)
HOST = Measure(check="host-link", load="host", unit="GB/s", rate=slower_way)


def check_compute(nodes: Sequence[Node], facts: Sequence[Facts], load: LoadFacts, settings: Settings) -> Answers:
    """Matrix products are as fast as on equal GPUs or nodes."""
    return _compare(nodes, facts, load, settings, COMPUTE)


def check_memory_bandwidth(
    nodes: Sequence[Node], facts: Sequence[Facts], load: LoadFacts, settings: Settings
) -> Answers:
    """Memory is as fast as on equal GPUs or nodes."""
    return _compare(nodes, facts, load, settings, MEMORY)


def check_host_link(nodes: Sequence[Node], facts: Sequence[Facts], load: LoadFacts, settings: Settings) -> Answers:
    """Copies between host and GPU are as fast as on equal GPUs."""
    if load.device == "cpu":
        return [(fact.node_rank, skip("no GPU")) for fact in facts]
    return _compare(nodes, facts, load, settings, HOST)


def _compare(
    nodes: Sequence[Node], facts: Sequence[Facts], load: LoadFacts, settings: Settings, measure: Measure
) -> Answers:
    usual = usual_rates(load, measure.rate)
    return [
        (fact.node_rank, _judge_node(node, fact, load, settings, measure, usual))
        for node, fact in zip(nodes, facts, strict=True)
    ]


def _judge_node(
    node: Node, facts: Facts, load: LoadFacts, settings: Settings, measure: Measure, usual: Mapping[str, float]
) -> Seen:
    everything = [member for member in load.members if member.node_rank == facts.node_rank]
    mine = [member for member in everything if not member.spared]
    if not mine:
        return skip(_describe_spared(everything) or "nothing was put on it")
    broken = [member for member in mine if measure.rate(member) is None]
    if broken:
        return _judge_broken(node, facts, load, measure, broken)
    slow = [
        member
        for member in mine
        if share_of(member, usual, measure.rate) < threshold(settings, measure.check, "warn_share")
    ]
    spared = _describe_spared(everything)
    if not slow:
        rates = [measure.rate(member) or 0.0 for member in mine]
        shown = f"{min(rates):.4g}" if len(mine) == 1 else f"{min(rates):.4g} to {max(rates):.4g}"
        return ok(f"{shown} {measure.unit}{spared and f'; {spared}'}")
    slow.sort(key=lambda member: share_of(member, usual, measure.rate))
    worst = share_of(slow[0], usual, measure.rate)
    worse = fail if worst < threshold(settings, measure.check, "fail_share") else warn
    told = [_describe_slow(load, member, usual, measure) for member in slow[:MOST_TOLD]]
    told += [f"so are {len(slow) - MOST_TOLD} more"] if len(slow) > MOST_TOLD else []
    return worse("; ".join(told), look_closer(node, facts, load, slow, measure.load))


def _judge_broken(node: Node, facts: Facts, load: LoadFacts, measure: Measure, broken: Members) -> Seen:
    first = broken[0]
    if measure is not COMPUTE and first.tflops is None:
        return skip(f"{name_member(load, first)} did not get so far: see compute")
    told = f"{name_member(load, first)} did not finish: {first.trouble or 'no rate'}"
    return fail(told, look_closer(node, facts, load, broken, measure.load))


def _describe_spared(members: Members) -> str:
    spared = [f"GPU {index_of(member)} was left alone: {member.spared}" for member in members if member.spared]
    return "; ".join(spared)


def usual_rates(load: LoadFacts, rate: Rate) -> dict[str, float]:
    """Give by model what equals reach: their median, or of few the fastest."""
    found: dict[str, list[float]] = {}
    for member in load.members:
        value = rate(member)
        if value is not None:
            found.setdefault(member.model, []).append(value)
    return {model: statistics.median(rates) if len(rates) >= FEW else max(rates) for model, rates in found.items()}


def share_of(member: MemberFacts, usual: Mapping[str, float], rate: Rate) -> float:
    """Give the part of what equals reach."""
    most = usual.get(member.model, 0.0)
    return (rate(member) or 0.0) / most if most else 1.0


def name_member(load: LoadFacts, member: MemberFacts) -> str:
    """Name a GPU by the driver's number; a node without has but its processors."""
    return f"GPU {index_of(member)}" if load.device == "cuda" else "the processors"


def _describe_slow(load: LoadFacts, member: MemberFacts, usual: Mapping[str, float], measure: Measure) -> str:
    below = 100 * (1 - share_of(member, usual, measure.rate))
    number = sum(one.model == member.model and measure.rate(one) is not None for one in load.members)
    what = "equal GPUs" if load.device == "cuda" else "nodes"
    than = f"the median of {number} {what}" if number >= FEW else f"the faster of {number} {what}"
    rate, most, unit = measure.rate(member) or 0.0, usual[member.model], measure.unit
    told = f"{name_member(load, member)}: {rate:.4g} {unit}, {below:.0f} % below {than} ({most:.4g} {unit})"
    return told + describe_causes(load, member, measure.load)


def check_bits(nodes: Sequence[Node], facts: Sequence[Facts], load: LoadFacts, settings: Settings) -> Answers:
    """The same product has the same bits each time, and on every equal GPU."""
    del settings
    return [
        (fact.node_rank, _judge_bits(node, load, [one for one in load.members if one.node_rank == fact.node_rank]))
        for node, fact in zip(nodes, facts, strict=True)
    ]


def _judge_bits(node: Node, load: LoadFacts, mine: Members) -> Seen:
    wrong = [member for member in mine if member.different]
    told = [
        f"{name_member(load, one)}: {one.different} of {one.repeats} repeats differ from the first" for one in wrong
    ]
    told += [
        f"{name_member(load, one)}: its product is not that of {number} equal GPUs"
        for one in mine
        if one not in wrong and (number := _count_others(load, one))
    ]
    if told:
        return fail("; ".join(told), f"leave it out: --exclude {node.name}")
    repeats = sum(member.repeats for member in mine)
    if repeats:
        return ok(f"{repeats} repeats alike")
    return unknown("no product was finished") if any(not one.spared for one in mine) else skip("nothing was put on it")


def _count_others(load: LoadFacts, member: MemberFacts) -> int:
    """Count the equal GPUs that agree on another product; 0 where no clear majority does."""
    equal = [one.digest for one in load.members if one.model == member.model and one.digest]
    if not member.digest or len(equal) < FEW:
        return 0
    digest, number = Counter(equal).most_common(1)[0]
    return number if digest != member.digest and number > len(equal) / 2 else 0


def check_heat(nodes: Sequence[Node], facts: Sequence[Facts], load: LoadFacts, settings: Settings) -> Answers:
    """No GPU throttles itself under load."""
    if load.device == "cpu":
        return [(fact.node_rank, skip("no GPU was put under load")) for fact in facts]
    return [(fact.node_rank, _judge_heat(node, fact, load, settings)) for node, fact in zip(nodes, facts, strict=True)]


def _judge_heat(node: Node, facts: Facts, load: LoadFacts, settings: Settings) -> Seen:
    mine = [member for member in load.members if member.node_rank == facts.node_rank and not member.spared]
    numbers = {index_of(member) for member in mine}
    gauges = find_gauges(load, facts.node_rank, COMPUTE.load)
    gpus = [gpu for gpu in gauges.gpus if gpu.index in numbers] if gauges is not None else []
    if not mine:
        return skip("nothing was put on it")
    if not gpus:
        why = gauges.trouble if gauges is not None else ""
        return unknown(f"the driver does not tell{why and f': {why}'}", on_node(node, watch_gpus(facts, mine)))
    throttled = {gpu.index: reasons for gpu in gpus if (reasons := [one for one in gpu.throttle if one != "power cap"])}
    hot = [gpu for gpu in gpus if (gpu.temperature_c or 0) > threshold(settings, "heat", "warn_c")]
    bad = [member for member in mine if index_of(member) in {*throttled, *(gpu.index for gpu in hot)}]
    look = on_node(node, watch_gpus(facts, bad))
    if throttled:
        told = "; ".join(
            f"GPU {gpu.index}: {', '.join(throttled[gpu.index])}{_degrees(gpu)}"
            for gpu in gpus
            if gpu.index in throttled
        )
        hard = any(reason != "software thermal" for reasons in throttled.values() for reason in reasons)
        return (fail if hard else warn)(told, look)
    if hot:
        return warn("; ".join(f"GPU {gpu.index}: {gpu.temperature_c} °C" for gpu in hot), look)
    known = [gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None]
    return ok(f"at most {max(known)} °C" if known else "nothing slows it down")


def _degrees(gauge: GpuGauge) -> str:
    return "" if gauge.temperature_c is None else f" at {gauge.temperature_c} °C"


CHECKS = (
    Check(
        name="compute",
        headline=True,
        looks_at="matrix products on every GPU, or on the processors",
        why="the slowest sets the pace of every step",
        fails="below {fail_share:g} of the median of its equals",
        warns="below {warn_share:g} of it",
        level=2,
        whole=over_load(check_compute),
    ),
    Check(
        name="memory-bandwidth",
        headline=True,
        looks_at="copies within the memory of every GPU, or of every node",
        why="the slowest sets the pace of every step",
        fails="below {fail_share:g} of the median of its equals",
        warns="below {warn_share:g} of it",
        level=2,
        whole=over_load(check_memory_bandwidth),
    ),
    Check(
        name="host-link",
        looks_at="copies between pinned memory and every GPU, both ways",
        why="batches arrive late",
        fails="below {fail_share:g} of the median of its equals",
        warns="below {warn_share:g} of it",
        level=2,
        whole=over_load(check_host_link),
    ),
    Check(
        name="bits",
        looks_at="the same product again and again, bit by bit, and on every equal GPU",
        why="the model would learn from wrong numbers",
        fails="a repeat differs, or a GPU's product is not that of most",
        level=2,
        whole=over_load(check_bits),
    ),
    Check(
        name="heat",
        looks_at="temperature and throttling of the GPUs under load",
        why="a GPU that is too hot slows down, and all others with it",
        fails="hardware slowdown, hardware thermal or power brake",
        warns="software thermal, or above {warn_c:g} °C",
        level=2,
        whole=over_load(check_heat),
    ),
)
