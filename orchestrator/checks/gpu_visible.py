"""The check of the variables that hide GPUs from a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.gpu_view import why_unused
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, ok, warn
from orchestrator.facts import Facts
from orchestrator.settings import Settings
from orchestrator.values import Node

PLACES = "~/.bashrc ~/.profile ~/.ssh/environment /etc/environment /etc/bash.bashrc /etc/ssh/sshd_config"
"""Where a session without a terminal gets its variables from."""


def compare_visible(nodes: Sequence[Node], facts: Sequence[Facts], settings: Settings) -> list[Seen]:
    """The variables of the session hide no GPU by mistake, and as many on every node."""
    unused = [why_unused(fact, settings) for fact in facts]
    counted = Counter(
        _shown(fact)
        for fact, seen in zip(facts, unused, strict=True)
        if seen is None and (fact.gpus or fact.hidden_gpus)
    )
    (usual, number) = counted.most_common(1)[0] if counted else ("", 0)
    return [
        seen or _judge(node, fact, usual if number > 1 or len(counted) == 1 else _shown(fact))
        for node, fact, seen in zip(nodes, facts, unused, strict=True)
    ]


def _shown(facts: Facts) -> str:
    """Say in which way the session sees its GPUs; nodes that agree say the same."""
    if not facts.hidden_gpus:
        return "all GPUs"
    return f"{len(facts.gpus)} of {len(facts.gpus) + facts.hidden_gpus} GPUs"


def _judge(node: Node, facts: Facts, usual: str) -> Seen:
    variables = dict(sorted((facts.visible_devices or {}).items()))
    told = ", ".join(f"{name}={value}" for name, value in variables.items())
    find = on_node(node, f"grep -snE '{'|'.join(variables)}' {PLACES}")
    if not variables:
        return ok("none is set") if usual in ("", "all GPUs") else warn(f"none is set, most nodes see {usual}", find)
    if facts.hidden_gpus and not facts.gpus:
        return warn(f"{told} hides all {facts.hidden_gpus} GPUs", find)
    if {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"} <= set(variables):
        return warn(f"{told}: one counts what the other leaves", find)
    wrong = [name for name, value in variables.items() if len(_words(value)) > len(facts.gpus) and facts.gpus]
    if wrong:
        return warn(f"{told} names a GPU that is not there: {len(facts.gpus)} are left", find)
    if _shown(facts) != usual:
        return warn(f"{told}: {_shown(facts)}, most nodes see {usual}", find)
    return ok(f"{told}: {_shown(facts)}")


def _words(value: str) -> list[str]:
    return [word for word in value.split(",") if word.strip()]


CHECKS: tuple[Check, ...] = (
    Check(
        name="gpu-visible",
        looks_at="CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES of this very session",
        why="ranks see fewer GPUs than there are, or none",
        warns="they hide all GPUs, name wrong ones, filter twice, or differ between nodes",
        across=compare_visible,
    ),
)
