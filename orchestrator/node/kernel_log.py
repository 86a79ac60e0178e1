"""Reads what the kernel has said since boot: its ring buffer, else the journal."""

from __future__ import annotations

import os

from orchestrator.node.probe_command import NoAnswerError, ask, find_program

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Callable, Iterator, List, Tuple

    Line = Tuple[float, str]

KMSG = "/dev/kmsg"
JOURNAL_GROUPS = frozenset({"adm", "systemd-journal", "wheel"})
"""Who may read the kernel's part of the journal."""
JOURNAL_LIMIT_S = 4.0
MOST_BYTES = 1 << 24
RECORD_BYTES = 1 << 13
"""No record of the ring buffer is longer."""
FIELDS = 4
"""Before the text: level, number, time, and what newer kernels add."""


def read_lines(keep: Callable[[bytes], bool]) -> Tuple[List[Line], str]:
    """Give lines of the kernel since boot, by seconds since boot; or why there are none to read.

    Keep is asked of each record, before it is taken apart: thousands of lines, of which a handful matter.
    """
    trouble = ""
    for read in (_read_kmsg, _read_journal):
        try:
            return read(keep), ""
        except (OSError, NoAnswerError) as error:
            said = f"{KMSG}: {error.strerror}" if isinstance(error, OSError) else str(error)
            trouble = f"{trouble}; {said}" if trouble else said
    return [], trouble


def _read_kmsg(keep: Callable[[bytes], bool]) -> List[Line]:
    """Read the kernel's ring buffer without waiting for its next line."""
    handle = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    parts: List[bytes] = []
    size = 0
    try:
        while size < MOST_BYTES:
            try:
                part = os.read(handle, RECORD_BYTES)
            except BrokenPipeError:
                # The oldest line was overwritten while we read.
                continue
            except BlockingIOError:
                break
            if not part:
                break
            if keep(part):
                parts.append(part if part.endswith(b"\n") else part + b"\n")
            size += len(part)
    finally:
        os.close(handle)
    return list(parse_kmsg(b"".join(parts).decode("utf-8", "replace")))


def _read_journal(keep: Callable[[bytes], bool]) -> List[Line]:
    tool = find_program("journalctl")
    if not tool:
        raise NoAnswerError("no journalctl")
    if os.geteuid() != 0 and not JOURNAL_GROUPS & set(_group_names()):
        # It would show an empty journal, which is not the same as nothing to tell.
        raise NoAnswerError("the journal is for the groups adm and systemd-journal")
    words = [tool, "-k", "-b", "-q", "-o", "short-monotonic", "--no-pager", "--no-hostname"]
    text = ask(words, JOURNAL_LIMIT_S)
    if not text.strip():
        raise NoAnswerError("journalctl shows no line of the kernel")
    return [line for line in parse_dmesg(text) if keep(line[1].encode())]


def _group_names() -> Iterator[str]:
    import grp  # noqa: PLC0415 - asked only where the ring buffer is not to be read

    for number in os.getgroups():
        try:
            yield grp.getgrgid(number).gr_name
        except KeyError:
            continue


def parse_kmsg(text: str) -> Iterator[Line]:
    """Read records of /dev/kmsg: "6,1234,98765432,-;text"; give seconds since boot and text."""
    for line in text.splitlines():
        head, semicolon, text = line.partition(";")
        fields = head.split(",", 3)
        if semicolon and len(fields) == FIELDS and all(field.isdecimal() for field in fields[:3]):
            yield int(fields[2]) / 1e6, text


def parse_dmesg(text: str) -> Iterator[Line]:
    """Read lines of dmesg or journalctl -o short-monotonic: "[ 1234.567890] text"."""
    import re  # noqa: PLC0415 - dear, and asked only where the ring buffer is not to be read

    for line in text.splitlines():
        match = re.match(r"\[\s*(\d+\.\d+)\]\s+(.*)", line)
        if match is not None:
            yield float(match.group(1)), match.group(2)
