"""A disk of its own for each node: a file system in memory, because one disk for all nodes is what would be measured."""

from __future__ import annotations

from pathlib import Path

from cluster.programs import run

from .nodes import Nodes
from .timing import BenchError

MEMORY = Path("/dev/shm")  # noqa: S108 - where memory is a folder


def give_disks(nodes: Nodes, place: str, mib: int) -> list[Path]:
    """Mount a disk at a place of every node, and give these places as this machine sees them.

    ext4, because a tmpfs keeps other times of files than a disk does. They go away with the nodes.
    """
    return [give_disk(nodes, k, place, mib) for k in nodes.cluster.numbers]


def give_disk(nodes: Nodes, k: int, place: str, mib: int) -> Path:
    """Mount one; its file has no name any more when this is over, and the kernel frees it with the last mount."""
    image = MEMORY / f"{nodes.project.parent.name}-{k}"
    device = ""
    try:
        with image.open("wb") as file:
            file.truncate(mib * 2**20)
        run(["mkfs.ext4", "-q", "-F", str(image)])
        device = run(["losetup", "--find", "--show", str(image)]).strip()
        done = nodes.cluster.exec(k, ["sh", "-c", 'mkdir -p "$2" && mount "$1" "$2"', "sh", device, place])
        if done.returncode:
            raise BenchError(f"no disk on node {k}: {done.stderr}")
    finally:
        image.unlink(missing_ok=True)
        if device:
            run(["losetup", "--detach", device])
    return Path(f"/proc/{nodes.cluster.pid(k)}/root{place}")
