"""Trains a small model on any number of ranks, CPU or GPU: python scripts/train.py --config FILE.

Started by torchrun or by aorta-launch. It needs PyTorch alone; config/train.example.yaml names every key.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from torch.distributed.elastic.multiprocessing.errors import record
from workload.config import Config, find_idle_keys, read_config
from workload.console import Console
from workload.datasets import open_samples
from workload.group import check_equal_nodes, check_same_config, joined_group, stop_requested
from workload.machine import check_machine, find_checkpoint_dir
from workload.metrics import Metrics, find_output_dir
from workload.profiling import end_at_once, profile_steps
from workload.refusal import told_in_one_line
from workload.trackers import open_trackers
from workload.trainer import Outcome, Trainer

if TYPE_CHECKING:
    from orchestrator.distributed import NodeInfo


@record
def main() -> None:
    """Read the config, join the group, train, say how far the held-out loss came."""
    parser = argparse.ArgumentParser(description="Train a small model on any number of ranks.")
    parser.add_argument("--config", type=Path, help="the YAML config; its launch: section is not looked at")
    path = parser.parse_args().config
    with told_in_one_line("train.py"):
        config = read_config(path)
        check_machine(config)
        checkpoints = find_checkpoint_dir(config.checkpoint.dir, path)
        with joined_group(config.distributed.backend, config.distributed.timeout_s) as info:
            console = Console(config.logging.level, info)
            for idle in find_idle_keys(path, config):
                console.warn(idle)
            run(config, info, checkpoints, console)
        if config.profiling.enabled:
            end_at_once()


def run(config: Config, info: NodeInfo, checkpoints: Path, console: Console) -> None:
    """Build and train, on every rank of the group."""
    stop_requested()  # from here on a signal is heard, and ends the run after a whole step
    check_same_config(config, info)
    if config.distributed.mode == "fsdp" and config.fsdp.sharding_strategy == "hybrid_shard":
        check_equal_nodes(info)
    folder = find_output_dir()
    samples = open_samples(config.dataset)
    trackers = open_trackers(config.logging, info, folder, settings=dataclasses.asdict(config))
    with contextlib.ExitStack() as stack:
        metrics = stack.enter_context(Metrics(folder, info, trackers=trackers))
        profile = stack.enter_context(profile_steps(config.profiling, info, folder, metrics))
        trainer = Trainer(config, info, samples, checkpoints, console)
        outcome = trainer.train(metrics, profile)
    tell(outcome, samples.best_loss(), trainer.steps, console)


def tell(outcome: Outcome, best: float | None, steps: int, console: Console) -> None:
    """Say how far it came."""
    if outcome.is_stopped:
        kept = "saved there" if outcome.is_saved else "not saved, as checkpoint.interval is 0"
        console.result(f"stopped after step {outcome.step} of {steps} as asked; {kept}")
        return  # nothing was held against the held-out data at that step
    noise = "" if best is None else f" (no model can come below {best:.4f} on this data)"
    console.result(f"held-out loss: first {outcome.first:.4f}, last {outcome.last:.4f}{noise}")


if __name__ == "__main__":
    main()
