"""The first code that runs on a node: imports the sent modules from memory and calls the program that was asked for.

It is executed by the one-line bootstrap of `transport/program.py`, which has read it from INPUT; SIZES are the words of
the line before it: the lengths of this file, as source and as code object, and of what follows in INPUT, the order
(program and request, as JSON) and the modules (name → source or code object); then the byte code's magic number and the
nonce. A Python that has no use for our code objects asks for the sources of all.
"""

from __future__ import annotations

import marshal
import os
import sys
import zlib

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from io import BufferedReader
    from types import CodeType, ModuleType
    from typing import Any, Dict, List, Optional, Tuple, Union

    from orchestrator.node.wire import Wire

    Modules = Dict[str, Union[str, bytes]]

WISH = b"AORTA-SOURCES "
"""With the nonce behind it: this Python has no use for the launch host's byte code."""
SOURCES = "sources"
"""What the order is called with which they come."""
TEXTS = ("agent_module", "rank_hook_site")
"""Modules that a Python runs which is not the one that we talk to, the agent's and the ranks': they come as sources."""
MARSHAL_VERSION = 2
"""Of what every Python reads alike: tables of texts, bytes and numbers."""


class Sent:
    """Finds modules among those that came over stdin."""

    def __init__(self, modules: Modules) -> None:
        self.modules = modules

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """Say that a module is ours, or leave it to the next finder."""
        del path, target
        if fullname not in self.modules:
            return None
        kind = type(sys.__spec__)  # importlib.machinery has the same class, and costs as much as half a program of ours
        # It is no Loader by descent: that class costs as much again.
        return kind(fullname, self, is_package=self.is_package(fullname))  # type: ignore[arg-type]

    def is_package(self, fullname: str) -> bool:
        """A module with others below it is a package."""
        return any(name.startswith(fullname + ".") for name in self.modules)

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module."""
        del spec

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's own code; of a package there is none, and to compile nothing takes as long as to load ten modules."""
        if self.modules[module.__name__] != "":
            exec(self.get_code(module.__name__), module.__dict__)  # noqa: S102 - what we were sent for

    def get_code(self, fullname: str) -> CodeType:
        """Give the code of a module, compiled where it came as text."""
        text = self.modules[fullname]
        if isinstance(text, str):
            return compile(text, fullname.replace(".", "/") + ".py", "exec", dont_inherit=True)
        code: CodeType = marshal.loads(text)  # noqa: S302 - it came the way that this program came
        return code

    def get_source(self, fullname: str) -> Optional[str]:
        """Give the text, also to tracebacks; None where it did not come."""
        text = self.modules.get(fullname)
        return text if isinstance(text, str) else None


def unpack_modules(packed: bytes) -> Modules:
    """Read modules as they were sent: the packages above them are empty."""
    modules: Modules = marshal.loads(zlib.decompress(packed))  # noqa: S302 - as above
    return modules


def begin(modules: Modules) -> Modules:
    """Let modules be found; gives all that there are."""
    known: Modules = {"orchestrator": "", "orchestrator.node": ""}
    known.update(modules)
    sys.meta_path.insert(0, Sent(known))
    return known


def take_modules(nonce: str, source: BufferedReader, sizes: List[bytes]) -> Tuple[Modules, bytes]:
    """Read the modules that follow, and ask for their sources where ours is not the launch host's byte code.

    Gives with them the orders that were sent before our question was heard.
    """
    modules = unpack_modules(source.read(int(sizes[3])))
    magic = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER.hex().encode()
    if magic == sizes[4]:
        return modules, b""
    os.write(1, WISH + nonce.encode() + b"\n")
    import json  # noqa: PLC0415 - our own reader of it is what we wait for

    early = b""
    while True:
        line = source.readline()
        header = json.loads(line)
        body = source.read(int(header.get("bytes", 0)))
        if header.get("op") == SOURCES:
            break
        early += line + body
    texts = unpack_modules(body)
    texts.update({name: text for name, text in modules.items() if isinstance(text, str)})
    return texts, early


def run(program: str, request: Dict[str, Any], wire: Wire, modules: Modules) -> None:
    """Run a program; an error of ours becomes an answer, not a traceback on a user's screen."""
    try:
        __import__("orchestrator.node." + program)
        sys.modules["orchestrator.node." + program].main(request, wire, modules)
    except BrokenPipeError:
        sys.exit(1)  # the launch host is gone; nobody is left to be told
    except Exception as error:  # noqa: BLE001 - whatever it is, the launch host must be told in our own words
        import traceback  # noqa: PLC0415 - it costs as much as a program of ours

        wire.send({"error": "%s: %s" % (type(error).__name__, error), "traceback": traceback.format_exc()})
        sys.exit(1)


def main(source: BufferedReader, sizes: List[bytes]) -> None:
    """Take what was sent, and be the program."""
    nonce, order = sizes[5].decode(), source.read(int(sizes[2]))
    modules, early = take_modules(nonce, source, sizes)
    known = begin(modules)
    from orchestrator.node.fastjson import loads  # noqa: PLC0415 - found only now
    from orchestrator.node.wire import Wire  # noqa: PLC0415

    asked = loads(order)
    wire = Wire(nonce)
    wire.early = early
    run(asked["program"], asked["request"], wire, known)


if __name__ == "__main__":
    main(INPUT, SIZES)  # type: ignore[name-defined] # noqa: F821 - set by the bootstrap
