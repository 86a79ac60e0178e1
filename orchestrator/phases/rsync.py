"""Runs rsync along the way that a link goes, and says in our words why it failed."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from orchestrator.errors import PushError
from orchestrator.node.tree_rows import to_bytes
from orchestrator.transport import Link, RsyncTarget
from orchestrator.transport import quiet as quiet_file

SILENCE_S = 120
"""rsync gives up when nothing moves for so long."""
NO_SPACE = {28, 122}
NO_RIGHT = {1, 13, 30}
GONE = 2
SHELL_FAILED = 255
NOT_FOUND = 127
NOT_EXECUTABLE = 126
PROTOCOL = 2
STREAM = 12
FILE_FAILED = 11
TIMEOUTS = (30, 35)
STOPPED = (20, -2, -15)
_RUNNING: set[subprocess.Popen[bytes]] = set()


def push_paths(link: Link, root: Path, workdir: str, paths: Iterable[str]) -> None:
    """Copy these paths of the project into the folder on the node.

    Raises:
        PushError: not everything arrived.
    """
    words = [
        # Content decided what is in the list; size and time must not decide again. Times do not travel: a file that
        # changes while its time and size stay would be hidden from Python by the .pyc that it compiled before.
        "--ignore-times",
        "--links",
        "--perms",
        "--chmod=Du+rwx,Fu+rw",
        "--dirs",
        "--from0",
        "--files-from=-",
    ]
    target = link.rsync_target()
    # "./" because a name that starts with # or ; would be read as a comment, even with --from0.
    names = b"\0".join(b"./" + to_bytes(path) for path in paths)
    run_rsync(target, words, [f"{root}/", f"{target.prefix}{workdir}/"], where=link.node.name, stdin=names)


def pull_folder(link: Link, run_folder: str, name: str, to: Path) -> None:
    """Copy one folder of a run folder here; that it is not there is no error, that the run folder is not is one.

    Raises:
        PushError: not everything came; what did is kept.
    """
    words = [
        "--recursive",
        "--links",
        "--safe-links",
        "--times",
        "--chmod=Du+rwx,Fu+rw",
        f"--include=/{name}/",
        "--exclude=/*",
    ]
    target = link.rsync_target()
    run_rsync(target, words, [f"{target.prefix}{run_folder}/", f"{to}/"], where=link.node.name)


def run_rsync(target: RsyncTarget, words: Sequence[str], places: Sequence[str], where: str, stdin: bytes = b"") -> None:
    """Run rsync to its end.

    Raises:
        PushError: it could not start, or ended with another status than 0.
    """
    # The names of the places go through no shell on the other side.
    argv = ["rsync", "--protect-args", f"--timeout={SILENCE_S}", *words]
    if target.shell:
        quiet = [sys.executable, "-I", "-S", quiet_file.__file__, str(len(target.shell))]
        argv += ["-e", shlex.join([*quiet, *target.shell])]
    env = {name: value for name, value in os.environ.items() if not name.startswith("RSYNC_")}
    env |= {**(target.path_env or {}), "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            [*argv, "--", *places],
            stdin=subprocess.PIPE,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except FileNotFoundError:
        raise PushError(
            what="rsync is not installed on this machine", where="launch host", remedy="install rsync here"
        ) from None
    _RUNNING.add(process)
    try:
        _, said = process.communicate(stdin)
    finally:
        _RUNNING.discard(process)
    if process.returncode != 0:
        raise build_error(process.returncode, said.decode("utf-8", "replace"), where)


@atexit.register
def _end_copies() -> None:
    # A launcher that is told to stop leaves no copy running behind it.
    for process in list(_RUNNING):
        with contextlib.suppress(OSError):
            process.terminate()


def build_error(code: int, text: str, where: str) -> PushError:
    """Turn rsync's status and the error numbers in its text into an error with a remedy."""
    what, remedy = _explain(code, {int(number) for number in re.findall(r"\((\d+)\)(?:\s|$)", text)}, text)
    # ssh puts a frame of @ around what it finds most important.
    said = [words for line in text.splitlines() if (words := line.strip("@ \t\r"))]
    quote = f": {said[0]}" if said else ""
    return PushError(what=f"{what} (rsync status {code}){quote}", where=where, remedy=remedy)


def _explain(code: int, numbers: set[int], text: str) -> tuple[str, str]:
    no_program = code in (NOT_FOUND, NOT_EXECUTABLE) or "rsync: command not found" in text or "rsync: not found" in text
    causes = (
        (
            bool(numbers & NO_SPACE),
            "no space is left for the copy",
            "free space where it goes, or name another folder with --workdir",
        ),
        (
            no_program,
            "rsync is not installed on the node",
            "install rsync there, or bring the code there yourself and use --no-push",
        ),
        (
            # Some rsyncs say 12 where ssh itself ended with 255.
            code == SHELL_FAILED or (code == STREAM and "(0 bytes received so far)" in text),
            "the node was reached for control but not for rsync",
            "see what `ssh` says to this node: OpenSSH reads ssh_config in its own way",
        ),
        (code in TIMEOUTS, f"nothing moved for {SILENCE_S} s", "look at the link and at the disk of the node"),
        (
            code == PROTOCOL,
            "the login shell of the node prints text into rsync's stream",
            "guard what .bashrc or the like prints: [[ $- == *i* ]] || return",
        ),
        (code in STOPPED, "the copy was interrupted", ""),
        (
            bool(numbers & NO_RIGHT),
            "no permission for the copy",
            "make the folder writable for this user, or name another with --workdir",
        ),
        (
            code == STREAM,
            "the copy broke off",
            "is the node still there, and does rsync run on it by hand?",
        ),
        (
            code == FILE_FAILED,
            "a file could not be written",
            "is the disk full there, or a quota used up?",
        ),
        (GONE in numbers, "something vanished during the copy", "try again once nothing changes the files"),
    )
    return next(((what, remedy) for holds, what, remedy in causes if holds), ("the copy failed", ""))
