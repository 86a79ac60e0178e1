"""Judges level 2: every GPU, or the processors of every node, against the median of its equals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts, Survey
from orchestrator.facts.load import Gauges, LoadFacts, MemberFacts
from orchestrator.settings import Settings
from orchestrator.values import Node

Answers = list[tuple[int | None, Seen]]
Rate = Callable[[MemberFacts], float | None]
FEW = 3
"""Of fewer equals the fastest is the measure: a median of two is neither."""
CALM_SHARE = 0.02


def _not_run(survey: Survey, facts: Sequence[Facts]) -> Answers:
    why = "not measured" if survey.load is None else survey.load.not_run
    return [(fact.node_rank, skip(why)) for fact in facts] if why else []


def check_compute(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """Matrix products are as fast as on equal GPUs or nodes."""
    return _compare(nodes, facts, survey, settings, "compute", lambda member: member.tflops, "TFLOPS")


def check_memory_bandwidth(
    nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings
) -> Answers:
    """Memory is as fast as on equal GPUs or nodes."""
    return _compare(nodes, facts, survey, settings, "memory-bandwidth", lambda member: member.memory_gbs, "GB/s")


def check_host_link(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """Copies between host and GPU are as fast as on equal GPUs."""
    if survey.load is not None and not survey.load.not_run and survey.load.device == "cpu":
        return [(fact.node_rank, skip("no GPU")) for fact in facts]

    def slower(member: MemberFacts) -> float | None:
        rates = [rate for rate in (member.to_device_gbs, member.from_device_gbs) if rate is not None]
        return min(rates, default=None)

    return _compare(nodes, facts, survey, settings, "host-link", slower, "GB/s")


def _compare(
    nodes: Sequence[Node],
    facts: Sequence[Facts],
    survey: Survey,
    settings: Settings,
    check: str,
    rate: Rate,
    unit: str,
) -> Answers:
    load = survey.load
    if load is None or load.not_run:
        return _not_run(survey, facts)
    usual = {model: _usual(load, model, rate) for model in {member.model for member in load.members}}
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        mine = [member for member in load.members if member.node_rank == fact.node_rank]
        broken = [member for member in mine if member.trouble or rate(member) is None]
        if broken:
            said = broken[0].trouble or "no rate"
            look = on_node(node, _look(fact))
            answers.append((fact.node_rank, fail(f"{_name(load, broken[0])} did not finish: {said}", look)))
            continue
        slow = [member for member in mine if _share(member, usual, rate) < threshold(settings, check, "warn_share")]
        if not slow:
            rates = [rate(member) or 0.0 for member in mine]
            shown = f"{min(rates):.4g}" if len(mine) == 1 else f"{min(rates):.4g} to {max(rates):.4g}"
            answers.append((fact.node_rank, ok(f"{shown} {unit}")))
            continue
        worst = min(_share(member, usual, rate) for member in slow)
        worse = fail if worst < threshold(settings, check, "fail_share") else warn
        told = "; ".join(_describe(load, member, usual, rate, unit) for member in slow)
        why = _describe_gauges(load, fact.node_rank, slow)
        answers.append((fact.node_rank, worse(told + why, on_node(node, _look(fact)))))
    return answers


def _usual(load: LoadFacts, model: str, rate: Rate) -> float:
    rates = [found for member in load.members if member.model == model and (found := rate(member)) is not None]
    if not rates:
        return 0.0
    return statistics.median(rates) if len(rates) >= FEW else max(rates)


def _share(member: MemberFacts, usual: dict[str, float], rate: Rate) -> float:
    return (rate(member) or 0.0) / usual[member.model] if usual[member.model] else 1.0


def _name(load: LoadFacts, member: MemberFacts) -> str:
    return f"GPU {_index(member)}" if load.device == "cuda" else "the processors"


def _index(member: MemberFacts) -> int:
    return member.local_rank if member.index is None else member.index


def _describe(load: LoadFacts, member: MemberFacts, usual: dict[str, float], rate: Rate, unit: str) -> str:
    below = 100 * (1 - _share(member, usual, rate))
    number = sum(other.model == member.model for other in load.members)
    what = "equal GPUs" if load.device == "cuda" else "nodes"
    than = f"the median of {number} {what}" if number >= FEW else f"the faster of {number} {what}"
    return f"{_name(load, member)}: {rate(member) or 0:.4g} {unit}, {below:.0f} % below {than} ({usual[member.model]:.4g} {unit})"


def _describe_gauges(load: LoadFacts, node_rank: int, slow: Sequence[MemberFacts]) -> str:
    """Say what the gauges showed meanwhile that can be the cause."""
    gauges = next((gauges for gauges in load.gauges if gauges.node_rank == node_rank), None)
    if gauges is None:
        return ""
    told = _describe_gpus(gauges, slow) if load.device == "cuda" else _describe_processors(gauges)
    return f"; {', '.join(told)}" if told else ""


def _describe_gpus(gauges: Gauges, slow: Sequence[MemberFacts]) -> list[str]:
    told = []
    for gauge in gauges.gpus:
        if gauge.index not in {_index(member) for member in slow}:
            continue
        told += (
            [f"clock {gauge.clock_mhz} of {gauge.clock_max_mhz} MHz"] if gauge.clock_mhz and gauge.clock_max_mhz else []
        )
        told += [f"{gauge.temperature_c} °C"] if gauge.temperature_c is not None else []
        told += list(gauge.throttle)
    return told


def _describe_processors(gauges: Gauges) -> list[str]:
    told = []
    if gauges.quota_cores is not None:
        told.append(f"a control group allows {gauges.quota_cores:g} cores")
    if gauges.held_s:
        told.append(f"held back for {gauges.held_s:g} s of {gauges.took_s:g} s")
    if gauges.steal_share is not None and gauges.steal_share > CALM_SHARE:
        told.append(f"{100 * gauges.steal_share:.0f} % stolen by the hypervisor")
    told += [
        f"pid {process.pid} ({process.owner or '?'}) takes {process.cores:g} cores: {process.command[:60]}"
        for process in gauges.foreign[:1]
    ]
    return told


def _look(facts: Facts) -> str:
    return {
        "nvidia": "nvidia-smi -q -d CLOCK,TEMPERATURE,PERFORMANCE",
        "amd": "amd-smi metric",
    }.get(facts.gpu_kind, "top -b -n 1 | head -n 12")


def check_bits(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """The same product has the same bits each time."""
    del settings
    load = survey.load
    if load is None or load.not_run:
        return _not_run(survey, facts)
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        mine = [member for member in load.members if member.node_rank == fact.node_rank]
        wrong = [member for member in mine if member.different]
        repeats = sum(member.repeats for member in mine)
        if wrong:
            told = "; ".join(f"{_name(load, one)}: {one.different} of {one.repeats} repeats differ" for one in wrong)
            answers.append((fact.node_rank, fail(told, f"leave it out: --exclude {node.name}")))
        else:
            answers.append((fact.node_rank, ok(f"{repeats} repeats alike") if repeats else unknown("no repeats")))
    return answers


def check_heat(nodes: Sequence[Node], facts: Sequence[Facts], survey: Survey, settings: Settings) -> Answers:
    """No GPU throttles itself under load."""
    load = survey.load
    if load is None or load.not_run:
        return _not_run(survey, facts)
    gauges = {gauges.node_rank: gauges for gauges in load.gauges}
    answers: Answers = []
    for node, fact in zip(nodes, facts, strict=True):
        mine = {_index(member) for member in load.members if member.node_rank == fact.node_rank}
        seen = gauges[fact.node_rank].gpus if fact.node_rank in gauges else ()
        gpus = [gpu for gpu in seen if gpu.index in mine]
        look = on_node(node, "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER")
        throttled = [gpu for gpu in gpus if gpu.throttle]
        hot = [gpu for gpu in gpus if (gpu.temperature_c or 0) > threshold(settings, "heat", "warn_c")]
        if throttled:
            told = "; ".join(
                f"GPU {gpu.index}: {', '.join(gpu.throttle)} at {gpu.temperature_c} °C" for gpu in throttled
            )
            hard = any(reason != "software thermal" for gpu in throttled for reason in gpu.throttle)
            answers.append((fact.node_rank, (fail if hard else warn)(told, look)))
        elif hot:
            answers.append(
                (fact.node_rank, warn("; ".join(f"GPU {gpu.index}: {gpu.temperature_c} °C" for gpu in hot), look))
            )
        elif gpus:
            answers.append((fact.node_rank, ok(f"at most {max(gpu.temperature_c or 0 for gpu in gpus)} °C")))
        else:
            answers.append((fact.node_rank, skip("no GPU") if not fact.gpus else unknown("the driver does not tell")))
    return answers


CHECKS = (
    Check(
        name="compute",
        headline=True,
        looks_at="matrix products on every GPU, or on the processors",
        why="the slowest sets the pace of every step",
        fails="below {fail_share:g} of the median of its equals",
        warns="below {warn_share:g} of it",
        level=2,
        whole=check_compute,
    ),
    Check(
        name="memory-bandwidth",
        headline=True,
        looks_at="copies within the memory of every GPU, or of every node",
        why="the slowest sets the pace of every step",
        fails="below {fail_share:g} of the median of its equals",
        warns="below {warn_share:g} of it",
        level=2,
        whole=check_memory_bandwidth,
    ),
    Check(
        name="host-link",
        looks_at="copies between pinned memory and every GPU, both ways",
        why="batches arrive late",
        fails="below {fail_share:g} of the median of its equals",
        warns="below {warn_share:g} of it",
        level=2,
        whole=check_host_link,
    ),
    Check(
        name="bits",
        looks_at="the same product again and again, bit by bit",
        why="the model would learn from wrong numbers",
        fails="a repeat differs",
        level=2,
        whole=check_bits,
    ),
    Check(
        name="heat",
        looks_at="temperature and throttling of the GPUs under load",
        why="a GPU that is too hot slows down, and all others with it",
        fails="hardware slowdown, hardware thermal or power brake",
        warns="software thermal, or above {warn_c:g} °C",
        level=2,
        whole=check_heat,
    ),
)
