"""Proves that all ranks reach each other: one all-reduce with a known sum, then a table of every rank's place.

Started by torchrun or by aorta-launch. It needs PyTorch alone.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass

import torch
from torch.distributed.elastic.multiprocessing.errors import record
from workload.group import NodeInfo, all_gather_object, all_reduce, joined_group


@dataclass(frozen=True)
class Answer:
    """What one rank says of itself, and the sum that it got."""

    rank: int
    local_rank: int
    node_rank: int
    host: str
    told_node_rank: str
    """AORTA_NODE_RANK as the launcher gave it; empty without one."""
    torchrun_node_rank: str
    total: int


def reduce_ranks(info: NodeInfo) -> int:
    """Add up the ranks of all, each giving its own."""
    return int(all_reduce(torch.tensor([info.rank], dtype=torch.int64, device=info.device)).item())


def gather_answers(info: NodeInfo, total: int) -> list[Answer]:
    """Collect every rank's answer on every rank."""
    mine = Answer(
        rank=info.rank,
        local_rank=info.local_rank,
        node_rank=info.node_rank,
        host=info.host,
        told_node_rank=os.environ.get("AORTA_NODE_RANK", ""),
        torchrun_node_rank=os.environ.get("GROUP_RANK", ""),
        total=total,
    )
    return [Answer(**told) for told in all_gather_object(asdict(mine))]


def find_faults(answers: list[Answer]) -> list[str]:
    """Name everything that is not as it must be."""
    size = len(answers)
    wanted = size * (size - 1) // 2
    faults = [
        f"sum wrong: rank {answer.rank} on {answer.host} got {answer.total}, {wanted} is right for {size} ranks"
        for answer in answers
        if answer.total != wanted
    ]
    faults += [
        f"place wrong: rank {answer.rank} on {answer.host} was told node rank {answer.told_node_rank}, "
        f"torchrun says {answer.torchrun_node_rank}"
        for answer in answers
        if answer.told_node_rank
        and answer.torchrun_node_rank
        and int(answer.told_node_rank) != int(answer.torchrun_node_rank)
    ]
    if [answer.rank for answer in answers] != list(range(size)):
        faults.append(f"ranks wrong: {[answer.rank for answer in answers]} of {size}")
    return faults


def render_table(answers: list[Answer]) -> str:
    """Render every rank's place, in rank order."""
    rows = [("rank", "local rank", "node rank", "host", "AORTA_NODE_RANK")]
    rows += [
        (str(a.rank), str(a.local_rank), str(a.node_rank), a.host, a.told_node_rank or "-")
        for a in sorted(answers, key=lambda answer: answer.rank)
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


@record
def main() -> None:
    """Add up, gather, judge; exit 1 when something is wrong."""
    with joined_group() as info:
        answers = gather_answers(info, reduce_ranks(info))
        faults = find_faults(answers)
        if info.rank == 0:
            print(render_table(answers), flush=True)
            if not faults:
                print(f"sum right: {answers[0].total} of {len(answers)} ranks", flush=True)
            for fault in faults:
                print(fault, file=sys.stderr, flush=True)
    if faults:
        sys.exit(1)


if __name__ == "__main__":
    main()
