"""Puts the rank hook into a run folder and in front of the Python path of the agent, and so of its ranks."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Dict

HOOK = "hook"
SOURCE = "rank_hook_site.py"


def install(folder: str) -> str:
    """Write the hook into a run folder; give the folder that stands in front of PYTHONPATH, empty if it did not work.

    A run without the hook is better than no run.
    """
    target = os.path.join(os.path.abspath(folder), HOOK)
    # Where this module itself came over a wire, it has no file.
    places = (
        os.path.join(folder, "program", "orchestrator", "node", SOURCE),
        os.path.join(os.path.dirname(globals().get("__file__", "")), SOURCE),
    )
    try:
        os.makedirs(target, mode=0o700, exist_ok=True)
        source = next((place for place in places if os.path.isfile(place)), "")
        if source:
            with open(source, "rb") as text, open(os.path.join(target, "sitecustomize.py"), "wb") as hook:
                hook.write(text.read())
            return target
    except OSError:
        pass
    return ""


def put_in_front(env: Dict[str, str], folder: str) -> Dict[str, str]:
    """Put the hook of a run folder in front of what an environment has Python search."""
    hook = install(folder)
    if not hook:
        return env
    before = env.get("PYTHONPATH", "")
    # An empty part would be the current folder.
    return {**env, "PYTHONPATH": f"{hook}:{before}" if before else hook}
