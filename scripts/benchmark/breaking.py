"""Ranks that are well until FOLDER has `go`; then the one in the middle raises. Words: FOLDER gloo|alone.

With gloo all ranks are in collectives, as in a training; alone, no rank waits for another.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable


def main(folder: str, way: str) -> None:
    """Work until told to break."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    step: Callable[[], object] = open_group() if way == "gloo" else lambda: None
    step()
    with open(os.path.join(folder, f"{rank}.up"), "w"):  # noqa: PTH118, PTH123 - as short as a test's rank
        pass
    while True:
        step()
        time.sleep(0.05)
        if rank == world // 2 and os.path.exists(os.path.join(folder, "go")):  # noqa: PTH110, PTH118
            with open(os.path.join(folder, "raised"), "w") as file:  # noqa: PTH118, PTH123
                file.write(repr(time.time()))
            raise LookupError("bucket 5 of 8 is empty")


def open_group() -> Callable[[], object]:
    """Join the others, and give what every step of a training does with them."""
    import torch  # noqa: PLC0415 - ranks that are alone need none of it
    import torch.distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo")
    ones = torch.ones(1)
    return lambda: dist.all_reduce(ones)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
