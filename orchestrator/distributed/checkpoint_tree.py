"""State of any shape as tensors by name and the tree that they hang in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from orchestrator.distributed.errors import DistributedError

TREE = "(tree)"
"""The key, behind the part's name, of what is left of a state when its tensors are taken out."""
PLACE = "(tensor)"
"""A dict with this one key stands where a tensor was; plain types, so that others can read the checkpoint too."""


def take_apart(path: str, value: Any, tensors: dict[str, Any]) -> Any:
    """Take the tensors out of a state into a dict by name, give the tree that is left.

    Raises:
        DistributedError: two tensors would have one name.
    """
    if isinstance(value, torch.Tensor):
        if path in tensors:
            raise DistributedError(f"two tensors are called {path}: keys may differ only in their type")
        tensors[path] = value.detach()
        return {PLACE: path}
    if not holds_tensor(value):
        return value
    if isinstance(value, Mapping):
        return {key: take_apart(f"{path}.{key}", inner, tensors) for key, inner in value.items()}
    parts = [take_apart(f"{path}.{place}", inner, tensors) for place, inner in enumerate(value)]
    return tuple(parts) if isinstance(value, tuple) else parts


def put_together(tree: Any, tensors: Mapping[str, Any]) -> Any:
    """Hang the tensors back into their tree."""
    if isinstance(tree, dict):
        if set(tree) == {PLACE}:
            return tensors[tree[PLACE]]
        return {key: put_together(inner, tensors) for key, inner in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(put_together(inner, tensors) for inner in tree)
    return tree


def visit_places(tree: Any, visit: Callable[[str], None]) -> None:
    """Call a function with the name of every tensor that a tree wants."""
    if isinstance(tree, dict):
        if set(tree) == {PLACE}:
            visit(tree[PLACE])
            return
        for inner in tree.values():
            visit_places(inner, visit)
    elif type(tree) in (list, tuple):
        for inner in tree:
            visit_places(inner, visit)


def holds_tensor(value: Any) -> bool:
    """Tell whether a tensor lies somewhere in a state."""
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, Mapping):
        return any(holds_tensor(inner) for inner in value.values())
    return isinstance(value, (list, tuple)) and any(holds_tensor(inner) for inner in value)
