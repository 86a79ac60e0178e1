"""The parts of a training state: what of each goes into a checkpoint, and how it comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from orchestrator.distributed.checkpoint_names import find_names, find_owned
from orchestrator.distributed.checkpoint_tree import TREE, put_together, take_apart, visit_places
from orchestrator.distributed.errors import DistributedError

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # torch before 2.5
    from torch.distributed._tensor import DTensor  # type: ignore[attr-defined]

Parts = Mapping[str, Any]
Flat = dict[str, Any]
SHOWN = 3
"""So many names are told of a list that does not fit."""


@dataclass(frozen=True)
class Sorted:
    """Parts by what they are."""

    modules: dict[str, nn.Module]
    optimizers: dict[str, torch.optim.Optimizer]
    others: dict[str, Any]


def sort_parts(parts: Parts) -> Sorted:
    """Sort the parts by what they are.

    Raises:
        DistributedError: there is none, a name has a dot in it, or a part has no state that could be kept.
    """
    if not parts:
        raise DistributedError("there are no parts: give a dict of names and modules, optimizers, …")
    found = Sorted({}, {}, {})
    for name, part in parts.items():
        if not isinstance(name, str) or not name or "." in name:
            raise DistributedError(f"a part is called {name!r}: a name is text without a dot")
        if isinstance(part, nn.Module):
            found.modules[name] = part
        elif isinstance(part, torch.optim.Optimizer):
            found.optimizers[name] = part
        elif isinstance(part, dict) or (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            found.others[name] = part
        else:
            raise DistributedError(
                f"the part {name!r} is {type(part).__name__}: it needs state_dict and load_state_dict; "
                "plain values go into a dict"
            )
    return found


def read_state(parts: Parts, *, is_main: bool) -> Flat:
    """Give what this rank has of the parts' state: tensors by name, and what else there is.

    The main process's buffers and plain values are those of the checkpoint; parameters and the state of optimizers are
    the same on all ranks that have them, or pieces of one (DTensor).
    """
    found = sort_parts(parts)
    flat: Flat = {}
    for name, module in found.modules.items():
        kept = None if is_main else set(find_names(module))
        for key, value in get_model_state_dict(module).items():
            if kept is None or key in kept or isinstance(value, DTensor):
                flat[f"{name}.{key}"] = value
    owned = find_owned(found.modules)
    for name, optimizer in found.optimizers.items():
        tree = take_apart(name, _read_optimizer(name, optimizer, owned), flat)
        if is_main:
            flat[f"{name}.{TREE}"] = tree
    if is_main:
        for name, part in found.others.items():
            state = part if isinstance(part, dict) else part.state_dict()
            flat[f"{name}.{TREE}"] = take_apart(name, state, flat)
    return flat


def _name_parameters(name: str, optimizer: torch.optim.Optimizer, owned: dict[int, tuple[str, Any]]) -> list[str]:
    """Give the names of an optimizer's parameters in the order in which its state_dict counts them.

    Raises:
        DistributedError: one belongs to no module among the parts.
    """
    names: list[str] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in owned:
                raise DistributedError(
                    f"the optimizer {name!r} has a parameter of shape {tuple(parameter.shape)} that no module among the "
                    "parts has: save the module that it trains along with it, wrapped as the optimizer got it"
                )
            names.append(owned[id(parameter)][0])
    return names


def _read_optimizer(
    name: str, optimizer: torch.optim.Optimizer, owned: dict[int, tuple[str, Any]]
) -> dict[str, dict[str, Any] | list[dict[str, Any]]]:
    """Give an optimizer's state with names in place of numbers.

    Torch's own function for this takes a step with gradients of zero when there is no state yet: Adam would then count
    one step too many ever after.
    """
    names = _name_parameters(name, optimizer, owned)
    state = optimizer.state_dict()
    groups = [{**group, "params": [names[number] for number in group["params"]]} for group in state["param_groups"]]
    return {"state": {names[number]: value for number, value in state["state"].items()}, "param_groups": groups}


class Loading:
    """Parts on their way back out of a checkpoint: what to read, where to, and what to do with it then."""

    def __init__(self, parts: Parts, metadata: Metadata, read: Callable[[Flat], None]) -> None:
        self._parts = sort_parts(parts)
        self._metadata = metadata
        self._read = read
        self._saved: dict[str, set[str]] = {}
        for key in metadata.state_dict_metadata:
            self._saved.setdefault(key.split(".", 1)[0], set()).add(key)

    def load(self) -> None:
        """Read all parts.

        Raises:
            DistributedError: the checkpoint has other parts, or a part has other names, shapes or groups.
        """
        wanted = {*self._parts.modules, *self._parts.optimizers, *self._parts.others}
        _compare("the parts", set(self._saved), wanted)
        states = {name: get_model_state_dict(module) for name, module in self._parts.modules.items()}
        flat: Flat = {f"{name}.{key}": value for name, state in states.items() for key, value in state.items()}
        for name, state in states.items():
            _compare(f"the module {name!r}", self._saved[name], {f"{name}.{key}" for key in state})
        owned = find_owned(self._parts.modules)
        trees: Flat = {f"{name}.{TREE}": None for name in (*self._parts.optimizers, *self._parts.others)}
        self._read(trees)
        for name in self._parts.others:
            visit_places(trees[f"{name}.{TREE}"], lambda key: flat.update({key: self._build(key, None)}))
        for name, optimizer in self._parts.optimizers.items():
            self._prepare_optimizer(name, optimizer, trees[f"{name}.{TREE}"], owned, flat)
        self._check_shapes(flat)
        self._read(flat)
        for name, module in self._parts.modules.items():
            set_model_state_dict(module, {key: flat[f"{name}.{key}"] for key in states[name]})
        for name, optimizer in self._parts.optimizers.items():
            state = put_together(trees[f"{name}.{TREE}"], flat)
            numbers = {known: number for number, known in enumerate(_name_parameters(name, optimizer, owned))}
            groups = [{**group, "params": [numbers[one] for one in group["params"]]} for group in state["param_groups"]]
            numbered = {numbers[known]: value for known, value in state["state"].items()}
            optimizer.load_state_dict({"state": numbered, "param_groups": groups})
        for name, part in self._parts.others.items():
            state = put_together(trees[f"{name}.{TREE}"], flat)
            if isinstance(part, dict):
                part.update(state)
            else:
                part.load_state_dict(state)

    def _prepare_optimizer(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        tree: dict[str, Any],
        owned: dict[int, tuple[str, Any]],
        flat: Flat,
    ) -> None:
        names = _name_parameters(name, optimizer, owned)
        count = iter(names)
        here = [[next(count) for _ in group["params"]] for group in optimizer.param_groups]
        saved = [group["params"] for group in tree["param_groups"]]
        if [set(group) for group in here] != [set(group) for group in saved]:
            raise DistributedError(
                f"the optimizer {name!r} has other groups of parameters ({[len(group) for group in here]}) than the "
                f"checkpoint ({[len(group) for group in saved]}), or other parameters in them"
            )
        by_name = dict(owned.values())
        for known, state in tree["state"].items():
            parameter = by_name[known]
            visit_places(state, lambda key, like=parameter: flat.update({key: self._build(key, like)}))  # type: ignore[misc]

    def _build(self, key: str, like: Any) -> Any:
        """Build the tensor into which one is read: laid out as the parameter that it belongs to, else on the CPU."""
        told = self._metadata.state_dict_metadata.get(key)
        if not isinstance(told, TensorStorageMetadata):
            raise DistributedError(f"the checkpoint lacks the tensor {key}")
        dtype = told.properties.dtype
        # A count of steps has no dimension; it stays on the CPU even where a parameter has none either.
        if like is not None and told.size and like.size() == told.size:
            return torch.empty_like(like.detach(), dtype=dtype)
        return torch.empty(told.size, dtype=dtype)

    def _check_shapes(self, flat: Flat) -> None:
        for key, value in flat.items():
            told = self._metadata.state_dict_metadata[key]
            if isinstance(value, torch.Tensor) != (not isinstance(told, BytesStorageMetadata)):
                raise DistributedError(
                    f"{key} is a tensor on one side, here or in the checkpoint, and none on the other"
                )
            if isinstance(told, TensorStorageMetadata) and value.size() != told.size:
                raise DistributedError(
                    f"{key} has the shape {tuple(value.size())}, in the checkpoint {tuple(told.size)}"
                )


def _compare(what: str, saved: set[str], wanted: set[str]) -> None:
    for names, place in ((wanted - saved, "not in the checkpoint"), (saved - wanted, "only in the checkpoint")):
        if names:
            shown = ", ".join(sorted(names)[:SHOWN])
            raise DistributedError(f"{what}: {place}: {shown}{', …' if len(names) > SHOWN else ''}")
