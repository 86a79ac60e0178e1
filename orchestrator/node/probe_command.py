"""Asks an external command, with a time limit that holds even when the command cannot be killed."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import selectors
import signal
import subprocess
import threading
import time
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

LIMIT_S = 5.0
BYTES_LIMIT = 32 << 20
"""Of all that one command writes; the largest honest answer, a journal's, has a few MiB."""
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
        out, err = _communicate(process, text.encode(), limit_s)
    except subprocess.TimeoutExpired:
        _end(process)
        raise NoAnswerError(f"{name} {TIME_IS_UP} {limit_s:g} s") from None
    except OverflowError:
        _end(process)
        raise NoAnswerError(f"{name} wrote more than {BYTES_LIMIT >> 20} MiB") from None
    if process.returncode != 0:
        said = (err or out).decode("utf-8", "replace").strip().splitlines()
        failed = NoAnswerError(f"{name} ended with {process.returncode}" + (f": {said[-1][:200]}" if said else ""))
        failed.out, failed.said = out.decode("utf-8", "replace"), "\n".join(said)
        raise failed
    return out.decode("utf-8", "replace")


def _communicate(process: "subprocess.Popen[bytes]", text: bytes, limit_s: float) -> Tuple[bytes, bytes]:
    """Do as Popen.communicate does, but give up on one that writes without end: it would fill the node's memory."""
    until = time.monotonic() + limit_s
    written: Dict[int, List[bytes]] = {}
    room = BYTES_LIMIT
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            written[pipe.fileno()] = []
            selector.register(pipe, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            ready = selector.select(until - time.monotonic())
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired(process.args, limit_s)
            for key, events in ready:
                if events & selectors.EVENT_WRITE:
                    text = _feed(key.fd, text)
                    ended = not text
                else:
                    chunk = os.read(key.fd, 1 << 16)
                    written[key.fd].append(chunk)
                    room -= len(chunk)
                    ended = not chunk
                if room < 0:
                    raise OverflowError
                if ended:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
    process.wait(max(until - time.monotonic(), 0))
    out, err = (b"".join(chunks) for chunks in written.values())
    return out, err


def _feed(fd: int, text: bytes) -> bytes:
    """Write what fits, and give what is left; nothing is left for one that reads no more."""
    try:
        return text[os.write(fd, text[: 1 << 16]) :]
    except BlockingIOError:
        return text
    except OSError:
        return b""


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
