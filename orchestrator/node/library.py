"""Puts the helper library for training scripts into a run folder, and behind all that Python searches otherwise."""

from __future__ import annotations

import os
from typing import Dict

LIBRARY = "library"
PACKAGE = "orchestrator.distributed"


def install(folder: str, modules: Dict[str, str]) -> None:
    """Write the library's modules below a run folder.

    The package above it gets no __init__.py: so it is a namespace, which any installed or pushed package hides.
    """
    for name, text in modules.items():
        if name != PACKAGE and not name.startswith(PACKAGE + "."):
            continue
        parts = name.split(".")
        place = os.path.join(folder, LIBRARY, *parts[:2])
        os.makedirs(place, mode=0o700, exist_ok=True)
        with open(os.path.join(place, "%s.py" % (".".join(parts[2:]) or "__init__")), "w", encoding="utf-8") as file:
            file.write(text)


def put_behind(env: Dict[str, str], folder: str) -> Dict[str, str]:
    """Put the library of a run folder behind what an environment has Python search."""
    place = os.path.join(os.path.abspath(folder), LIBRARY)
    if not os.path.isdir(place):
        return env
    before = env.get("PYTHONPATH", "")
    # An empty part would be the current folder.
    return {**env, "PYTHONPATH": f"{before}:{place}" if before else place}
