"""Lightning under torchrun: the Trainer takes nodes and devices from torchrun's environment, and every node keeps checkpoints."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RANK, LOCAL_RANK, PROCESSES = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
NODES = int(os.environ["GROUP_WORLD_SIZE"])


def build_data(samples: int, seed: int) -> TensorDataset:
    """Build points (samples, 2) and the class of each, 1 where both coordinates have the same sign."""
    points = torch.randn(samples, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(points, (points.prod(dim=1) > 0).long())


class Classifier(lightning.LightningModule):
    """Two layers; one could not tell the quadrants apart."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch: Sequence[torch.Tensor], _: int) -> torch.Tensor:
        """Give the loss of one batch."""
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch: Sequence[torch.Tensor], index: int) -> None:
        """Log the loss of one batch of the data that is not trained on; sync_dist: the mean over all processes."""
        self.log("held_out", self.training_step(batch, index), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Give the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class SaveOnEachNode(DDPStrategy):
    """DDP whose checkpoints one process of each node writes; Lightning's own writes them on the main node alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder  # of this node: Lightning hands the main node's folder to all

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write one, as a whole or not at all."""
        if LOCAL_RANK == 0:
            self.checkpoint_io.save_checkpoint(checkpoint, self.folder / Path(filepath).name, storage_options)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove one."""
        if LOCAL_RANK == 0:
            (self.folder / Path(filepath).name).unlink(missing_ok=True)  # on a shared disk another node was faster


def gather(value: Any) -> list[Any]:
    """Give every process the value of each."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def find_checkpoint(folder: Path) -> Path | None:
    """Find the newest checkpoint that every node's disk holds; None when there is none."""
    held = gather({int(path.stem.rpartition("=")[2]) for path in folder.glob("step=*.ckpt")})
    common = set.intersection(*held)
    if RANK == 0 and set.union(*held) != common:
        print(f"not every node holds the same checkpoints: {held}", flush=True)
    return folder / f"step={max(common)}.ckpt" if common else None


def train(epochs: int, folder: Path) -> None:
    """Train to the end, from the newest checkpoint on."""
    lightning.seed_everything(1)
    model, data, held_out = Classifier(), build_data(2048, seed=1), build_data(509, seed=2)
    first = model.training_step(held_out.tensors, 0).item()
    checkpoint = find_checkpoint(folder)
    if RANK == 0:
        print(f"starts from {checkpoint.name if checkpoint else 'the beginning'}", flush=True)
    options = {"monitor": "step", "mode": "max", "save_top_k": 2, "enable_version_counter": False}
    trainer = lightning.Trainer(
        num_nodes=NODES,
        devices=PROCESSES,
        strategy=SaveOnEachNode(folder),
        max_epochs=epochs,
        callbacks=[ModelCheckpoint(folder, "{step}", **options)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loaders = DataLoader(data, batch_size=32, shuffle=True), DataLoader(held_out, batch_size=32)
    trainer.fit(model, *loaders, ckpt_path=checkpoint)
    last = float(trainer.callback_metrics["held_out"])
    sums = gather(sum(weights.detach().double().sum().item() for weights in model.parameters()))
    if len(set(sums)) > 1:
        raise RuntimeError(f"the processes hold different weights: {sums}")
    if RANK == 0:
        print(f"loss {first:.4f} -> {last:.4f}, the same on all {len(sums)} ranks", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--output-dir", type=Path, default=Path("~/.aorta/checkpoints/lightning_train"))
    words = parser.parse_args()
    if int(os.environ["WORLD_SIZE"]) != NODES * PROCESSES:
        raise SystemExit("Lightning needs the same number of processes on every node; slots= in the node list sets it")
    if torch.cuda.is_available():
        torch.cuda.set_device(LOCAL_RANK)
    # Lightning uses a group that is there.
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    train(words.epochs, words.output_dir.expanduser())
    dist.destroy_process_group()
