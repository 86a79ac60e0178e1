"""Proves at the end of a run that its GPUs gave back the memory that it held."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional

    Facts = Dict[str, Any]

WAIT_S = 5.0
"""A driver gives memory back in a moment; in all, no end of a run waits longer for it."""
AGAIN_S = 0.25
MARGIN_MIB = 64
"""What a driver itself takes comes and goes."""
FIRST_NAMESPACE = "pid:[4026531836]"
"""The kernel's own number of the process ids that see all others."""


def left_over(before: Optional[Mapping[str, Optional[int]]], wait_s: float = WAIT_S) -> Facts:
    """Say which GPUs hold more than before the run, as {"gpus": [...]}; {"gpus_why"} says why that is not known.

    `before` is what each GPU of the run had in use that belonged to no process; nothing comes back where there is none.
    """
    if not before or all(mib is None for mib in before.values()):
        return {}
    from orchestrator.node.gpu_use import GpuQuestion  # noqa: PLC0415 - dear, and of no use without GPUs

    end = time.monotonic() + wait_s
    told: Facts = {}
    while True:
        answer = GpuQuestion(apps=True, limit_s=max(0.1, end - time.monotonic())).wait()
        # A tool that answered once and then no more: what it said holds.
        if answer["gpus"] is not None or not told:
            told = judge(before, answer)
        if not told.get("gpus") or time.monotonic() + AGAIN_S >= end:
            return told
        time.sleep(AGAIN_S)


def after_sweep(statuses: List[Facts]) -> Facts:
    """Say the same where there was no supervisor to say it, from its status files; what it has proved stands."""
    before: Dict[str, Optional[int]] = {}
    proved = False
    for status in statuses:
        finals = [event for event in status.get("events", []) if event["ev"] == "final"]
        if finals and finals[-1].get("gpus") == []:
            proved = True
        else:
            before.update(status.get("gpu_memory") or {})
    return left_over(before) or ({"gpus": []} if proved else {})


def judge(before: Mapping[str, Optional[int]], answer: Facts) -> Facts:
    """Compare one answer of the tool with what was before."""
    if answer["gpus"] is None:
        return {"gpus_why": answer["why"]}
    from orchestrator.node.gpu_use import key_of  # noqa: PLC0415 - as above

    held: List[Facts] = []
    whys: List[str] = []
    now = {key_of(gpu): gpu for gpu in answer["gpus"]}
    for key, mib in before.items():
        gpu = now.get(key)
        if mib is None:
            continue
        if gpu is None or gpu["used_mib"] is None:
            whys.append(f"the driver no longer tells of GPU {key}")
            continue
        more = gpu["used_mib"] - mib
        if more <= MARGIN_MIB:
            continue
        foreign = None if answer["apps"] is None else [app for app in answer["apps"] if is_foreign(app, key)]
        if foreign is None or any(app["used_mib"] is None for app in foreign):
            whys.append(
                f"GPU {gpu['index']} holds {more} MiB more than before, and whose it is the driver does not tell"
            )
            continue
        more -= sum(app["used_mib"] for app in foreign)
        if more > MARGIN_MIB:
            shown = [{"pid": app["pid"], "used_mib": app["used_mib"]} for app in foreign]
            held.append({"gpu": gpu["index"], "held_mib": more, "before_mib": mib, "foreign": shown})
    return {"gpus": held} if held or not whys else {"gpus_why": "; ".join(whys)}


def is_foreign(app: Facts, key: str) -> bool:
    """Tell whether somebody else's living process holds memory of a GPU; all of the run's own have ended by now."""
    # rocm-smi does not say which GPU a process is on.
    if app["uuid"] not in (key, ""):
        return False
    try:
        os.kill(app["pid"], 0)
    except ProcessLookupError:
        # From inside a container the others' processes cannot be seen, but the driver knows their numbers.
        return not sees_all_processes()
    except OSError:
        return True
    return True


def sees_all_processes() -> bool:
    """Tell whether a pid that is not here is nowhere on the machine."""
    try:
        return os.readlink("/proc/self/ns/pid") == FIRST_NAMESPACE
    except OSError:
        return False
