"""The training script's own config: every key with its default, and nothing else."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workload.plain_yaml import PlainYamlError, parse_yaml

if TYPE_CHECKING:
    from pathlib import Path

LAUNCHER_SECTION = "launch"


class ConfigError(ValueError):
    """A config that cannot be used, told with its file and key."""


@dataclass(frozen=True)
class Training:
    """How long and how often."""

    max_steps: int = 200
    batch_size: int = 32
    """Sequences a step on each rank."""
    seed: int = 1
    log_every: int = 10
    eval_every: int = 50
    shuffle_targets: bool = False
    """The control: what is to be predicted is shuffled, so nothing can be learned."""


@dataclass(frozen=True)
class Model:
    """The size of the transformer."""

    d_model: int = 64
    n_layers: int = 2
    n_heads: int = 4


@dataclass(frozen=True)
class Dataset:
    """The shape of the sequences."""

    vocab_size: int = 32
    sequence_length: int = 32


@dataclass(frozen=True)
class Optimizer:
    """AdamW's figures."""

    lr: float = 5e-3
    weight_decay: float = 0.01


@dataclass(frozen=True)
class Config:
    """All of it."""

    training: Training = field(default_factory=Training)
    model: Model = field(default_factory=Model)
    dataset: Dataset = field(default_factory=Dataset)
    optimizer: Optimizer = field(default_factory=Optimizer)


SECTIONS = {"training": Training, "model": Model, "dataset": Dataset, "optimizer": Optimizer}


def read_config(path: Path | None) -> Config:
    """Read a config file; None gives the defaults."""
    if path is None:
        return Config()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    try:
        return build_config(parse_yaml(text, skip=(LAUNCHER_SECTION,)))
    except PlainYamlError as error:
        raise ConfigError(f"{path}: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def build_config(data: dict[str, Any]) -> Config:
    """Build the config from what the file says, strictly."""
    _refuse_unknown(data, SECTIONS, prefix="")
    config = Config(**{name: _build_section(name, kind, data.get(name)) for name, kind in SECTIONS.items()})
    _judge(config)
    return config


def _build_section(name: str, kind: Any, given: Any) -> Any:
    if given is None:
        return kind()
    if not isinstance(given, dict):
        raise ConfigError(f"{name} must be a section of keys, not {given!r}")
    defaults = {entry.name: entry.default for entry in dataclasses.fields(kind)}
    _refuse_unknown(given, defaults, prefix=f"{name}.")
    return kind(**{key: _convert(f"{name}.{key}", value, type(defaults[key])) for key, value in given.items()})


def _refuse_unknown(given: dict[str, Any], known: dict[str, Any], prefix: str) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"unknown key {prefix}{key}: {hint}")


def _convert(key: str, value: Any, kind: type) -> Any:
    if kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
    elif type(value) is kind:
        return value
    wanted = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
    raise ConfigError(f"{key} must be {wanted}, not {value!r}")


def _judge(config: Config) -> None:
    least = {
        "training.max_steps": 1,
        "training.batch_size": 1,
        "training.log_every": 1,
        "training.eval_every": 1,
        "model.d_model": 1,
        "model.n_layers": 1,
        "model.n_heads": 1,
        "dataset.vocab_size": 8,
        "dataset.sequence_length": 4,
    }
    for key, smallest in least.items():
        section, name = key.split(".")
        value = getattr(getattr(config, section), name)
        if value < smallest:
            raise ConfigError(f"{key} must be at least {smallest}, not {value}")
    if config.model.d_model % config.model.n_heads:
        raise ConfigError(
            f"model.d_model ({config.model.d_model}) must be a multiple of n_heads ({config.model.n_heads})"
        )
