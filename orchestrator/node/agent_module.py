"""Runs torchrun as `python -m torch.distributed.run` does, sooner at its begin and at its end.

An import makes next to no garbage, and searching what it makes again and again costs a seventh of its time. When torchrun
is through, taking PyTorch down module by module is for nobody: it would keep a verdict waiting for a second and more. Only the
head takes that time at a good end, because others may still be asking its store.

The node's own Python runs this file, whichever version it has.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import sys
from typing import List


def main(words: List[str]) -> int:
    """Import the module that the first word names, and call its main with the others, as its console script would."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd()  # as with -m; here stood the folder of this file
    gc.disable()
    module = importlib.import_module(words[0])
    gc.freeze()
    gc.enable()
    sys.argv = [str(module.__file__), *words[1:]]
    try:
        return read_code(module.main())
    except SystemExit as ended:
        return read_code(ended.code)


def read_code(said: object) -> int:
    """Give the exit code that Python would make of what a program ends with."""
    if said is None or isinstance(said, int):
        return int(said or 0)
    sys.stderr.write("%s\n" % said)
    return 1


def hosts_the_store(words: List[str]) -> bool:
    """Tell the agent through which all others meet: also at their good end, which some may hear of a moment later."""
    return "--node-rank" not in words or words[words.index("--node-rank") + 1] == "0"


def end(code: int) -> None:
    """End as Python does, without taking the modules down."""
    atexit._run_exitfuncs()  # noqa: SLF001 - what os._exit leaves out, and torchrun and logging rely on
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except BaseException:  # noqa: BLE001 - told as Python tells it
        sys.excepthook(*sys.exc_info())
        status = 1
    if status == 0 and hosts_the_store(sys.argv):
        sys.exit(0)  # its store stands as long as it ever did
    end(status)
