"""Puts the logs of the nodes of one run together into the form in which it is judged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from orchestrator.diagnosis.case import Case
from orchestrator.diagnosis.logs.nodelog import NodeLog
from orchestrator.diagnosis.logs.teller import Beside, NodeTeller


def build_log_case(logs: Sequence[NodeLog], beside: Beside | None = None) -> Case:
    """Build the case of a run that there are only logs of."""
    beside = beside or Beside()
    layout = find_layout(logs)
    known = {rank for ranks in layout.values() for rank in ranks}
    for rank, name in beside.places.items():
        if rank not in known and name in layout:
            layout[name] = tuple(sorted({*layout[name], rank}))
    order = sorted(logs, key=lambda log: (min(layout[log.name], default=1 << 30), natural_key(log.name)))
    tellers = [NodeTeller(log, node_rank, layout[log.name], beside) for node_rank, log in enumerate(order)]
    lone = not any(layout.values())
    tasks = lone and all(log.task is not None for log in order)
    # Without an agent the rank of a process is only known where there is one on each node.
    processes = [teller.lone_process() for teller in tellers] if lone else []
    nodes, ranks = [], []
    for teller in tellers:
        stories = (teller.lone_process() if tasks or all(processes) else []) if lone else teller.ranks()
        ranks += stories
        nodes.append(teller.node(stories))
    told = [log.world_size for log in order if log.world_size]
    world = max((*told, *(story.rank + 1 for story in ranks)), default=None)
    return Case(
        nodes=nodes,
        ranks=sorted(ranks, key=lambda story: story.rank),
        world_size=world,
        odd=beside.odd,
    )


def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """Sort node2 before node10."""
    return tuple((int(part), "") if part.isdigit() else (0, part) for part in re.findall(r"\d+|\D+", name))


def find_layout(logs: Iterable[NodeLog]) -> dict[str, tuple[int, ...]]:
    """Find which ranks ran on which node: as they speak and are listed; gaps are filled where all nodes are alike."""
    logs = list(logs)
    sure = {log.name: set(log.ranks) for log in logs}
    _add_teed(logs, sure)
    known = {rank for ranks in sure.values() for rank in ranks}
    for log in logs:
        # A rank that only a script's line speaks of, e.g. "step 3 [rank0] loss 0.1".
        sure[log.name] |= {
            rank for rank in log.seen - known if all(rank not in one.seen for one in logs if one is not log)
        }
    starts = {
        log.name: min((claim.rank - claim.local_rank for claim in log.agent.claims), default=None) for log in logs
    }
    begun = sorted((start, name) for name, start in starts.items() if start is not None)
    width = max((len(ranks) for ranks in sure.values()), default=0)
    for (start, name), following in zip(begun, [*begun[1:], None], strict=False):
        if following is not None and following[0] - start <= 2 * width:
            sure[name] |= set(range(start, following[0]))
    return {name: tuple(sorted(ranks)) for name, ranks in sure.items()}


def _add_teed(logs: Sequence[NodeLog], sure: dict[str, set[int]]) -> None:
    """Add ranks that only torchrun's marks tell of: a local rank, behind the first rank of its node."""
    if not any(sure.values()) and all(log.teed for log in logs):
        first = 0
        for log in sorted(logs, key=lambda log: natural_key(log.name)):
            sure[log.name] = {first + local for local in log.teed}
            first += max(log.teed) + 1
        return
    for log in logs:
        firsts = {rank - local for rank, local in log.local_of.items()}
        if len(firsts) == 1:
            sure[log.name] |= {min(firsts) + local for local in log.teed}
