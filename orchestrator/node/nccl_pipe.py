"""Takes the pipe of torch's flight recorder out of an environment where it cannot be made: torch aborts a rank over it."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Dict

VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"


def without_bad_pipe(env: Dict[str, str], folder: str) -> Dict[str, str]:
    """Leave the variable out if it leads into the run folder and no pipe can be made there; a user's own stays."""
    prefix = env.get(VARIABLE, "")
    room = os.path.join(os.path.realpath(folder), "")
    if not prefix or not os.path.join(os.path.realpath(os.path.dirname(prefix)), "").startswith(room):
        return env
    trial = prefix + "trial"
    try:
        os.makedirs(os.path.dirname(prefix), mode=0o700, exist_ok=True)
        os.mkfifo(trial, 0o600)
        os.unlink(trial)
    except OSError:
        return {name: value for name, value in env.items() if name != VARIABLE}
    return env
