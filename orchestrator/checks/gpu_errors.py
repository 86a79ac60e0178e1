"""The check of what the kernel said of the GPUs: Xids and amdgpu's time-outs, with what each of them means."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.checks.check import Check
from orchestrator.checks.gpu_view import reboot, used_gpus, why_unused
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, tell_age, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts
from orchestrator.facts.health import KernelEvent
from orchestrator.settings import Settings
from orchestrator.values import Node, Status

HOUR_S = 3600

BOOT = frozenset({54, 79, 151, 168})
"""The GPU is of no use until the node was started anew."""
BROKEN = frozenset({48, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158})
"""The GPU needs a reset."""
NOTES = frozenset({63, 92, 121, 154})
"""Told by the driver, harmless alone. All others, mostly a fault of the program, are worth a look."""
NAMES: Mapping[int, str] = {
    13: "graphics engine exception",
    31: "memory page fault of a program",
    43: "a program's channel stopped",
    45: "a program was ended",
    48: "double bit memory error",
    54: "auxiliary power is missing",
    62: "internal micro-controller halted",
    63: "a memory row was replaced",
    64: "a memory row could not be replaced",
    74: "NVLink error",
    79: "fell off the bus",
    92: "many single bit memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timed out",
    119: "GSP gave no answer",
    120: "GSP error",
    140: "unrecovered memory error",
}
STUCK = frozenset({"amdgpu reset failed", "amdgpu lost", "init failed"})
AMD_BROKEN = frozenset({"amdgpu ras"})
"""A time-out that ended in a reset is mostly the fault of a program."""


def check_gpu_errors(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The kernel log tells of no broken GPU."""
    unused = why_unused(facts, settings)
    if unused is not None:
        return unused
    look = on_node(node, "sudo dmesg -T | grep -E 'NVRM|Xid|amdgpu'", terminal=True)
    if facts.health.events is None:
        why = facts.why_unknown("health") or facts.why_unknown("health.events") or "it was not read"
        return unknown(f"the kernel log: {why}", look)
    window_s = threshold(settings, "gpu-errors", "window_h") * HOUR_S
    others = {gpu.pci for gpu in facts.health.gpus} - {gpu.pci for gpu in used_gpus(node, facts)}
    judged = [(_weigh(event, window_s), event) for event in facts.health.events if event.pci not in others - {""}]
    for status, say in (("fail", fail), ("warn", warn)):
        told = [event for weight, event in judged if weight == status]
        if told:
            for_good = status == "fail" and any(_for_good(event) for event in told)
            return say("; ".join(_describe(event) for event in told), reboot(node) if for_good else look)
    notes = "; ".join(_describe(event) for _, event in judged)
    return ok(f"nothing that matters: {notes}" if notes else "no error since boot")


def _for_good(event: KernelEvent) -> bool:
    return event.kind in STUCK or (event.kind == "xid" and event.code in BOOT)


def _weigh(event: KernelEvent, window_s: float) -> Status:
    recent = event.age_s <= window_s
    if _for_good(event):
        return "fail"
    if event.kind == "sxid":
        # NVSwitches say themselves whether an error ends what runs.
        fatal = "fatal" in event.text.lower() and "non-fatal" not in event.text.lower()
        return ("fail" if recent else "warn") if fatal else "ok"
    if event.kind == "mismatch":
        return "ok"
    if event.code in BROKEN or event.kind in AMD_BROKEN:
        return "fail" if recent else "warn"
    if event.code in NOTES and event.kind == "xid":
        return "ok"
    return "warn" if recent else "ok"


def _describe(event: KernelEvent) -> str:
    if event.kind in ("xid", "sxid"):
        name = NAMES.get(event.code or 0, "") if event.kind == "xid" else ""
        what = f"{'Xid' if event.kind == 'xid' else 'SXid'} {event.code} ({name or event.text or 'no text'})"
    else:
        what = f"{event.kind}: {event.text}"
    times = f", {event.count} times" if event.count > 1 else ""
    return f"{what} {event.pci or 'some GPU'}{times}, {tell_age(event.age_s)}"


CHECKS: tuple[Check, ...] = (
    Check(
        name="gpu-errors",
        looks_at="the kernel log since boot: Xid of NVIDIA, amdgpu",
        why="a GPU that failed before fails again, or hangs all ranks",
        fails="a GPU is lost, or needed a reset within {window_h:g} h",
        warns="a GPU needed a reset before, or a program of somebody failed on it within {window_h:g} h",
        each=check_gpu_errors,
    ),
)
