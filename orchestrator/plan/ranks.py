"""How many processes each node runs, and which global ranks they get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError, NotReadyError
from orchestrator.values import EnvValue, Node

if TYPE_CHECKING:
    from orchestrator.facts import Facts

VISIBLE_NAMES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def count_processes(node: Node, facts: Facts, wanted: str, env: Iterable[EnvValue] = ()) -> int:
    """Count the processes of one node; 0 means that it asks for GPUs and has none."""
    if node.slots is not None:
        return node.slots
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    if wanted == "cpu":
        return max(1, facts.cores)
    if wanted == "auto":
        # A node without GPUs is a node like every other; a mix of both kinds is a finding of its own.
        return max(1, count_gpus(node, facts, env))
    if wanted == "gpu":
        return count_gpus(node, facts, env)
    raise ConfigError(
        f"{wanted!r} is not a number of processes", "nproc_per_node", "give auto, gpu, cpu or a number above 0"
    )


def count_gpus(node: Node, facts: Facts, env: Iterable[EnvValue] = ()) -> int:
    """Count the GPUs that the ranks of a node will see."""
    if node.gpus:
        return len(node.gpus)
    given = {value.name: value.value for value in env} | dict(node.env)
    lists = [given[name] for name in VISIBLE_NAMES if name in given]
    if lists:
        visible = [word for word in lists[0].split(",") if word.strip() not in ("", "-1")]
        # A list of the run's own is laid over the session's: it may show what that one hides.
        return min(len(visible), len(facts.gpus) + facts.hidden_gpus)
    return len(facts.gpus)


def count_all(
    nodes: Sequence[Node], facts: Sequence[Facts], wanted: str, env: Iterable[EnvValue] = ()
) -> tuple[int, ...]:
    """Count the processes of every node, in list order; a node without GPUs is told together with all others.

    Raises:
        NotReadyError: GPUs were asked for and some nodes have none.
    """
    given = tuple(env)
    counts = tuple(count_processes(node, fact, wanted, given) for node, fact in zip(nodes, facts, strict=True))
    bare = [node.name for node, count in zip(nodes, counts, strict=True) if count == 0]
    if bare:
        raise NotReadyError(
            "no GPU is visible, and the number of processes is the number of GPUs",
            ", ".join(bare),
            "give --nproc-per-node cpu or a number, or slots= in the node list",
        )
    return counts


def build_first_ranks(counts: Sequence[int]) -> tuple[int, ...]:
    """Give each node its first global rank: the running sum of the processes before it."""
    return tuple(accumulate(counts, initial=0))[:-1]
