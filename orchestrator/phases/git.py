"""Asks git about the project: commit, branch, what is not committed, and which ignore rules apply."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from orchestrator.light_dataclass import dataclass
from orchestrator.node.tree_rows import to_text

DIFF_LIMIT_BYTES = 20 << 20
TIME_LIMIT_S = 60


@dataclass(frozen=True)
class GitState:
    """Which code ran; all None where the project is in no repository or git is not installed."""

    commit: str | None = None
    branch: str | None = None
    """None as well with a detached HEAD."""
    dirty: bool | None = None
    diff: bytes | None = None
    """`git diff HEAD` with binary content, then the names of untracked files as comments."""


@dataclass(frozen=True)
class Repository:
    """What the repository around a project says about its files."""

    top: Path | None = None
    exclude: Path | None = None
    """.git/info/exclude, wherever it lies for this work tree."""
    tracked_ignored: tuple[str, ...] = ()
    """Files below the project that are tracked although a rule ignores them."""


def read_git(project: Path) -> GitState:
    """Read commit, branch and the uncommitted changes below the project."""
    if _git(project, "rev-parse", "--is-inside-work-tree") != b"true\n":
        return GitState()
    commit = _line(_git(project, "rev-parse", "--verify", "-q", "HEAD"))
    branch = _line(_git(project, "symbolic-ref", "-q", "--short", "HEAD"))
    status = _git(project, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--", ".")
    # An unborn branch has no HEAD to compare with: then everything that is staged is new.
    against = ("HEAD",) if commit else ("--cached",)
    words = ("diff", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/")
    diff = _git(project, *words, *against, "--", ".") or b""
    if len(diff) > DIFF_LIMIT_BYTES:
        diff = diff[:DIFF_LIMIT_BYTES] + b"\n# cut off here: the diff is larger than 20 MiB\n"
    untracked = _git(project, "ls-files", "-z", "--others", "--exclude-standard", "--", ".") or b""
    names = b"".join(b"# untracked: " + name + b"\n" for name in untracked.split(b"\0") if name)
    return GitState(commit=commit, branch=branch, dirty=None if status is None else bool(status), diff=diff + names)


def read_repository(project: Path) -> Repository:
    """Read the place of the repository's own rules, and which files are tracked in spite of a rule."""
    top = _path(_git(project, "rev-parse", "--show-toplevel"))
    if top is None:
        # Without git, or with a repository that git does not trust, its rules are still followed.
        top = next((folder for folder in (project, *project.parents) if (folder / ".git").exists()), None)
        return Repository(top=top, exclude=top / ".git/info/exclude" if top else None)
    exclude = _path(_git(project, "rev-parse", "--git-path", "info/exclude"))
    tracked = _git(project, "ls-files", "-z", "--cached", "--ignored", "--exclude-standard", "--", ".") or b""
    return Repository(
        top=top,
        exclude=project / exclude if exclude else None,
        tracked_ignored=tuple(to_text(name) for name in tracked.split(b"\0") if name),
    )


def _path(answer: bytes | None) -> Path | None:
    return Path(os.fsdecode(answer.removesuffix(b"\n"))) if answer else None


def _line(answer: bytes | None) -> str | None:
    return answer.decode("utf-8", "replace").strip() if answer else None


def _git(project: Path, *words: str) -> bytes | None:
    # A hook or an alias that started us may have set GIT_DIR; it is about another repository.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-C", str(project), "-c", "core.quotePath=false", "-c", "core.fsmonitor=false", *words],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TIME_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
