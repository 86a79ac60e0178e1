"""Trains a small transformer with DDP on any number of ranks, CPU or GPU: python scripts/train.py --config FILE.

Started by torchrun or by aorta-launch. It needs PyTorch alone.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from workload.config import Config, read_config
from workload.data import HiddenRule
from workload.group import Place, join_group
from workload.metrics import MetricsFile, find_output_dir
from workload.model import Transformer, next_token_loss

HELD_OUT_COUNT = 256
WARM_UP_STEPS = 20
LAST_LR_SHARE = 0.1
GRADIENT_LIMIT = 1.0


class Trainer:
    """One rank's model, data and measurements."""

    def __init__(self, config: Config, place: Place, metrics: MetricsFile) -> None:
        self._config = config
        self._place = place
        self._metrics = metrics
        self.rule = HiddenRule(config.training.seed, config.dataset.vocab_size, config.dataset.sequence_length)
        torch.manual_seed(config.training.seed)
        self._model = Transformer(
            config.dataset.vocab_size,
            config.dataset.sequence_length,
            config.model.d_model,
            config.model.n_layers,
            config.model.n_heads,
        ).to(place.device)
        on_gpu = place.device.type == "cuda"
        self._parallel = DistributedDataParallel(self._model, device_ids=[place.local_rank] if on_gpu else None)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=config.optimizer.lr, weight_decay=config.optimizer.weight_decay
        )
        inputs, targets = self.rule.build_held_out(HELD_OUT_COUNT)
        mine = slice(place.rank, None, place.world_size)
        self._held_out = inputs[mine].to(place.device), targets[mine].to(place.device)

    def train(self) -> tuple[float, float]:
        """Take every step; give the first and the last held-out loss."""
        steps = self._config.training.max_steps
        first = last = self._evaluate()
        self._log(0, held_out_loss=first)
        since, measured = time.perf_counter(), 0
        for step in range(1, steps + 1):
            lr = learning_rate(step, steps, self._config.optimizer.lr)
            loss, norm = self._take_step(step, lr)
            measured += 1
            evaluates = step % self._config.training.eval_every == 0 or step == steps
            if not evaluates and step % self._config.training.log_every:
                continue
            values = {"loss": loss.item(), "lr": lr, "grad_norm": norm.item()}  # a GPU has ended its steps only here
            if not math.isfinite(values["loss"]):
                raise FloatingPointError(f"the loss is {values['loss']} at step {step}")
            values.update(self._speed((time.perf_counter() - since) / measured))
            if evaluates:
                last = values["held_out_loss"] = self._evaluate()
            self._log(step, **values)
            since, measured = time.perf_counter(), 0
        return first, last

    def _take_step(self, step: int, lr: float) -> tuple[torch.Tensor, torch.Tensor]:
        settings, place = self._config.training, self._place
        inputs, targets = self.rule.build_training_batch(step, place.rank, settings.batch_size)
        if settings.shuffle_targets:
            targets = self.rule.shuffle_targets(targets, step, place.rank)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.zero_grad(set_to_none=True)
        loss = next_token_loss(self._parallel(inputs.to(place.device)), targets.to(place.device))
        torch.autograd.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), GRADIENT_LIMIT)
        self._optimizer.step()
        return loss.detach(), norm

    def _evaluate(self) -> float:
        inputs, targets = self._held_out
        total = torch.zeros(2, dtype=torch.float64, device=self._place.device)
        if len(inputs):  # there may be more ranks than held-out sequences
            with torch.no_grad():
                losses = next_token_loss(self._model(inputs), targets, reduction="none")
            total[0], total[1] = losses.double().sum(), losses.numel()
        distributed.all_reduce(total)
        return float(total[0] / total[1])

    def _speed(self, step_s: float) -> dict[str, float]:
        samples = self._config.training.batch_size / step_s
        tokens = samples * self._config.dataset.sequence_length
        return {"step_ms": 1000 * step_s, "samples_per_s": samples, "tokens_per_s": tokens}

    def _log(self, step: int, **values: float) -> None:
        self._metrics.write(step, **values)
        if self._place.rank == 0:
            told = {"loss": "loss", "held_out_loss": "held-out loss", "step_ms": "ms a step"}
            texts = [f"{name} {values[key]:.4g}" for key, name in told.items() if key in values]
            print(f"step {step} of {self._config.training.max_steps}: {', '.join(texts)}", flush=True)


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Rise to the peak, then fall in a line to a share of it."""
    rise = min(WARM_UP_STEPS, steps)
    if step <= rise:
        return peak * step / rise
    return peak * (1 - (1 - LAST_LR_SHARE) * (step - rise) / (steps - rise))


@record
def main() -> None:
    """Join the group, train, say how far the held-out loss came."""
    parser = argparse.ArgumentParser(description="Train a small transformer with DDP.")
    parser.add_argument("--config", type=Path, help="the YAML config; its launch: section is not looked at")
    config = read_config(parser.parse_args().config)
    place = join_group()
    metrics = MetricsFile(find_output_dir(), place.rank, place.node_rank, place.host)
    try:
        trainer = Trainer(config, place, metrics)
        first, last = trainer.train()
    finally:
        metrics.close()
    # Nobody leaves while another still talks to it.
    distributed.barrier()
    distributed.destroy_process_group()
    if place.rank == 0:
        best = trainer.rule.best_loss()
        print(f"held-out loss: first {first:.4f}, last {last:.4f} (the data's noise allows {best:.4f})", flush=True)


if __name__ == "__main__":
    main()
