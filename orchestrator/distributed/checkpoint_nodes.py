"""Which nodes see the same disk: found by looking, since a path says nothing of what is mounted there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.distributed.checkpoint_agree import agree
from orchestrator.distributed.checkpoint_disk import SEEN
from orchestrator.distributed.group import current


@dataclass(frozen=True)
class Disks:
    """The disks below a directory that all ranks name alike; the main process's is the first."""

    leaders: tuple[int, ...]
    """The rank that looks after each disk."""
    disk_of_rank: tuple[int, ...]
    """Which disk each rank sees, as a place in leaders."""

    def ranks_of(self, disk: int) -> list[int]:
        """Give the ranks that see a disk."""
        return [rank for rank, mine in enumerate(self.disk_of_rank) if mine == disk]


def find_disks(named: str, directory: Path, token: str) -> Disks:
    """Find which nodes share the directory: each leaves a file there and looks for the others'.

    Raises:
        DistributedError: a node cannot write there, or look there.
    """
    info = current().info
    is_first = info.local_rank == 0
    mine = directory / f"{SEEN}{token}.{info.node_rank}"
    agree(f"write into {named}", lambda: _leave(directory, mine) if is_first else None)
    try:
        # Asked by name, not by listing: a shared file system may show an old list for a while.
        places = agree(
            f"look into {named}",
            lambda: (
                info.node_rank,
                is_first,
                [node for node in range(info.node_count) if (directory / f"{SEEN}{token}.{node}").exists()]
                if is_first
                else [],
            ),
        )
    finally:
        if is_first:
            mine.unlink(missing_ok=True)
    return group_nodes(places)


def group_nodes(places: Sequence[tuple[int, bool, list[int]]]) -> Disks:
    """Group nodes by whose file each sees; a place is a rank's node, whether it looked, and the nodes it saw."""
    seen = {node: set(found) for node, is_first, found in places if is_first}
    first = {node: rank for rank, (node, is_first, _) in enumerate(places) if is_first}
    disk_of_node: dict[int, int] = {}
    leaders: list[int] = []
    for node in sorted(seen):
        same = [other for other in disk_of_node if other in seen[node] and node in seen[other]]
        if same:
            disk_of_node[node] = disk_of_node[same[0]]
        else:
            disk_of_node[node] = len(leaders)
            leaders.append(first[node])
    return Disks(tuple(leaders), tuple(disk_of_node[node] for node, _, _ in places))


def _leave(directory: Path, mine: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    mine.write_bytes(b"")
