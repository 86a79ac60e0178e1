"""Runs torchrun as `python -m torch.distributed.run` does, sooner at its begin and at its end.

An import makes next to no garbage, and searching what it makes again and again costs a seventh of its time. The shapes of
what operators would give cost a quarter, and an agent has no tensors. Where NumPy's OpenBLAS comes with it, that starts a
thread for each core, and they spin before they sleep. None of it reaches the ranks: they are processes of their own. When torchrun
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
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Iterator, List, Optional

LATER = "torch._meta_registrations"
"""Tells PyTorch the shapes of what operators would give, for tensors without data."""
THREADS = "OPENBLAS_NUM_THREADS"


class Later:
    """Finds LATER as a module without content, which comes once somebody asks for it."""

    def __init__(self) -> None:
        self.was_given = False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """Say that LATER is ours."""
        del path, target
        return ModuleSpec(fullname, self) if fullname == LATER else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module."""
        del spec

    def exec_module(self, module: ModuleType) -> None:
        """Let the module know whom to ask for what it lacks."""
        self.was_given = True
        module.__getattr__ = self.get  # type: ignore[method-assign] # what a module may have of its own

    def get(self, name: str) -> object:
        """Load the module, and give what it has under this name."""
        if name.startswith("__"):
            raise AttributeError(name)  # who goes through all modules, as inspect does, asks each for these
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            del sys.modules[LATER]
            importlib.import_module(LATER)
        return getattr(sys.modules[LATER], name)


def main(words: List[str]) -> int:
    """Import the module that the first word names, and call its main with the others, as its console script would."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd()  # as with -m; here stood the folder of this file
    module = load(words)
    sys.argv = [str(module.__file__), *words[1:]]
    try:
        return read_code(module.main())
    except SystemExit as ended:
        return read_code(ended.code)


def load(words: List[str]) -> ModuleType:
    """Import the module without what an agent does not need; where that is why it cannot be, begin again as with -m."""
    later = Later()
    sys.meta_path.insert(0, later)
    gc.disable()
    try:
        with one_thread():
            module = importlib.import_module(words[0])
    except Exception:
        if not later.was_given:
            raise
        # A backend that PyTorch loads by itself may look for the shapes where nobody asks the module, or in a circle.
        os.execv(sys.executable, [sys.executable, "-m", *words])  # noqa: S606 - argv as data, no shell, is the point
    gc.freeze()
    gc.enable()
    return module


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let OpenBLAS start no threads; the environment is as it was before any rank sees it."""
    if THREADS in os.environ:
        yield
        return
    os.environ[THREADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(THREADS, None)


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
