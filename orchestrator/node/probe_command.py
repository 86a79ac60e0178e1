"""Asks an external command, with a time limit that holds even when the command cannot be killed."""

from __future__ import annotations

import grp
import os
import pwd
import time

from orchestrator.node.atonce import do_at_once

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

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


class OddOutputError(Exception):
    """A tool printed something that this version of us does not know."""


def ask(
    argv: Sequence[str],
    limit_s: float = LIMIT_S,
    text: str = "",
    env: Optional[Mapping[str, str]] = None,
    cwd: str = "/",
) -> str:
    """Run a command to its end and give what it wrote to stdout."""
    from orchestrator.node.spawn import Child  # noqa: PLC0415 - most who read files of /proc here ask no command

    name = os.path.basename(argv[0])
    until = time.monotonic() + limit_s
    try:
        child = Child(argv, env, cwd, fed=bool(text))
    except OSError as error:
        raise NoAnswerError(f"{name}: {error.strerror or error}") from None
    try:
        out, err, code = child.converse(text.encode(), until, BYTES_LIMIT)
    except TimeoutError:
        child.end()
        raise NoAnswerError(f"{name} {TIME_IS_UP} {limit_s:g} s") from None
    except OverflowError:
        child.end()
        raise NoAnswerError(f"{name} wrote more than {BYTES_LIMIT >> 20} MiB") from None
    if code != 0:
        said = (err or out).decode("utf-8", "replace").strip().splitlines()
        failed = NoAnswerError(f"{name} ended with {code}" + (f": {said[-1][:200]}" if said else ""))
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

    def putter(name: str, argv: Sequence[str]) -> Callable[[], None]:
        return lambda: put(name, argv)

    do_at_once([putter(*question) for question in questions])
    return answers


def text_of(answer: Tuple[str, str]) -> str:
    """Give the output of an answer, or raise its trouble."""
    if answer[1]:
        raise NoAnswerError(answer[1])
    return answer[0]


def find_program(name: str, path: Optional[str] = None) -> str:
    """Find a program on the PATH, or on another one, as `shutil.which` does, whose module is dear; empty when there is none."""
    if os.path.dirname(name):
        return name if _is_program(name) else ""
    if path is None:
        path = os.environ.get("PATH")
    if path is None:
        path = os.confstr("CS_PATH") or os.defpath
    places = (os.path.join(folder, name) for folder in (path.split(os.pathsep) if path else ()))
    return next((place for place in places if _is_program(place)), "")


def _is_program(path: str) -> bool:
    return os.access(path, os.F_OK | os.X_OK) and not os.path.isdir(path)


def list_names(folder: str, start: str = "", end: str = "") -> List[str]:
    """List what lies in a folder and has such a start and end, as `glob` does: nothing that is hidden, nothing on errors."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [name for name in names if name.startswith(start) and name.endswith(end) and not name.startswith(".")]


def read_text(path: str, limit: int = 1 << 16) -> str:
    """Read a small file of /proc or /sys; empty when it is not there or not ours to read."""
    return read_bytes(path, limit).decode("utf-8", "replace").strip()


def read_bytes(path: str, limit: int = 1 << 16) -> bytes:
    """Read a small file without Python's buffers, which cost more than the reading."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    data = b""
    try:
        while len(data) < limit:
            part = os.read(handle, min(limit - len(data), 1 << 16))
            if not part:
                break
            data += part
    except OSError:
        return b""
    finally:
        os.close(handle)
    return data


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
