"""Every key of the training config: its default, what it may be, and what it does in one line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class ConfigError(ValueError):
    """A config that cannot be used here, told in one line."""


def _key(
    default: Any,
    doc: str,
    *,
    kind: str = "",
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
    only: str = "",
) -> Any:
    # only: "section.key=value|value", where the key has no effect with any other value.
    about: dict[str, Any] = {"doc": doc, "kind": kind or type(default).__name__, "choices": choices, "only": only}
    about.update(least=least, above=above, most=most, below=below, optional=default is None)
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Logging:
    """What is told, and to whom."""

    level: str = _key(
        "info", "debug: every rank tells what it built; warning: no line a step.", choices=("debug", "info", "warning")
    )
    tensorboard: bool = _key(default=False, doc="Write event files for TensorBoard, where it is installed.")
    wandb: bool = _key(
        default=False, doc="Log to Weights & Biases, where it is installed; its key comes from WANDB_API_KEY."
    )
    wandb_project: str = _key("aorta-launch", "The project there.", only="logging.wandb=true")
    wandb_mode: str = _key(
        "offline", "offline writes files to be synced later.", choices=("offline", "online"), only="logging.wandb=true"
    )
    per_rank: bool = _key(
        default=False, doc="Trackers get one run a rank, in a group, instead of the main process's alone."
    )


@dataclass(frozen=True)
class Training:
    """How long, how much a step, and how precisely."""

    max_steps: int = _key(200, "Steps of the optimizer.", least=1)
    epochs: int | None = _key(
        None, "Passes through the dataset; whichever of the two ends first. null: no limit.", kind="int", least=1
    )
    batch_size: int = _key(32, "Samples on each rank, before accumulation.", least=1)
    gradient_accumulation: int = _key(1, "Batches of each rank that make one step.", least=1)
    mixed_precision: str = _key("none", "none, bf16, or fp16 with a loss scaler.", choices=("none", "bf16", "fp16"))
    grad_clip_norm: float = _key(1.0, "Largest norm of all gradients together; 0: no limit.", least=0)
    seed: int = _key(1, "Weights, the order of samples, dropout.", least=0, most=2**31)
    log_interval: int = _key(10, "Steps from one line on the screen to the next; metrics have every step.", least=1)
    eval_interval: int = _key(
        50, "Steps from one held-out loss to the next; there is one at the start and the end.", least=1
    )
    eval_samples: int = _key(256, "Held-out samples, shared by all ranks.", least=1, most=10**7)
    activation_checkpointing: bool = _key(
        default=False, doc="Compute each block again in the backward pass instead of keeping it."
    )
    shuffle_targets: bool = _key(
        default=False, doc="The control: targets of other samples, so that nothing can be learned."
    )


@dataclass(frozen=True)
class Checkpoint:
    """What is saved, where, and when."""

    dir: str | None = _key(
        None,
        "A folder outside of run and project; a relative one lies below ~/.aorta/checkpoints. null: named after the config.",
        kind="str",
        only="checkpoint.interval=>0",
    )
    interval: int = _key(0, "Steps from one checkpoint to the next; 0: none is saved or loaded.", least=0)
    keep: int = _key(3, "The newest so many stay.", least=1, only="checkpoint.interval=>0")
    resume: bool = _key(
        default=True, doc="Go on from the last whole one; false begins anew.", only="checkpoint.interval=>0"
    )


@dataclass(frozen=True)
class Optimizer:
    """How weights follow gradients."""

    name: str = _key("adamw", "adamw, adam or sgd.", choices=("adamw", "adam", "sgd"))
    lr: float = _key(5e-3, "The peak of the learning rate.", above=0)
    weight_decay: float = _key(0.01, "Decay of the weights.", least=0)
    betas: tuple[float, ...] = _key((0.9, 0.999), "Of adamw and adam.", kind="betas", only="optimizer.name=adamw|adam")
    eps: float = _key(1e-8, "Of adamw and adam.", above=0, only="optimizer.name=adamw|adam")
    momentum: float = _key(0.0, "Of sgd.", least=0, below=1, only="optimizer.name=sgd")


@dataclass(frozen=True)
class Scheduler:
    """How the learning rate goes."""

    name: str = _key(
        "linear", "After the warm-up: linear, cosine or constant.", choices=("linear", "cosine", "constant")
    )
    warmup_steps: int = _key(20, "Steps from 0 to the peak.", least=0)
    total_steps: int | None = _key(
        None,
        "The step where the lowest rate is reached; null: training.max_steps.",
        kind="int",
        least=1,
        only="scheduler.name=linear|cosine",
    )
    min_lr_ratio: float = _key(
        0.1, "The lowest rate, as a share of the peak.", least=0, most=1, only="scheduler.name=linear|cosine"
    )


@dataclass(frozen=True)
class Dataset:
    """What is learned from."""

    name: str = _key(
        "rule",
        "rule: synthetic sequences; text: a real text; ranking: synthetic clicks.",
        choices=("rule", "text", "ranking"),
    )
    num_samples: int = _key(100_000, "Samples of one epoch.", least=1, most=2**28)
    sequence_length: int = _key(32, "Tokens of a sequence; of ranking: events of a user's history.", least=4)
    vocab_size: int = _key(
        32, "Tokens; of text 256 and more, the bytes first; of ranking: values of each sparse feature.", least=8
    )
    seed: int = _key(1, "What synthetic data is drawn from; of text: where samples begin.", least=0, most=2**31)
    path: str | None = _key(
        None,
        "A text file, the same on every node; null: made from files of Python's standard library.",
        kind="str",
        only="dataset.name=text",
    )
    dense_dim: int = _key(4, "Numbers of each dense feature.", least=1, only="dataset.name=ranking")
    num_dense_features: int = _key(4, "Dense features of a sample.", least=1, only="dataset.name=ranking")
    sparse_features: int = _key(3, "Sparse features of each event.", least=1, only="dataset.name=ranking")


@dataclass(frozen=True)
class Model:
    """What learns."""

    name: str = _key("gpt", "gpt for rule and text, ranking for ranking.", choices=("gpt", "ranking"))
    model_dim: int = _key(64, "Width.", least=1, most=2**17)
    num_heads: int = _key(4, "Attention heads; model_dim is a multiple of them.", least=1)
    num_layers: int = _key(2, "Blocks.", least=1)
    mlp_hidden_dim: int | None = _key(
        None, "Width inside of a block's second half; null: four times model_dim.", kind="int", least=1
    )
    dropout: float = _key(0.0, "Share of values that a block drops in training.", least=0, below=1)
    embedding_dim: int = _key(16, "Width of a sparse feature's embedding.", least=1, only="model.name=ranking")


@dataclass(frozen=True)
class Fsdp:
    """How weights are spread over the ranks."""

    sharding_strategy: str = _key(
        "full_shard",
        "full_shard, shard_grad_op, no_shard, or hybrid_shard: shards inside a node, replicas across nodes.",
        choices=("full_shard", "shard_grad_op", "no_shard", "hybrid_shard"),
        only="distributed.mode=fsdp",
    )
    reduce_dtype: str = _key(
        "fp32",
        "What gradients travel as: fp32, bf16 or fp16.",
        choices=("fp32", "bf16", "fp16"),
        only="distributed.mode=fsdp",
    )
    wrap: str = _key(
        "block",
        "What is gathered at once: a block, or the whole model.",
        choices=("block", "model"),
        only="distributed.mode=fsdp",
    )
    cpu_offload: bool = _key(
        default=False,
        doc="Keep the shards of weights, gradients and optimizer in the memory of the host; of GPUs.",
        only="distributed.mode=fsdp",
    )


@dataclass(frozen=True)
class Distributed:
    """How the ranks work together."""

    mode: str = _key("ddp", "ddp: a whole model on each rank; fsdp: see there.", choices=("ddp", "fsdp"))
    backend: str | None = _key(None, "Of torch.distributed, like gloo; null: nccl on GPUs, gloo on CPUs.", kind="str")
    timeout_s: float = _key(120.0, "How long a rank waits for the others before it fails.", above=0)
    bucket_cap_mb: float = _key(
        25.0, "MiB of gradients that travel at once.", above=0, most=2**20, only="distributed.mode=ddp"
    )
    gradient_as_bucket_view: bool = _key(
        default=True, doc="Gradients lie in what travels: saves a copy of them.", only="distributed.mode=ddp"
    )


@dataclass(frozen=True)
class Compile:
    """torch.compile of each block; where it fails the model runs uncompiled, with a warning."""

    enabled: bool = _key(default=False, doc="Compile.")
    backend: str = _key("inductor", "Of torch.compile.", only="compile.enabled=true")
    mode: str = _key(
        "default",
        "Of inductor.",
        choices=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        only="compile.enabled=true",
    )
    fullgraph: bool = _key(default=False, doc="A break of the graph is a failure.", only="compile.enabled=true")
    dynamic: bool | None = _key(
        None, "Compile for any shape; null: as torch sees fit.", kind="bool", only="compile.enabled=true"
    )


@dataclass(frozen=True)
class Dataloader:
    """Who makes the batches."""

    num_workers: int = _key(0, "Processes beside each rank that make its batches; 0: the rank itself.", least=0)
    pin_memory: bool | None = _key(
        None, "Batches in pinned memory, copied beside the work; null: on GPUs.", kind="bool"
    )
    prefetch_factor: int = _key(2, "Batches that each worker makes ahead.", least=1, only="dataloader.num_workers=>0")
    persistent_workers: bool = _key(
        default=True, doc="Workers stay for the next epoch.", only="dataloader.num_workers=>0"
    )


@dataclass(frozen=True)
class Profiling:
    """Traces of a few steps."""

    enabled: bool = _key(default=False, doc="Trace; Chrome traces are left in the outputs.")
    wait: int = _key(5, "Steps without the profiler.", least=0, only="profiling.enabled=true")
    warmup: int = _key(2, "Steps whose trace is thrown away.", least=0, only="profiling.enabled=true")
    active: int = _key(3, "Steps that are traced.", least=1, only="profiling.enabled=true")
    repeat: int = _key(1, "How often; 0: until the end.", least=0, only="profiling.enabled=true")
    ranks: str | tuple[int, ...] = _key("all", "all, or a list of ranks.", kind="ranks", only="profiling.enabled=true")
    record_shapes: bool = _key(default=False, doc="Shapes of the tensors.", only="profiling.enabled=true")
    profile_memory: bool = _key(default=False, doc="What is allocated.", only="profiling.enabled=true")
    with_stack: bool = _key(default=False, doc="Lines of the source.", only="profiling.enabled=true")


@dataclass(frozen=True)
class Config:
    """All of it."""

    logging: Logging = Logging()
    training: Training = Training()
    checkpoint: Checkpoint = Checkpoint()
    optimizer: Optimizer = Optimizer()
    scheduler: Scheduler = Scheduler()
    dataset: Dataset = Dataset()
    model: Model = Model()
    fsdp: Fsdp = Fsdp()
    distributed: Distributed = Distributed()
    compile: Compile = Compile()
    dataloader: Dataloader = Dataloader()
    profiling: Profiling = Profiling()


SECTIONS = {
    "logging": Logging,
    "training": Training,
    "checkpoint": Checkpoint,
    "optimizer": Optimizer,
    "scheduler": Scheduler,
    "dataset": Dataset,
    "model": Model,
    "fsdp": Fsdp,
    "distributed": Distributed,
    "compile": Compile,
    "dataloader": Dataloader,
    "profiling": Profiling,
}
