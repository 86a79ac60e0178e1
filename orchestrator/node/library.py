"""Puts the helper library for training scripts into a run folder, and behind all that Python searches otherwise."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Dict, Mapping, Union

LIBRARY = "library"
PACKAGE = "orchestrator.distributed"


def install(folder: str, modules: Mapping[str, Union[str, bytes]]) -> None:
    """Write the library's modules below a run folder.

    The package above it gets no __init__.py: so it is a namespace, which any installed or pushed package hides.
    """
    for name, text in modules.items():
        if not is_of(name) or not isinstance(text, str):
            continue
        parts = name.split(".")
        place = os.path.join(folder, LIBRARY, *parts[:2])
        os.makedirs(place, mode=0o700, exist_ok=True)
        with open(os.path.join(place, "%s.py" % (".".join(parts[2:]) or "__init__")), "w", encoding="utf-8") as file:
            file.write(text)


def is_of(name: str) -> bool:
    """Tell a module of the library from those of the launcher."""
    return name == PACKAGE or name.startswith(PACKAGE + ".")


def put_behind(env: Dict[str, str], folder: str) -> Dict[str, str]:
    """Put the library of a run folder behind what an environment has Python search."""
    place = os.path.join(os.path.abspath(folder), LIBRARY)
    if not os.path.isdir(place):
        return env
    before = env.get("PYTHONPATH", "")
    # An empty part would be the current folder.
    return {**env, "PYTHONPATH": f"{before}:{place}" if before else place}
