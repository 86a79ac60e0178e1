"""One rank's training: builds what the config names, and takes the steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from orchestrator.distributed import stop_requested
from workload import dice
from workload.compiling import compile_blocks
from workload.evaluation import HeldOut
from workload.models import build_model
from workload.optimizing import build_optimizer, limit_gradients
from workload.parallel import Parallel, count_parameters, spread
from workload.precision import build_autocast, build_scaler
from workload.sampling import Batches
from workload.saving import Saving
from workload.schedule import learning_rate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orchestrator.distributed import NodeInfo
    from workload.console import Console
    from workload.metrics import Metrics
    from workload.profiling import StepProfiler
    from workload.samples import Batch, Samples
    from workload.schema import Config

DROPOUT = 11


class Trained(NamedTuple):
    """What changes while training, and so what a checkpoint holds."""

    parallel: Parallel
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler


class Outcome(NamedTuple):
    """How far it came."""

    first: float
    last: float
    step: int
    is_stopped: bool
    is_saved: bool


class Trainer:
    """Takes the steps that the config asks for."""

    def __init__(self, config: Config, info: NodeInfo, samples: Samples, folder: Path, console: Console) -> None:
        self._config, self._info, self._console = config, info, console
        self._batches = Batches(config, samples, info.world_size, info.device)
        self._held_out = HeldOut(config, samples, info)
        model = build_model(config.model, config.dataset, config.training.seed)
        model.blocks.recompute = config.training.activation_checkpointing
        self._compute_loss = model.compute_loss
        if config.compile.enabled:
            first = samples.build(torch.arange(config.training.batch_size), held_out=False)
            trouble = compile_blocks(model.to(info.device), config, first)
            if trouble:
                console.warn(f"the model runs uncompiled: {trouble}")
        parallel = spread(model, config, info)
        optimizer = build_optimizer(config.optimizer, parallel.model.parameters())
        self.trained = Trained(parallel, optimizer, build_scaler(config, info.device))
        self._parameters = list(parallel.model.parameters())
        self._saving = Saving(config.checkpoint, config.optimizer, folder, self.trained)
        self._begun, samples_drawn = self._saving.load()
        self._per_step = config.training.gradient_accumulation
        self._drawn = samples_drawn // (config.training.batch_size * info.world_size)
        self.steps = self._count_steps()
        whole, mine = count_parameters(parallel.model)
        console.debug(
            f"{config.model.name} with {whole} weights, {mine} here; {config.distributed.mode}, {info.device}"
        )

    def _count_steps(self) -> int:
        training = self._config.training
        if training.epochs is None:
            return training.max_steps
        # Counted from the samples that are left: the steps until now may have been of another number of ranks.
        left = max(training.epochs * self._batches.per_epoch - self._drawn, 0)
        return min(training.max_steps, self._begun + max(left // self._per_step, 0 if self._begun else 1))

    def train(self, metrics: Metrics, profile: StepProfiler) -> Outcome:
        """Take every step that is left; give the first and the last held-out loss."""
        training = self._config.training
        stops = stop_requested()  # from here on a signal ends the run after a whole step
        if self._begun:
            self._console.info(f"goes on from the checkpoint of step {self._begun}")
        if self._begun >= self.steps:
            self._console.warn(f"nothing is left to do: the checkpoint is of step {self._begun} of {self.steps}")
        first = last = self._held_out.evaluate(self.trained.parallel, self._compute_loss)
        metrics.evaluated(self._begun, first)
        self._console.info(f"step {self._begun} of {self.steps}: held-out loss {first:.4g}")
        stream, step, saved = self._batches.draw_from(self._drawn), self._begun, self._begun > 0
        while step < self.steps and not stops:
            step += 1
            with profile.step(step):
                self._take_step(step, stream, metrics)
            stops = stop_requested()
            is_last = stops or step == self.steps
            evaluates = step == self.steps or step % training.eval_interval == 0
            saves = self._saving.is_due(step, is_last=is_last)
            if saves:
                self._refuse_broken_weights(step)
            if not (is_last or evaluates or saves or step % training.log_interval == 0):
                continue
            held_out = None
            if evaluates and not stops:
                held_out = last = self._held_out.evaluate(self.trained.parallel, self._compute_loss)
                metrics.evaluated(step, held_out)
            lines = metrics.flush()
            _refuse_not_finite(lines)
            self._console.step(self.steps, lines, held_out)
            saved = saved and not saves
            if saves:
                self._saving.save(step, self._drawn * training.batch_size * self._info.world_size)
                saved = True
                self._console.info(f"saved the checkpoint of step {step}")
        return Outcome(first, last, step, stops, saved)

    def _refuse_broken_weights(self, step: int) -> None:
        """Save no weights that are not finite: every later launch would go on from them, and good ones make room."""
        norms = [weight.detach().norm() for weight in self._parameters]
        total = sum(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm) for norm in norms)
        if not math.isfinite(total):
            raise FloatingPointError(f"the weights are not finite after step {step}: they are not saved")

    def _take_step(self, step: int, stream: Iterator[Batch], metrics: Metrics) -> None:
        config, info, trained = self._config, self._info, self.trained
        metrics.start_step(step)
        lr = learning_rate(step, config.optimizer.lr, config.scheduler, self.steps)
        for group in trained.optimizer.param_groups:
            group["lr"] = lr
        # Dropout follows from the step and the rank, not from what was drawn before: a resumed run drops the same.
        torch.manual_seed(dice.mix_seed(config.training.seed, DROPOUT, step, info.rank))
        trained.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=info.device)
        for number in range(1, self._per_step + 1):
            with metrics.waiting_for_data():
                batch = next(stream)
            self._drawn += 1
            total += self._add_gradients(batch, is_last=number == self._per_step)
        trained.scaler.unscale_(trained.optimizer)
        norm = limit_gradients(self._parameters, config.training.grad_clip_norm)
        trained.scaler.step(trained.optimizer)
        trained.scaler.update()
        count = config.training.batch_size * self._per_step
        tokens = count * config.dataset.sequence_length if config.model.name == "gpt" else None
        metrics.end_step(loss=total, lr=lr, grad_norm=norm, samples=count, tokens=tokens)

    def _add_gradients(self, batch: Batch, *, is_last: bool) -> torch.Tensor:
        config, device, trained = self._config, self._info.device, self.trained
        with trained.parallel.accumulate(is_last=is_last):
            inputs = [part.to(device, non_blocking=True) for part in batch.inputs]
            with build_autocast(config, device):
                outputs = trained.parallel.model(*inputs)
                loss, _ = self._compute_loss(outputs, batch.targets.to(device, non_blocking=True))
            # Each batch counts as much as the others: together they are the mean over all of the step's samples.
            loss = loss / self._per_step
            torch.autograd.backward(trained.scaler.scale(loss))
        return loss.detach()


def _refuse_not_finite(lines: list[dict[str, object]]) -> None:
    for line in lines:
        found = line.get("not_finite")
        for name, told in (("loss", "the loss"), ("held_out_loss", "the held-out loss")):
            if isinstance(found, dict) and name in found:
                raise FloatingPointError(f"{told} is {found[name]} at step {line['step']}")
