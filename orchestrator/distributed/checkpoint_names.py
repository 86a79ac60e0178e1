"""One name for a parameter, however the module around it is wrapped."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.nn.parallel import DistributedDataParallel

WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""What torch.compile and activation checkpointing put into names."""


def find_names(module: nn.Module) -> dict[str, nn.Parameter]:
    """Give every parameter of a module by the name that it has without wrappers; a shared one under its first name."""
    replicas = [
        f"{name}.module." if name else "module."
        for name, part in module.named_modules()
        if isinstance(part, DistributedDataParallel)
    ]
    # The innermost first: an outer one changes how the inner ones begin.
    replicas.sort(key=len, reverse=True)
    return {_clean(name, replicas): parameter for name, parameter in module.named_parameters()}


def _clean(name: str, replicas: list[str]) -> str:
    for prefix in replicas:
        if name.startswith(prefix):
            name = prefix[: -len("module.")] + name[len(prefix) :]
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def find_owned(modules: Mapping[str, nn.Module]) -> dict[int, tuple[str, nn.Parameter]]:
    """Give the parameters of all modules by identity, each with its name behind its module's."""
    owned: dict[int, tuple[str, nn.Parameter]] = {}
    for part, module in modules.items():
        for name, parameter in find_names(module).items():
            owned.setdefault(id(parameter), (f"{part}.{name}", parameter))
    return owned
