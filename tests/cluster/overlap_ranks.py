"""One rank of two that train the same model twice: gradients reduced while the backward pass goes on, and after it.

Then a third time, with a failure in the middle of a profiled step.
"""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from workload.metrics import Metrics
from workload.profiling import profile_steps
from workload.schema import Profiling

FIRST, LAST, FAILS_AT = 11, 16, 14
WIDTH, LAYERS, BATCH = 384, 8, 192


@dataclass(frozen=True)
class Info:
    rank: int
    node_rank: int
    world_size: int
    host: str
    device: torch.device


def train(folder: Path, info: Info, *, bucketed: bool, fails: bool = False) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    network = DistributedDataParallel(model, bucket_cap_mb=1) if bucketed else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    profiling = Profiling(enabled=True, wait=1, warmup=1, active=2, repeat=1)
    with Metrics(folder, info) as metrics, profile_steps(profiling, info, folder, metrics) as profile:
        for step in range(FIRST, LAST + 1):
            with profile.step(step):
                metrics.start_step(step)
                loss = network(torch.randn(BATCH, WIDTH)).square().mean()
                torch.autograd.backward(loss)
                if not bucketed:
                    for parameter in model.parameters():
                        distributed.all_reduce(parameter.grad)
                if fails and step == FAILS_AT:
                    raise RuntimeError("planted")
                optimizer.step()
                optimizer.zero_grad()
                metrics.end_step(loss=loss, lr=0.01, grad_norm=None, samples=BATCH, tokens=None)


def main() -> None:
    folder = Path(sys.argv[1])
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    info = Info(rank, rank, distributed.get_world_size(), socket.gethostname(), torch.device("cpu"))
    train(folder / "bucketed", info, bucketed=True)
    train(folder / "after", info, bucketed=False)
    train(folder / "failed", info, bucketed=False, fails=True)


if __name__ == "__main__":
    main()
