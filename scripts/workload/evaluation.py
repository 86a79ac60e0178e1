"""The loss over samples that training never shows, the same for any number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from orchestrator.distributed import all_reduce
from workload.precision import build_autocast

if TYPE_CHECKING:
    from orchestrator.distributed import NodeInfo
    from workload.parallel import Parallel
    from workload.samples import Samples
    from workload.schema import Config


class HeldOut:
    """This rank's share of the held-out samples."""

    def __init__(self, config: Config, samples: Samples, info: NodeInfo) -> None:
        self._config = config
        self._device = info.device
        count = config.training.eval_samples
        # Every rank takes part in every forward pass, as sharded weights are gathered there; what comes twice to make
        # shares equal does not count.
        share = -(-count // info.world_size)
        index = torch.arange(share) * info.world_size + info.rank
        self._valid = int((index < count).sum())
        self._batches = [
            samples.build(part, held_out=True)
            for part in torch.split(index.clamp(max=count - 1), config.training.batch_size)
        ]

    def evaluate(self, parallel: Parallel, compute_loss: Any) -> float:
        """Compute the mean loss over the samples of all ranks; a collective."""
        model, device = parallel.evaluated, self._device
        total = torch.zeros(2, dtype=torch.float64, device=device)
        left = self._valid
        model.eval()
        with torch.no_grad(), build_autocast(self._config, device):
            for batch in self._batches:
                outputs = model(*[part.to(device) for part in batch.inputs])
                valid = max(min(left, len(outputs)), 0)
                loss, count = compute_loss(outputs[:valid], batch.targets[:valid].to(device), "sum")
                total += torch.stack([loss.double(), count.double()])
                left -= len(outputs)
        model.train()
        total = all_reduce(total)
        return float(total[0] / total[1])
