"""All-reduce with torch alone, started by hand: raw_all_reduce.py BYTES…; rank 0 writes one JSON line of [bytes, seconds]."""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist

EACH_S = 0.5
MOST = 200


def main() -> None:
    """Measure each size as long as half a second takes."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")

    def settle() -> None:
        if cuda:
            torch.cuda.synchronize()

    def timed(data: torch.Tensor, number: int) -> float:
        settle()
        began = time.perf_counter()
        for _ in range(number):
            dist.all_reduce(data)
        settle()
        slowest = torch.tensor([(time.perf_counter() - began) / number], device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return float(slowest.item())

    rows = []
    for size in map(int, sys.argv[1:]):
        data = torch.ones(max(1, size // 4), device=device)
        timed(data, 2)
        once = timed(data, 1)
        number = max(1, min(MOST, int(EACH_S / once)))
        rows.append([size, timed(data, number)])
        del data
    if dist.get_rank() == 0:
        print(json.dumps(rows), flush=True)
    dist.destroy_process_group()


main()
