"""Hugging Face Accelerate: prepare, gather_for_metrics, save_state and load_state, on any number of processes and nodes."""

from __future__ import annotations

import argparse
import math
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, gather_object, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

COMPLETE = "complete"
"""A file that says that every process had written its part of a checkpoint."""


def build_data(samples: int, seed: int) -> TensorDataset:
    """Build points (samples, 2) and their class, 1 within a circle and 0 outside; the seed changes the points alone."""
    points = torch.randn(samples, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(points, (points.norm(dim=1) < math.sqrt(2)).long())


def say(accelerator: Accelerator, text: str) -> None:
    """Print once; accelerator.print does so once a node."""
    if accelerator.is_main_process:
        print(text, flush=True)


def find_checkpoint(accelerator: Accelerator, folder: Path) -> int:
    """Find the newest epoch whose checkpoint is whole on every node's disk; 0 when there is none."""
    mine = {int(path.parent.name.removeprefix("epoch_")) for path in folder.glob(f"epoch_*/{COMPLETE}")}
    held: list[set[int]] = gather_object([mine])
    newest = max(set.intersection(*held), default=0)
    if any(max(epochs, default=0) > newest for epochs in held):
        say(accelerator, f"not every node holds the same checkpoints: {held}")
    return newest


def save_checkpoint(accelerator: Accelerator, folder: Path, epoch: int) -> None:
    """Save what every process has, and keep the last two; a save that is broken off leaves no file COMPLETE."""
    (folder / f"epoch_{epoch}" / COMPLETE).unlink(missing_ok=True)
    accelerator.save_state(str(folder / f"epoch_{epoch}"))
    accelerator.wait_for_everyone()
    (folder / f"epoch_{epoch}" / COMPLETE).touch()
    shutil.rmtree(folder / f"epoch_{epoch - 2}", ignore_errors=True)


def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader[Any]) -> tuple[float, int]:
    """Measure the part of right answers and the number of samples, each counted once over all processes."""
    model.eval()
    right = []
    for points, classes in loader:
        with torch.no_grad():
            answers = model(points).argmax(dim=1)
        # The last batch was filled up so that all processes get one: what was added is cut off here.
        right.append(accelerator.gather_for_metrics(answers == classes))
    model.train()
    everywhere = torch.cat(right).float()
    return everywhere.mean().item(), len(everywhere)


def train(accelerator: Accelerator, epochs: int, folder: Path) -> None:
    """Train to the end, from the newest checkpoint on."""
    set_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(build_data(4096, seed=1), batch_size=64, shuffle=True)
    # A number of samples that no number of processes divides.
    held_out = DataLoader(build_data(509, seed=2), batch_size=64)
    model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
    first, samples = evaluate(accelerator, model, held_out)
    if start := find_checkpoint(accelerator, folder):
        accelerator.load_state(str(folder / f"epoch_{start}"))
    say(accelerator, f"starts at epoch {start} on {accelerator.num_processes} processes")
    for epoch in range(start, epochs):
        loader.set_epoch(epoch)
        for points, classes in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(points), classes))
            optimizer.step()
        save_checkpoint(accelerator, folder, epoch + 1)
        say(accelerator, f"epoch {epoch + 1} of {epochs}")
    last, _ = evaluate(accelerator, model, held_out)
    sums = gather_object([float(nn.utils.parameters_to_vector(model.parameters()).double().sum().detach())])
    if len(set(sums)) > 1:
        raise RuntimeError(f"the processes hold different weights: {sums}")
    say(accelerator, f"right {first:.3f} -> {last:.3f} of {samples} samples, the same on all {len(sums)} ranks")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output-dir", type=Path, default=Path("~/.aorta/checkpoints/accelerate_train"))
    parser.add_argument("--shared-disk", action="store_true", help="all nodes see one disk: the main node alone saves")
    words = parser.parse_args()
    project = ProjectConfiguration(save_on_each_node=not words.shared_disk)
    # Without cpu=True, processes of a machine without a GPU do not find each other, and each trains alone.
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), project_config=project)
    if accelerator.num_processes != int(os.environ.get("WORLD_SIZE", "1")):
        raise SystemExit(f"Accelerate sees {accelerator.num_processes} processes of {os.environ['WORLD_SIZE']}")
    train(accelerator, words.epochs, words.output_dir.expanduser())
    accelerator.end_training()
