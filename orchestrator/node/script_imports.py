"""Reads which modules a script imports, without running it; the launch host and the nodes use the very same code.

Followed are the project's own modules. An import inside a function, a condition or a try that expects it to fail is
one that "perhaps" happens; all others happen at the start, so that a missing module ends every rank there.
"""

from __future__ import annotations

import ast
import os
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

    Facts = Dict[str, Any]

FILES_LIMIT = 500
BYTES_LIMIT = 1 << 20
ENTRIES_LIMIT = 5000
BESIDE = (".", "src")
"""Where a project keeps packages that its scripts find only by PYTHONPATH or an installation."""
EXPECTED = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


class Found(NamedTuple):
    """One import statement's module: the names that it takes, and whether it happens at the start."""

    module: str
    names: Tuple[str, ...]
    level: int
    certain: bool


class _Reading:
    """What was read so far, and what is still to be read."""

    def __init__(self, root: str, folders: Sequence[str]) -> None:
        self.root = root
        self.folders = folders
        self.open: List[Tuple[str, str, bool]] = []
        """File, its package, and whether it is certainly imported."""
        self.read: Dict[str, bool] = {}
        self.needed: Set[str] = set()
        self.perhaps: Set[str] = set()
        self.changes_path = False
        self.trouble = ""

    def add(self, path: str, package: str, *, certain: bool) -> None:
        """Note a file of the project, unless it was read with at least this certainty."""
        if self.read.get(path, False) or (path in self.read and not certain):
            return
        if len(self.read) < FILES_LIMIT or path in self.read:
            self.read[path] = certain
            self.open.append((path, package, certain))


def read_imports(root: str, script: Sequence[str], pythonpath: Sequence[str] = ()) -> Facts:
    """Read what a script, or ("-m", module), in a folder imports: {"needed", "perhaps", "sure", "beside", "trouble"}.

    Not sure is a list of a script that changes where Python looks; beside are modules of the project to which no path
    leads, with their folder; trouble says why the script cannot be read.
    """
    module = script[1] if script[0] == "-m" else ""
    first = root if module else os.path.dirname(os.path.join(root, script[0]))
    folders = [first, *(os.path.join(root, path) for path in pythonpath if path)]
    reading = _Reading(root, folders)
    if module:
        _take_main_module(reading, module)
    else:
        reading.add(os.path.join(root, script[0]), "", certain=True)
    while reading.open:
        path, package, certain = reading.open.pop()
        _read_file(reading, path, package, certain=certain, is_main=len(reading.read) == 1)
    if reading.changes_path:
        own = _own_names(root)
        reading.needed -= own
        reading.perhaps -= own
    beside = {name: place for place in BESIDE for name in reading.needed if _is_own(os.path.join(root, place), name)}
    return {
        "beside": beside,
        "needed": sorted(reading.needed - {"__main__"}),
        "perhaps": sorted(reading.perhaps - reading.needed - {"__main__"}),
        "sure": not reading.changes_path,
        "trouble": reading.trouble,
    }


def _take_main_module(reading: _Reading, module: str) -> None:
    if _take(reading, Found(module, (), 0, True), "") and module.rsplit(".", maxsplit=1)[-1] != "__main__":
        # A package is run by its __main__.
        _take(reading, Found(module, ("__main__",), 0, True), "")


def _read_file(reading: _Reading, path: str, package: str, *, certain: bool, is_main: bool) -> None:
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read(BYTES_LIMIT), path)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if is_main:
            reading.trouble = describe(error)
        return
    reading.changes_path = reading.changes_path or any(_is_path(node) for node in ast.walk(tree))
    for found in _imports(tree.body, certain=certain):
        _take(reading, found, package)


def describe(error: Exception) -> str:
    """Say in a few words why a file could not be read as Python."""
    if isinstance(error, SyntaxError):
        return "line %s: %s" % (error.lineno, error.msg) if error.lineno else str(error.msg)
    if isinstance(error, (RecursionError, MemoryError)):
        return "it is nested too deeply"
    return str(getattr(error, "strerror", None) or error)


def _is_path(node: ast.AST) -> bool:
    """Tell sys.path and site.addsitedir: who names them looks for modules elsewhere."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in (("sys", "path"), ("site", "addsitedir"))
    )


def _take(reading: _Reading, found: Found, package: str) -> bool:
    """Follow one import into the project, or note it as one of another's; tell whether it is the project's own."""
    if found.level:
        parts = package.split(".") if package else []
        parts = parts[: len(parts) - found.level + 1]
        dotted = ".".join([*parts, *([found.module] if found.module else [])])
    else:
        dotted = found.module
    top = dotted.split(".")[0]
    folder = next((folder for folder in reading.folders if top and _is_own(folder, top)), None)
    if folder is None:
        if top and not found.level:
            (reading.needed if found.certain else reading.perhaps).add(top)
        return False
    names = dotted.split(".")
    for depth in range(1, len(names) + 1):
        _add_module(reading, folder, names[:depth], certain=found.certain)
    for name in found.names:
        # It may be a module of the package, or something that the package itself holds.
        _add_module(reading, folder, [*names, name], certain=found.certain)
    return True


def _add_module(reading: _Reading, folder: str, names: Sequence[str], *, certain: bool) -> None:
    base = os.path.join(folder, *names)
    package = os.path.join(base, "__init__.py")
    if os.path.isfile(package):
        reading.add(package, ".".join(names), certain=certain)
    elif os.path.isfile(base + ".py"):
        reading.add(base + ".py", ".".join(names[:-1]), certain=certain)


def _is_own(folder: str, name: str) -> bool:
    base = os.path.join(folder, name)
    if os.path.isfile(base + ".py") or os.path.isfile(os.path.join(base, "__init__.py")):
        return True
    try:
        # A folder without __init__ counts when there is code in it: the "wandb" that wandb makes is none.
        return any(entry.endswith(".py") or _holds_package(base, entry) for entry in os.listdir(base))
    except OSError:
        return any(entry.startswith(name + ".") and entry.endswith(".so") for entry in _names(folder))


def _holds_package(base: str, entry: str) -> bool:
    return os.path.isfile(os.path.join(base, entry, "__init__.py"))


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _imports(body: Sequence[ast.stmt], *, certain: bool) -> Iterator[Found]:
    """Give the imports of some statements, and how certain each one is."""
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Found(alias.name, (), 0, certain)
        elif isinstance(node, ast.ImportFrom):
            yield Found(node.module or "", tuple(alias.name for alias in node.names), node.level, certain)
        elif isinstance(node, ast.If):
            yield from _of_if(node, certain=certain)
        elif isinstance(node, ast.Try):
            expected = any(_expects(handler) for handler in node.handlers)
            yield from _imports(node.body, certain=certain and not expected)
            for handler in node.handlers:
                yield from _imports(handler.body, certain=False)
            yield from _imports(node.orelse, certain=certain and not expected)
            yield from _imports(node.finalbody, certain=certain)
        elif isinstance(node, (ast.With, ast.ClassDef)):
            yield from _imports(node.body, certain=certain)
        else:
            # Functions, loops and whatever a newer Python knows.
            yield from _imports([one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)], certain=False)


def _of_if(node: ast.If, *, certain: bool) -> Iterator[Found]:
    test = ast.dump(node.test)
    if "'TYPE_CHECKING'" in test:
        yield from _imports(node.orelse, certain=certain)
    else:
        yield from _imports(node.body, certain=False)
        yield from _imports(node.orelse, certain=False)


def _expects(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or any("'%s'" % name in ast.dump(handler.type) for name in EXPECTED)


def _own_names(root: str) -> Set[str]:
    """Name what could be a module or package anywhere in the project."""
    own: Set[str] = set()
    seen = 0
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        seen += len(folders) + len(files)
        if seen > ENTRIES_LIMIT:
            break
        modules = {name[:-3] for name in files if name.endswith(".py")}
        own |= modules
        if modules:
            own.add(os.path.basename(folder))
    return own
