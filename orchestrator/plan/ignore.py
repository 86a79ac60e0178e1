"""Decides which paths of the project do not travel: one matcher with git's semantics for every place that asks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from pathspec import GitIgnoreSpec
from pathspec.pattern import RegexPattern

from orchestrator.light_dataclass import dataclass

Family = Literal["built-in", "git", "aorta", "setting"]
# Later families win; within one, the deeper folder wins; within one file, the later line.
FAMILIES: tuple[Family, ...] = ("built-in", "git", "aorta", "setting")

BUILT_IN = (
    ".git",
    ".hg",
    ".svn",
    ".venv",
    "venv/",
    "__pycache__/",
    "*.py[co]",
    ".mypy_cache/",
    ".ruff_cache/",
    ".pytest_cache/",
    ".hypothesis/",
    ".tox/",
    ".nox/",
    "node_modules/",
    ".ipynb_checkpoints/",
    "wandb/",
    "mlruns/",
    "checkpoints/",
    "*.ckpt",
    ".aorta/",
    ".nfs*",
)
OURS = re.compile(r"\.aorta-(code|nonce-.*|collect-.*)")
"""Names that never travel, whatever a pattern says."""


@dataclass(frozen=True)
class Layer:
    """The patterns of one file, or of one setting."""

    family: Family
    source: str
    """What is told to a user who asks why: a file's path, or where a setting came from."""
    lines: tuple[str, ...]
    folder: str = ""
    """The folder in the project to which it belongs."""
    above: str = ""
    """The project's path below the folder of this file, for files that lie above the project."""


@dataclass(frozen=True)
class Decision:
    """What was decided about a path, and by which line."""

    ignored: bool
    pattern: str
    source: str
    family: Family


@dataclass(frozen=True)
class _Ready:
    layer: Layer
    rules: tuple[tuple[str, RegexPattern], ...]
    """Each line and what it means, the last first."""
    any_rule: re.Pattern[str] | None
    """Finds what at least one of them may speak of: most paths are no rule's, and one search says so."""

    def decide(self, path: str) -> Decision | None:
        layer = self.layer
        if layer.folder:
            if not path.startswith(layer.folder + "/"):
                return None
            path = path[len(layer.folder) + 1 :]
        elif layer.above:
            path = f"{layer.above}/{path}"
        if self.any_rule is not None and self.any_rule.search(path) is None:
            return None
        for line, pattern in self.rules:
            # What lies below a folder is not the folder itself, of which pathspec takes the last stroke for something.
            asked = path.rstrip("/") if line.rstrip().endswith("/**") else path
            if pattern.include is not None and _speaks_of(pattern, asked):
                return Decision(pattern.include, line, layer.source, layer.family)
        return None


def _speaks_of(pattern: RegexPattern, path: str) -> bool:
    """Say whether a pattern means this very path, and not only a folder above it, which was asked about before.

    The last such line wins, as in git; pathspec's own order prefers lines that match files, which git does not.
    """
    result = pattern.match_file(path)
    if result is None:
        return False
    folder = result.match.groupdict().get("ps_d")
    return folder is None or result.match.end("ps_d") == len(path)


class IgnoreRules:
    """All rules that are known so far; the reader of the tree adds the files that it meets on its way down."""

    def __init__(self, layers: Iterable[Layer] = (), tracked: Iterable[str] = ()) -> None:
        """Take the first layers and the files that git tracks although a rule of git ignores them."""
        self._ready: dict[Family, list[_Ready]] = {family: [] for family in FAMILIES}
        self._tracked: set[str] = set()
        for path in tracked:
            self._tracked.add(path)
            self._tracked.update(_upper(path))
        self.add(Layer("built-in", "built in", BUILT_IN))
        for layer in layers:
            self.add(layer)

    def add(self, layer: Layer) -> None:
        """Add the patterns of a file; an upper folder's come before those of the folders below it.

        Raises:
            ValueError: a pattern is none; its text is the message.
        """
        if any(line.strip() and not line.startswith("#") for line in layer.lines):
            lines = [line for line in layer.lines if line]
            patterns: list[RegexPattern] = list(GitIgnoreSpec.from_lines(lines).patterns)
            rules = zip(reversed(lines), reversed(patterns), strict=True)
            self._ready[layer.family].append(_Ready(layer, tuple(rules), _join(patterns)))

    def decide(self, path: str, *, is_folder: bool) -> Decision | None:
        """Find the line that decides about this very path; its upper folders are not looked at."""
        name = path.rpartition("/")[2]
        if OURS.fullmatch(name):
            return Decision(ignored=True, pattern=name, source="aorta-launch's own", family="setting")
        asked = path + "/" if is_folder else path
        for family in reversed(FAMILIES):
            if family == "git" and path in self._tracked:
                # Git itself goes on to track a file that was added by force: it belongs to the code.
                return Decision(ignored=False, pattern=path, source="tracked by git", family="git")
            decision = self._decide_in(family, asked)
            if decision is not None:
                return decision
        upper = path.rpartition("/")[0]
        if upper not in self._tracked:
            return None
        # The folder is walked only for the sake of what git tracks in it: its own rule holds for the rest.
        inherited = (self._decide_in(family, upper + "/") for family in reversed(FAMILIES))
        return next((decision for decision in inherited if decision is not None), None)

    def _decide_in(self, family: Family, asked: str) -> Decision | None:
        for ready in reversed(self._ready[family]):
            decision = ready.decide(asked)
            if decision is not None:
                return decision
        return None

    def is_ignored(self, path: str, *, is_folder: bool = False) -> bool:
        """Say whether a path does not travel, by itself or because a folder above it does not."""
        for upper in _upper(path):
            decision = self.decide(upper, is_folder=True)
            if decision is not None and decision.ignored:
                return True
        decision = self.decide(path, is_folder=is_folder)
        return decision is not None and decision.ignored


def _join(patterns: Iterable[RegexPattern]) -> re.Pattern[str] | None:
    """Build one expression of many; none where that is not possible."""
    # Its group has a name that may stand only once.
    texts = [pattern.regex.pattern.replace("(?P<ps_d>/)", "/") for pattern in patterns if pattern.regex is not None]
    try:
        return re.compile("|".join(f"(?:{text})" for text in texts))
    except re.error:
        return None


def _upper(path: str) -> Sequence[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def literal_pattern(path: str) -> str:
    """Build the pattern that matches one folder of the project and nothing else."""
    return "/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", path) + "/"
