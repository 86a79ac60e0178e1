"""For every key of the training config: a change of it, and where the change must be seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Config = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """A key's other value, what is looked at, and what else the config says."""

    value: Any
    looked_at: str
    base: Config = field(default_factory=dict)
    also: Config = field(default_factory=dict)
    """What changes with it, where it cannot change alone."""
    more: dict[str, Any] = field(default_factory=dict)
    """What the case needs beside its config."""


FSDP: Config = {"distributed": {"mode": "fsdp"}}
SGD: Config = {"optimizer": {"name": "sgd"}}
RANKING: Config = {"dataset": {"name": "ranking"}, "model": {"name": "ranking"}}
TEXT: Config = {"dataset": {"name": "text", "vocab_size": 256, "path": "FOLDER/one.txt"}}
SAVING: Config = {"checkpoint": {"interval": 1}}
WANDB: Config = {"logging": {"wandb": True}}
COMPILE: Config = {"compile": {"enabled": True, "backend": "eager"}}
INDUCTOR: Config = {"compile": {"enabled": True}}
WORKERS: Config = {"dataloader": {"num_workers": 1}, "dataset": {"num_samples": 40}}
TRACED: Config = {"profiling": {"enabled": True, "wait": 0, "warmup": 0, "active": 1}}
CALLS = {"calls": True}

ROWS = {
    "logging.level": Row("warning", "log"),
    "logging.tensorboard": Row(value=True, looked_at="refused files"),
    "logging.wandb": Row(value=True, looked_at="files"),
    "logging.wandb_project": Row("mine", "files", WANDB),
    "logging.wandb_mode": Row("online", "files", WANDB),
    "logging.per_rank": Row(value=True, looked_at="files", base=WANDB),
    "training.max_steps": Row(4, "step"),
    "training.epochs": Row(1, "step", {"dataset": {"num_samples": 8}}),
    "training.batch_size": Row(3, "loss"),
    "training.gradient_accumulation": Row(2, "loss"),
    "training.mixed_precision": Row("bf16", "loss"),
    "training.grad_clip_norm": Row(1e-3, "loss", SGD),
    "training.seed": Row(2, "loss"),
    "training.log_interval": Row(1, "log"),
    "training.eval_interval": Row(1, "held_out_loss"),
    "training.eval_samples": Row(7, "held_out_loss"),
    "training.activation_checkpointing": Row(value=True, looked_at="calls", more=CALLS),
    "training.shuffle_targets": Row(value=True, looked_at="loss"),
    "checkpoint.dir": Row("elsewhere", "kept", SAVING),
    "checkpoint.interval": Row(2, "kept"),
    "checkpoint.keep": Row(1, "kept", SAVING),
    "checkpoint.resume": Row(value=False, looked_at="step", base=SAVING, more={"home": "shared"}),
    "optimizer.name": Row("adam", "loss", {"optimizer": {"weight_decay": 0.5}}),
    "optimizer.lr": Row(0.1, "loss"),
    "optimizer.weight_decay": Row(0.9, "loss"),
    "optimizer.betas": Row([0.5, 0.6], "loss"),
    "optimizer.eps": Row(0.1, "loss"),
    "optimizer.momentum": Row(0.9, "loss", SGD),
    "scheduler.name": Row("constant", "lr"),
    "scheduler.warmup_steps": Row(2, "lr"),
    "scheduler.total_steps": Row(9, "lr"),
    "scheduler.min_lr_ratio": Row(0.5, "lr"),
    "dataset.name": Row("text", "loss", {"dataset": {"vocab_size": 256}}),
    "dataset.num_samples": Row(100, "loss"),
    "dataset.sequence_length": Row(9, "shapes"),
    "dataset.vocab_size": Row(17, "shapes"),
    "dataset.seed": Row(2, "loss"),
    "dataset.path": Row("FOLDER/other.txt", "loss", TEXT),
    "dataset.dense_dim": Row(5, "shapes", RANKING),
    "dataset.num_dense_features": Row(5, "shapes", RANKING),
    "dataset.sparse_features": Row(5, "shapes", RANKING),
    "model.name": Row("ranking", "shapes", also={"dataset": {"name": "ranking"}}),
    "model.model_dim": Row(12, "shapes"),
    "model.num_heads": Row(1, "loss"),
    "model.num_layers": Row(2, "shapes"),
    "model.mlp_hidden_dim": Row(10, "shapes"),
    "model.dropout": Row(0.5, "loss"),
    "model.embedding_dim": Row(6, "shapes", RANKING),
    "fsdp.sharding_strategy": Row("no_shard", "local", FSDP),
    "fsdp.reduce_dtype": Row("bf16", "grad_norm", FSDP),
    "fsdp.wrap": Row("model", "calls", FSDP, more=CALLS),
    "fsdp.cpu_offload": Row(value=True, looked_at="refused", base=FSDP),
    "distributed.mode": Row("fsdp", "local"),
    "distributed.bucket_cap_mb": Row(0.0001, "calls", {"model": {"num_layers": 2}}, more=CALLS),
    "distributed.gradient_as_bucket_view": Row(value=False, looked_at="grad_storage"),
    "compile.enabled": Row(value=True, looked_at="graphs", base={"compile": {"backend": "eager"}}),
    "compile.backend": Row("aot_eager", "aot", COMPILE),
    "compile.mode": Row("max-autotune", "compiler", INDUCTOR, more={"inductor": True}),
    "compile.fullgraph": Row(value=True, looked_at="log", base=COMPILE, more={"breaks": True}),
    "compile.dynamic": Row(value=True, looked_at="symbols", base={"compile": {"enabled": True, "backend": "keep"}}),
    "dataloader.num_workers": Row(1, "makers", {"dataset": {"num_samples": 40}, "dataloader": {"pin_memory": False}}),
    "dataloader.pin_memory": Row(value=False, looked_at="pinned", base=WORKERS),
    "dataloader.prefetch_factor": Row(3, "ahead", WORKERS),
    "dataloader.persistent_workers": Row(value=False, looked_at="same_makers", base=WORKERS),
    "profiling.enabled": Row(value=True, looked_at="files", base={"profiling": {"wait": 0, "warmup": 0}}),
    "profiling.wait": Row(1, "traced", TRACED),
    "profiling.warmup": Row(1, "traced", TRACED),
    "profiling.active": Row(2, "traced", TRACED),
    "profiling.repeat": Row(2, "traced", TRACED),
    "profiling.ranks": Row([1], "files", TRACED),
    "profiling.record_shapes": Row(value=True, looked_at="recorded", base=TRACED),
    "profiling.profile_memory": Row(value=True, looked_at="recorded", base=TRACED),
    "profiling.with_stack": Row(value=True, looked_at="recorded", base=TRACED),
}
ELSEWHERE = {"distributed.backend", "distributed.timeout_s"}
"""Keys of how the group is joined: tests of test_train_script.py change them in runs of their own."""
