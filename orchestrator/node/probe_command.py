"""Asks an external command, with a time limit that holds even when the command cannot be killed."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import signal
import subprocess
import threading
from typing import Dict, Mapping, Optional, Sequence, Tuple

LIMIT_S = 5.0
TIME_IS_UP = "gave no answer within"


class NoAnswerError(Exception):
    """A command was missing, failed or said nothing in time; the text says which."""

    out = ""
    """What it wrote to stdout before it failed."""
    said = ""
    """All that it complained of."""


def ask(
    argv: Sequence[str],
    limit_s: float = LIMIT_S,
    text: str = "",
    env: Optional[Mapping[str, str]] = None,
    cwd: str = "/",
) -> str:
    """Run a command to its end and give what it wrote to stdout."""
    name = os.path.basename(argv[0])
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if text else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=None if env is None else dict(env),
            # With a session of its own it can be killed with all that it started.
            start_new_session=True,
        )
    except OSError as error:
        raise NoAnswerError(f"{name}: {error.strerror or error}") from None
    try:
        out, err = process.communicate(text.encode() if text else None, timeout=limit_s)
    except subprocess.TimeoutExpired:
        _end(process)
        raise NoAnswerError(f"{name} {TIME_IS_UP} {limit_s:g} s") from None
    if process.returncode != 0:
        said = (err or out).decode("utf-8", "replace").strip().splitlines()
        failed = NoAnswerError(f"{name} ended with {process.returncode}" + (f": {said[-1][:200]}" if said else ""))
        failed.out, failed.said = out.decode("utf-8", "replace"), "\n".join(said)
        raise failed
    return out.decode("utf-8", "replace")


def ask_all(*questions: Tuple[str, Sequence[str]]) -> Dict[str, Tuple[str, str]]:
    """Ask several commands at the same time; each gives its output and its trouble."""
    answers: Dict[str, Tuple[str, str]] = {}

    def put(name: str, argv: Sequence[str]) -> None:
        try:
            answers[name] = (ask(argv), "")
        except NoAnswerError as error:
            # These tools say it in a line or two, of which the first may be the telling one.
            head, found, _ = str(error).partition(": ")
            whole = found and error.said
            answers[name] = (error.out, f"{head}: {' '.join(error.said.split())[:200]}" if whole else str(error))

    threads = [threading.Thread(target=put, args=question, daemon=True) for question in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def text_of(answer: Tuple[str, str]) -> str:
    """Give the output of an answer, or raise its trouble."""
    if answer[1]:
        raise NoAnswerError(answer[1])
    return answer[0]


def _end(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    # A process stuck in the kernel (a hanging driver or mount) cannot be waited for by anybody.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.2)


def read_text(path: str, limit: int = 1 << 16) -> str:
    """Read a small file of /proc or /sys; empty when it is not there or not ours to read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def group_name(path: str) -> str:
    """Name the group that a file belongs to."""
    try:
        return grp.getgrgid(os.stat(path).st_gid).gr_name
    except (OSError, KeyError):
        return ""


def user_name(uid: int) -> str:
    """Name a user id, or give the number where it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def owner_of(pid: int) -> str:
    """Name the user that a process runs as; empty when the process cannot be seen from here."""
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return ""
