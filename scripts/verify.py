"""Proves that all ranks reach each other: one all-reduce with a known sum, then a table of every rank's place.

Started by torchrun or by aorta-launch. It needs PyTorch alone.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass

import torch
from torch import distributed
from torch.distributed.elastic.multiprocessing.errors import record
from workload.group import Place, join_group


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


def reduce_ranks(place: Place) -> int:
    """Add up the ranks of all, each giving its own."""
    total = torch.tensor([place.rank], dtype=torch.int64, device=place.device)
    distributed.all_reduce(total)
    return int(total.item())


def gather_answers(place: Place, total: int) -> list[Answer]:
    """Collect every rank's answer on every rank."""
    mine = Answer(
        rank=place.rank,
        local_rank=place.local_rank,
        node_rank=place.node_rank,
        host=place.host,
        told_node_rank=os.environ.get("AORTA_NODE_RANK", ""),
        torchrun_node_rank=os.environ.get("GROUP_RANK", ""),
        total=total,
    )
    return [Answer(**json.loads(text)) for text in gather_texts(json.dumps(asdict(mine)), place)]


def gather_texts(text: str, place: Place) -> list[str]:
    """Collect one text of every rank, in rank order."""
    # torch's own gathering of objects needs NumPy, which a node may lack.
    data = text.encode()
    longest = torch.tensor([len(data)], device=place.device)
    distributed.all_reduce(longest, distributed.ReduceOp.MAX)
    padded = torch.tensor(list(data.ljust(int(longest.item()))), dtype=torch.uint8, device=place.device)
    parts = [torch.empty_like(padded) for _ in range(place.world_size)]
    distributed.all_gather(parts, padded)
    return [bytes(part.tolist()).decode().rstrip() for part in parts]


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
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths)) for row in rows)  # noqa: B905 - Python 3.9
    return "\n".join(line.rstrip() for line in lines)


@record
def main() -> None:
    """Add up, gather, judge; exit 1 when something is wrong."""
    place = join_group()
    answers = gather_answers(place, reduce_ranks(place))
    faults = find_faults(answers)
    if place.rank == 0:
        print(render_table(answers), flush=True)
        if not faults:
            print(f"sum right: {answers[0].total} of {len(answers)} ranks", flush=True)
        for fault in faults:
            print(fault, file=sys.stderr, flush=True)
    distributed.barrier()
    distributed.destroy_process_group()
    if faults:
        sys.exit(1)


if __name__ == "__main__":
    main()
