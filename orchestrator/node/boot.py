"""The first code that runs on a node: imports the sent modules from memory and calls the program that was asked for.

It is executed by the one-line bootstrap of `transport/program.py`, which has put the sent bundle into BUNDLE: a dict
with the keys modules (name -> source), program, nonce and request.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import traceback
from typing import Any


class Sent(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds modules among the sources that came over stdin."""

    def __init__(self, modules: dict[str, str]) -> None:
        self.modules = modules

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Say that a module is ours, or leave it to the next finder."""
        del path, target
        if fullname not in self.modules:
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=self.is_package(fullname))

    def is_package(self, fullname: str) -> bool:
        """A module with others below it is a package."""
        return any(name.startswith(fullname + ".") for name in self.modules)

    def get_source(self, fullname: str) -> str:
        """Give the text, also to tracebacks."""
        return self.modules[fullname]


def main(bundle: dict[str, Any]) -> None:
    """Run the program of a bundle; an error of ours becomes an answer, not a traceback on a user's screen."""
    sys.meta_path.insert(0, Sent(bundle["modules"]))
    wire = importlib.import_module("orchestrator.node.wire").Wire(bundle["nonce"])
    try:
        program = importlib.import_module("orchestrator.node." + bundle["program"])
        program.main(bundle["request"], wire, bundle["modules"])
    except BrokenPipeError:
        sys.exit(1)  # the launch host is gone; nobody is left to be told
    except Exception as error:  # noqa: BLE001 - whatever it is, the launch host must be told in our own words
        wire.send({"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()})
        sys.exit(1)


if __name__ == "__main__":
    main(json.loads(BUNDLE))  # type: ignore[name-defined] # noqa: F821 - set by the bootstrap
