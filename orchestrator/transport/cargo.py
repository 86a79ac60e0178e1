"""The modules that go to a node with a program: as code objects for a Python like ours, as sources for any other."""

from __future__ import annotations

import importlib.util
import marshal
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from importlib import resources
from types import CodeType
from typing import ParamSpec, TypeVar

from orchestrator.node.boot import MARSHAL_VERSION, TEXTS

MAGIC = importlib.util.MAGIC_NUMBER
"""Names the byte code of this Python; a node's Python with the same one runs ours without compiling."""
PACKAGE = "orchestrator.node."
BASE = ("wire",)
"""What every program needs."""
BY_NAME = ("activity", "evidence", "flight", "ras", "sockets", "stacks")
"""What a pump is asked, and loads by its name."""
FURTHER = {"pump": BY_NAME, "start": (*BY_NAME, *TEXTS, "boot", "serve")}
"""What a program needs and does not import; a start leaves the supervisor its modules."""
IMPORTS = re.compile(r"^\s*from orchestrator\.node(?:\.(\w+))? import (\([^)]*\)|.*)$", re.MULTILINE)

P = ParamSpec("P")
T = TypeVar("T")
Modules = Mapping[str, str | bytes]
"""Name → source, or a code object as marshal writes it."""

_AT_WORK = threading.RLock()


def once(work: Callable[P, T]) -> Callable[P, T]:
    """Keep what a function gave, as cache does; those who ask for it meanwhile wait, and do not all do the same work."""
    done: dict[object, T] = {}

    @wraps(work)
    def ask(*args: P.args, **kwargs: P.kwargs) -> T:
        key = (args, *kwargs.items())
        if key not in done:
            with _AT_WORK:
                if key not in done:
                    done[key] = work(*args, **kwargs)
        return done[key]

    return ask


def read_library() -> dict[str, str]:
    """Read the helper library for training scripts, by the names of its modules; also out of a zip."""
    texts = _read_folder("distributed")
    return {f"orchestrator.distributed.{name}".removesuffix(".__init__"): text for name, text in sorted(texts.items())}


@once
def read_texts() -> dict[str, str]:
    """Read the sources of the programs for nodes, by short names; "__init__" is the package itself."""
    return _read_folder("node")


def _read_folder(name: str) -> dict[str, str]:
    room = resources.files("orchestrator").joinpath(name)
    return {entry.name[:-3]: entry.read_text("utf-8") for entry in room.iterdir() if entry.name.endswith(".py")}


@once
def list_needed(program: str) -> frozenset[str]:
    """List the modules, by short names, that a program imports and those import in turn."""
    found: set[str] = set()
    waiting = [program, *BASE, *FURTHER.get(program, ())]
    while waiting:
        name = waiting.pop()
        if name not in found and name in read_texts():
            found.add(name)
            waiting += _imports_of(read_texts()[name])
    return frozenset(found)


def _imports_of(text: str) -> Iterable[str]:
    for module, names in IMPORTS.findall(text):
        yield from [module] if module else re.findall(r"(?<!as )\b\w+", names.partition("#")[0].replace("\n", " "))


def list_supervisors() -> list[str]:
    """List the modules, by their full names, that the supervisor of a run needs once its starter has ended."""
    return [PACKAGE + name for name in sorted(list_needed("serve") | {"boot"})]


@once
def read_code(name: str) -> bytes:
    """Read the code object of one module for nodes, as marshal writes it; Python's own cache of byte code serves us too."""
    found = importlib.util.find_spec(PACKAGE + name)
    assert found is not None
    # Of files and of zips: both know how to get the code.
    get_code = getattr(found.loader, "get_code", None)
    assert get_code is not None
    code = get_code(PACKAGE + name)
    assert isinstance(code, CodeType)
    return marshal.dumps(_without_place(code, f"{PACKAGE}{name}".replace(".", "/") + ".py"))


def _without_place(code: CodeType, place: str) -> CodeType:
    """Say in a code object where its source lies in the project, and nothing of this machine."""
    inner = (_without_place(one, place) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=place, co_consts=tuple(inner))


def build_modules(program: str, sent: frozenset[str] = frozenset()) -> dict[str, str | bytes]:
    """Build the modules of a program that were not sent yet."""
    modules: dict[str, str | bytes] = {}
    for name in sorted(list_needed(program) - sent):
        modules[PACKAGE + name] = read_texts()[name] if name in TEXTS else read_code(name)
    # Only what starts a run has a use for the library of the ranks.
    return {**modules, **read_library()} if program == "start" else modules


@once
def pack_modules(program: str, sent: frozenset[str] = frozenset()) -> bytes:
    """Pack them once: they are the same for every node, and most of what is sent."""
    return zlib.compress(marshal.dumps(build_modules(program, sent), MARSHAL_VERSION), 3)


@once
def pack_sources() -> bytes:
    """Pack the sources of all modules for nodes, for a Python that has no use for our code objects."""
    sources = {PACKAGE + name: text for name, text in sorted(read_texts().items()) if name != "__init__"}
    return zlib.compress(marshal.dumps(sources, MARSHAL_VERSION), 6)
