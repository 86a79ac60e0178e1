"""Checks of what the driver tells of each GPU: memory errors, slow clocks, heat and power."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.gpu_view import (
    Gpus,
    judge_all,
    judge_gpus,
    leave_out,
    name_gpus,
    of_all_nodes,
    reboot,
    reset,
    untold,
    usual,
)
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts
from orchestrator.settings import Settings
from orchestrator.values import Node

Nodes = Sequence[Node]
AllFacts = Sequence[Facts]
SLOWED = frozenset({"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
WARM = frozenset({"sw_thermal_slowdown"})


def compare_ecc(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """No uncorrected memory error since the driver was loaded, and ECC on where the peers have it."""
    everywhere = of_all_nodes(nodes, facts, settings)
    protected = {gpu.model for gpus in everywhere for gpu in gpus if gpu.ecc}

    def judge(node: Node, fact: Facts, gpus: Gpus) -> Seen:
        bad = [gpu for gpu in gpus if (gpu.ecc_uncorrected or 0) >= threshold(settings, "gpu-ecc", "fail_errors")]
        if bad:
            counts = ", ".join(f"GPU {gpu.index}: {gpu.ecc_uncorrected}" for gpu in bad)
            return fail(f"uncorrected memory errors: {counts}", reset(node, fact, bad))
        off = [gpu for gpu in gpus if gpu.ecc is False and gpu.model in protected]
        if off:
            numbers = ",".join(str(gpu.index) for gpu in off)
            remedy = on_node(node, f"sudo nvidia-smi -e 1 -i {numbers} && sudo reboot", terminal=True)
            return warn(f"ECC is off on {name_gpus(off)}, but on on its peers", remedy)
        if all(gpu.ecc_uncorrected is None for gpu in gpus):
            return skip("no ECC") if all(gpu.ecc is not True for gpu in gpus) else untold(node, fact, "its errors")
        return ok("no uncorrected error")

    return judge_all(nodes, facts, settings, judge)


def check_memory_rows(node: Node, facts: Facts, settings: Settings) -> Seen:
    """No memory row that could not be replaced, and none that waits for a reset."""

    def judge(gpus: Gpus) -> Seen:
        failed = [gpu for gpu in gpus if gpu.rows_failed]
        if failed:
            return fail(f"memory of {name_gpus(failed)} could not be repaired", leave_out(node, failed))
        pending = [gpu for gpu in gpus if gpu.rows_pending]
        if pending:
            return fail(f"repaired memory of {name_gpus(pending)} waits for a reset", reset(node, facts, pending))
        worn = [gpu for gpu in gpus if (gpu.rows_uncorrected or 0) >= threshold(settings, "gpu-rows", "warn_rows")]
        if worn:
            counts = ", ".join(f"GPU {gpu.index}: {gpu.rows_uncorrected}" for gpu in worn)
            return warn(f"memory rows replaced after uncorrected errors: {counts}", leave_out(node, worn))
        known = any(gpu.rows_pending is not None or gpu.rows_failed is not None for gpu in gpus)
        return ok("no row waits for repair") if known else skip("not told by this driver or model")

    return judge_gpus(node, facts, settings, judge)


def check_recovery(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The driver asks for no reset or reboot."""

    def judge(gpus: Gpus) -> Seen:
        asking = [gpu for gpu in gpus if gpu.recovery]
        if not asking:
            return ok("none asked for")
        wanted = sorted({gpu.recovery for gpu in asking})
        remedy = reset(node, facts, asking) if wanted == ["Reset"] else reboot(node)
        return fail(f"the driver asks for {name_gpus(asking)}: {', '.join(wanted)}", remedy)

    return judge_gpus(node, facts, settings, judge)


def check_throttle(node: Node, facts: Facts, settings: Settings) -> Seen:
    """No clock is held down by heat or by the power supply."""
    tool = "nvidia-smi -q -d PERFORMANCE" if facts.gpu_kind == "nvidia" else "amd-smi metric --throttle"

    def judge(gpus: Gpus) -> Seen:
        told = [gpu for gpu in gpus if gpu.throttle is not None]
        for reasons, say in ((SLOWED, fail), (WARM, warn)):
            slow = [gpu for gpu in told if reasons & set(gpu.throttle or ())]
            if slow:
                names = sorted({name.replace("_", " ") for gpu in slow for name in reasons & set(gpu.throttle or ())})
                return say(f"{name_gpus(slow)}: {', '.join(names)}", on_node(node, tool))
        return ok("clocks are free") if told else untold(node, facts, "why clocks are slow")

    return judge_gpus(node, facts, settings, judge)


def compare_temperature(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """No GPU is hot, or much hotter than its peers."""
    everywhere = of_all_nodes(nodes, facts, settings)
    peers: dict[str, list[float]] = {}
    for gpu in (gpu for gpus in everywhere for gpu in gpus):
        if gpu.temperature_c is not None:
            peers.setdefault(gpu.model, []).append(gpu.temperature_c)
    hot, over = (threshold(settings, "gpu-temperature", name) for name in ("warn_c", "over_c"))
    least = threshold(settings, "gpu-temperature", "least_peers")

    def judge(node: Node, fact: Facts, gpus: Gpus) -> Seen:
        known = [(gpu, gpu.temperature_c) for gpu in gpus if gpu.temperature_c is not None]
        remedy = on_node(node, "nvidia-smi -q -d TEMPERATURE" if fact.gpu_kind == "nvidia" else "amd-smi metric -t")
        told = []
        for gpu, degrees in known:
            middle = statistics.median(peers[gpu.model])
            if degrees > hot:
                told.append(f"GPU {gpu.index} is at {degrees:g} C")
            elif degrees - middle > over and len(peers[gpu.model]) > least:
                told.append(f"GPU {gpu.index} is at {degrees:g} C, its peers at {middle:g} C")
        if told:
            return warn("; ".join(told), remedy)
        return ok(f"at most {max(one for _, one in known):g} C") if known else untold(node, fact, "its temperature")

    return judge_all(nodes, facts, settings, judge)


def compare_power(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """The power limit is the default, and that of the peers."""
    limits: dict[str, list[float]] = {}
    for gpu in (gpu for gpus in of_all_nodes(nodes, facts, settings) for gpu in gpus):
        if gpu.power_limit_w is not None:
            limits.setdefault(gpu.model, []).append(gpu.power_limit_w)
    share = threshold(settings, "gpu-power", "warn_share")

    def judge(node: Node, fact: Facts, gpus: Gpus) -> Seen:
        known = [(gpu, gpu.power_limit_w) for gpu in gpus if gpu.power_limit_w is not None]
        for gpu, limit in known:
            peers = usual(limits[gpu.model]) or limit
            default = gpu.power_default_w or peers
            if limit < share * max(default, peers):
                higher = f"the default is {default:g} W" if limit < share * default else f"its peers have {peers:g} W"
                words = f"sudo nvidia-smi -i {gpu.index} -pl {max(default, peers):g}"
                if fact.gpu_kind == "amd":
                    words = f"sudo amd-smi set --gpu {gpu.index} --power-cap {max(default, peers):g}"
                return warn(f"GPU {gpu.index} is held to {limit:g} W, {higher}", on_node(node, words, terminal=True))
        return ok(f"{known[0][1]:g} W") if known else skip("not told by this driver or model")

    return judge_all(nodes, facts, settings, judge)


def check_persistence(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The driver stays loaded between programs."""

    def judge(gpus: Gpus) -> Seen:
        off = [gpu for gpu in gpus if gpu.persistence is False]
        if off:
            return warn(f"off on {name_gpus(off)}", on_node(node, "sudo nvidia-smi -pm 1", terminal=True))
        return ok("on") if any(gpu.persistence for gpu in gpus) else skip("not a mode of this driver")

    return judge_gpus(node, facts, settings, judge)


CHECKS: tuple[Check, ...] = (
    Check(
        name="gpu-ecc",
        looks_at="memory errors since the driver was loaded, and ECC",
        why="wrong results, or a rank that ends with a memory error",
        fails="at least {fail_errors:g} uncorrected errors",
        warns="ECC is off where GPUs of the same model have it on",
        across=compare_ecc,
    ),
    Check(
        name="gpu-rows",
        looks_at="rows and pages of GPU memory that were replaced",
        why="the next error there ends the run",
        fails="a row could not be replaced, or waits for a reset",
        warns="at least {warn_rows:g} rows were replaced after uncorrected errors",
        each=check_memory_rows,
    ),
    Check(
        name="gpu-recovery",
        looks_at="what the driver asks for",
        why="programs on this GPU fail until that is done",
        fails="it asks for a reset or a reboot",
        each=check_recovery,
    ),
    Check(
        name="gpu-throttle",
        looks_at="reasons for slow clocks that are active now",
        why="one slow GPU slows all ranks down",
        fails="heat, power supply or power brake hold the clocks down",
        warns="the driver holds them down for heat",
        each=check_throttle,
    ),
    Check(
        name="gpu-temperature",
        looks_at="temperature of each GPU, against those of its model",
        why="under load it will slow down or switch off",
        warns="above {warn_c:g} C, or {over_c:g} C above the median of more than {least_peers:g} peers",
        across=compare_temperature,
    ),
    Check(
        name="gpu-power",
        looks_at="power limit, against the default and the peers",
        why="one slow GPU slows all ranks down",
        warns="below {warn_share:.0%} of the higher one",
        across=compare_power,
    ),
    Check(
        name="gpu-persistence",
        looks_at="persistence mode",
        why="each start loads the driver anew, seconds a GPU",
        warns="it is off",
        each=check_persistence,
    ),
)
