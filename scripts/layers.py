"""Checks that the rooms of orchestrator/ are used in one direction, and that nothing grows out of sight.

scripts/check runs it: each fault is one line with file and line; the exit code is 1 when there is one.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT_PACKAGE = "orchestrator"
# From the lowest to the highest. A room may import the rooms below its own level, and itself.
LEVELS: tuple[frozenset[str], ...] = (
    frozenset({"values", "errors", "node", "exercise", "distributed", "__init__"}),
    frozenset({"nodelist", "facts"}),
    frozenset({"settings"}),
    frozenset({"plan"}),
    frozenset({"checks", "diagnosis", "transport"}),
    frozenset({"output"}),
    frozenset({"phases"}),
    frozenset({"actions"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
)
# Files that lie beside their room's own file.
ROOM_OF_FILE = {
    "run_status": "values",
    "light_dataclass": "values",
    "light_imports": "values",
    "typed_json": "values",
    "nodeline": "nodelist",
    "noderanges": "nodelist",
    "textfiles": "nodelist",
    "config": "settings",
    "environment": "settings",
    "kinds": "settings",
    "words": "settings",
    "setting_names": "settings",
    "flags": "cli",
    "run_verbs": "cli",
    "log_verbs": "cli",
    "check_actions": "actions",
    "run_actions": "actions",
    "log_actions": "actions",
    "status_actions": "actions",
    "stacks_actions": "actions",
    "stacks_verb": "cli",
    "house_verbs": "cli",
    "house_actions": "actions",
    "stranger_actions": "actions",
    "why_verb": "cli",
    "why_actions": "actions",
}
PURE_ROOMS = frozenset({"values", "errors", "nodelist", "settings", "facts", "plan", "checks", "diagnosis"})
IMPURE_MODULES = frozenset({"socket", "subprocess", "time", "threading", "asyncio", "select", "selectors"})
IMPURE_NAMES = frozenset({"os.environ", "os.getenv", "datetime.now", "datetime.utcnow", "Path.home", "Path.cwd"})
SSH_LIBRARIES = frozenset({"fabric", "paramiko", "invoke"})
ALONE = frozenset({"node", "exercise", "distributed"})
"""They run where nothing of ours is installed."""
FILE_LIMIT = 300
FUNCTION_LIMIT = 50
TEST_FILE_LIMIT, TEST_FUNCTION_LIMIT = 400, 80
"""A test tells one story from the command to the files it leaves; cut up, it needs more words."""


@dataclass(frozen=True)
class Import:
    """One module that a file imports, and where."""

    module: str
    line: int

    @property
    def top(self) -> str:
        """The distribution's own name."""
        return self.module.split(".")[0]


def find_room(relative: Path) -> str:
    """Find the room of a file, given by its path inside orchestrator/."""
    return ROOM_OF_FILE.get(relative.stem, relative.stem) if len(relative.parts) == 1 else relative.parts[0]


def read_imports(tree: ast.Module, package: tuple[str, ...]) -> Iterator[Import]:
    """Give every imported module with its full name, those inside functions and type blocks too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(name.name, node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else [])))
            # "from orchestrator import values" names the room only behind the word import.
            ends = [f"{module}.{name.name}" for name in node.names] if module == ROOT_PACKAGE else [module]
            yield from (Import(end, node.lineno) for end in ends)


def find_level(room: str) -> int | None:
    """Find how high a room stands; None for one that the table does not know."""
    return next((height for height, rooms in enumerate(LEVELS) if room in rooms), None)


def check_direction(room: str, imports: list[Import]) -> Iterator[tuple[int, str]]:
    """Find imports of a higher room or of a neighbour."""
    height = find_level(room)
    if height is None:
        yield 1, f"the room {room} stands in no level of scripts/layers.py"
        return
    for found in imports:
        if found.top != ROOT_PACKAGE or "." not in found.module:
            continue
        other = ROOM_OF_FILE.get(found.module.split(".")[1], found.module.split(".")[1])
        if other == room:
            continue
        if (other_height := find_level(other)) is None:
            continue  # a name of orchestrator/__init__.py, or a room whose own file is told above
        if other_height > height:
            yield found.line, f"{room} imports {other}, a higher room"
        elif other_height == height and height > 0:
            yield found.line, f"{room} imports {other}, a neighbour on its own level"


def check_libraries(room: str, relative: Path, imports: list[Import]) -> Iterator[tuple[int, str]]:
    """Find libraries where they have no place."""
    speaks_ssh = room == "transport" and relative.name.startswith("ssh")
    for found in imports:
        if found.top in SSH_LIBRARIES and not speaks_ssh:
            yield found.line, f"only transport/ssh*.py imports {found.top}"
        if found.top == "torch" and room not in ("distributed", "exercise"):
            yield found.line, "the launcher never imports torch"
        if room in ALONE and found.top not in sys.stdlib_module_names | {"torch"}:
            own = f"{ROOT_PACKAGE}.{room}"
            if room == "exercise" or not (found.module == own or found.module.startswith(f"{own}.")):
                yield found.line, f"{room} imports {found.module}: it has the standard library and itself alone"
        if room in PURE_ROOMS and found.top in IMPURE_MODULES:
            yield found.line, f"{room} is a pure room and imports {found.top}"


def check_purity(room: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find the clock and the environment in the pure rooms."""
    if room not in PURE_ROOMS:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if name in IMPURE_NAMES:
                yield node.lineno, f"{room} is a pure room and uses {name}"


def check_size(tree: ast.Module, text: str, *, is_test: bool) -> Iterator[tuple[int, str]]:
    """Find files and functions that do not fit a reader's head."""
    file_limit, function_limit = (TEST_FILE_LIMIT, TEST_FUNCTION_LIMIT) if is_test else (FILE_LIMIT, FUNCTION_LIMIT)
    lines = len(text.splitlines())
    if lines >= file_limit:
        yield 1, f"{lines} lines in one file; under {file_limit} can be read at a sitting"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            if length >= function_limit:
                yield node.lineno, f"{node.name} has {length} lines; under {function_limit} can be seen at once"


def check_file(project: Path, path: Path) -> list[str]:
    """Check one file of the project, give its faults as lines."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, str(path))
    relative = path.relative_to(project)
    faults = list(check_size(tree, text, is_test="tests" in relative.parts))
    if relative.parts[0] == ROOT_PACKAGE:
        inside = relative.relative_to(ROOT_PACKAGE)
        room = find_room(inside)
        imports = list(read_imports(tree, relative.parts[:-1]))
        faults += check_direction(room, imports)
        faults += check_libraries(room, inside, imports)
        faults += check_purity(room, tree)
    return [f"{relative}:{line}: {fault}" for line, fault in sorted(faults)]


def main(project: Path) -> int:
    """Check every file, print the faults."""
    files = [
        path
        for folder in (ROOT_PACKAGE, "scripts", "tests")
        for path in sorted((project / folder).rglob("*.py"))
        if "__pycache__" not in path.parts
    ]
    faults = [fault for path in files for fault in check_file(project, path)]
    for fault in faults:
        print(fault)
    print(f"layers: {len(files)} files, {len(faults) or 'no'} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
