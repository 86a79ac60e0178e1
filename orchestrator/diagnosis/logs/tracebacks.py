"""Reads exceptions out of what a rank wrote last, and out of torchelastic's error files."""

from __future__ import annotations

import json
import re
from typing import Any

from orchestrator.light_dataclass import dataclass

_EXCEPTION = re.compile(
    r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Fault|Iteration|Timeout)?)(?::\s?(?P<text>.*))?$"
)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_IGNORED = "Exception ignored in: "
_PREFIX = re.compile(r"^\[rank\d+\]:\s?")
_LIBRARY = ("site-packages/", "dist-packages/", "<frozen ", "/lib/python", "orchestrator/distributed/")
"""Where code lies that is not the user's; our library for scripts comes with the run, not with the interpreter."""

_CONSEQUENCES = (
    "connection reset by peer",
    "connection closed by peer",
    "connection refused",
    "broken pipe",
    "socket timeout",
    "ncclremoteerror",
    "remote process exited",
    "peer closed connection",
    "signalexception",
    "got signal: 15",
    "application timeout caused pair closure",
    "read error",
    "network error",
)
_OF_THE_GROUP = re.compile(
    r"gloo|nccl|c10d|tcpstore|\bdist(?:backend|network|store)?error\b|torch\.distributed|signalexception|got signal: 15"
    r"|pair closure|connection closed by peer \[|\bremote process exited"
    # As torch told it before it had exceptions of its own; Python's own are never of this class.
    r"|^RuntimeError: (?:connection re(?:set|fused)|connection closed|broken pipe|socket timeout)",
    re.IGNORECASE,
)
"""What is said of ranks and their store alone."""


@dataclass(frozen=True)
class Failure:
    """What one rank said when it failed."""

    error: str
    where: str = ""
    """Deepest frame outside of libraries: file:line in function."""
    line: int | None = None
    """Line number of the error within the text."""
    frames: tuple[str, ...] = ()
    """All frames outside of libraries, outermost first."""

    @property
    def consequence(self) -> bool:
        """It speaks of a peer of the process group that went away: something else broke first."""
        text = self.error.lower()
        # A server that a script speaks with goes away in the same words, and that breaks this rank alone.
        return any(word in text for word in _CONSEQUENCES) and _OF_THE_GROUP.search(self.error) is not None


def is_library(file: str) -> bool:
    """Tell a file of a library from the user's own."""
    return any(part in file for part in _LIBRARY)


def parse_failure(text: str) -> Failure | None:
    """Find the last exception in a rank's stderr; without one, its last line that says something."""
    lines = [_PREFIX.sub("", line.rstrip("\r")) for line in text.split("\n")]
    start = max(
        (n for n, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")), default=None
    )
    if start is not None:
        failure = _parse_traceback(lines, start)
        if failure is not None:
            return failure
    return parse_last_line(text)


def parse_last_line(text: str) -> Failure | None:
    """Find the last line that says something; what the interpreter ignores while it closes down says nothing."""
    text = text[:found] if (found := text.find(_IGNORED)) >= 0 else text
    lines = [_PREFIX.sub("", line.rstrip("\r")) for line in text.split("\n")]
    for number in range(len(lines) - 1, -1, -1):
        # A rule of dashes says nothing.
        if any(map(str.isalnum, lines[number])):
            return Failure(error=lines[number].strip()[:500], line=number + 1)
    return None


def _parse_traceback(lines: list[str], start: int) -> Failure | None:
    frames: list[str] = []
    for number in range(start + 1, len(lines)):
        line = lines[number]
        frame = _FRAME.match(line)
        if frame is not None:
            place = f"{frame['file']}:{frame['line']}" + (f" in {frame['function']}" if frame["function"] else "")
            if not is_library(frame["file"]):
                frames.append(place)
        elif line and not line[0].isspace() and _EXCEPTION.match(line):
            where = frames[-1] if frames else ""
            return Failure(error=line.strip()[:500], where=where, line=number + 1, frames=tuple(frames))
    return None


def parse_error_file(data: bytes) -> Failure | None:
    """Read a torchelastic error file: the message of the exception, and its innermost frame."""
    try:
        document: Any = json.loads(data)
        message = document["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        # A rank may write what it likes there.
        return None
    if isinstance(message, str):
        return Failure(error=message[:500])
    if not isinstance(message, dict):
        return None
    text = str(message.get("message", ""))
    extra = message.get("extraInfo")
    stack = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
    inner = parse_failure(stack) if stack else None
    if not text:
        return None
    return Failure(error=text[:500], where=inner.where if inner else "", frames=inner.frames if inner else ())


@dataclass(frozen=True)
class Blame:
    """What torchrun's own failure block says of its root cause."""

    rank: int
    local_rank: int
    code: int | None
    signal: int | None


_BLAME = re.compile(
    r"Root Cause \(first observed failure\):.*?rank\s*:\s*(?P<rank>\d+) \(local_rank: (?P<local>\d+)\).*?"
    r"exitcode\s*:\s*(?P<code>-?\d+)",
    re.DOTALL,
)


def parse_blame(text: str) -> Blame | None:
    """Find torchrun's failure block in what an agent wrote; its time is to the second, its rank is right for its node."""
    found = _BLAME.search(text)
    if found is None:
        return None
    code = int(found["code"])
    return Blame(
        rank=int(found["rank"]),
        local_rank=int(found["local"]),
        code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
    )


def address_in_use(text: str) -> bool:
    """Tell whether an agent failed because its port was taken; torchrun says it in no other way than in words."""
    taken = ("address already in use", "but another process is utilizing it")  # the second is accelerate's
    return "EADDRINUSE" in text or any(words in text.lower() for words in taken)
