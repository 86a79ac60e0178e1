"""What the kernel said of the GPUs since boot: Xids of NVIDIA's driver, time-outs and resets of amdgpu."""

from __future__ import annotations

import contextlib
import grp
import os
import re
import shutil
import time
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from orchestrator.node.probe_command import NoAnswerError, ask
from orchestrator.node.smi_health import pci_address

Facts = Dict[str, Any]
Line = Tuple[float, str]
KMSG = "/dev/kmsg"
JOURNAL_GROUPS = frozenset({"adm", "systemd-journal", "wheel"})
"""Who may read the kernel's part of the journal."""
JOURNAL_LIMIT_S = 4.0
MOST_BYTES = 1 << 24
MOST_TEXT = 160

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")
_SXID = re.compile(r"SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")
_AMD = re.compile(r"amdgpu(?: ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]))?")
_AMD_KINDS = (
    (
        "reset failed",
        re.compile(r"GPU reset end with ret = -|GPU reset\(\d+\) failed|GPU recovery failed", re.IGNORECASE),
    ),
    ("lost", re.compile(r"device lost from bus|fatal error during GPU init", re.IGNORECASE)),
    (
        "ras",
        re.compile(
            r"uncorrectable hardware error|poison|RAS fatal|bad page threshold|errors detected in", re.IGNORECASE
        ),
    ),
    ("ring timeout", re.compile(r"ring \S+ timeout", re.IGNORECASE)),
    ("reset", re.compile(r"GPU reset begin|GPU reset\(\d+\) succeeded", re.IGNORECASE)),
    ("page fault", re.compile(r"page fault|GPU fault detected", re.IGNORECASE)),
)
_HARMLESS = re.compile(r"0 (un)?correctable hardware errors|poison (is )?(supported|enabled|mode)", re.IGNORECASE)
_NVRM = (
    ("init failed", re.compile(r"NVRM: .*RmInitAdapter failed")),
    ("mismatch", re.compile(r"NVRM: API mismatch")),
)


def read_events() -> Tuple[List[Facts], str]:
    """Give the events with their age, folded; and why there is nothing to tell."""
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    trouble = ""
    for read in (_read_kmsg, _read_journal):
        try:
            return fold_events(read(), now), ""
        except (OSError, NoAnswerError) as error:
            said = f"{KMSG}: {error.strerror}" if isinstance(error, OSError) else str(error)
            trouble = f"{trouble}; {said}" if trouble else said
    return [], trouble


def _read_kmsg() -> List[Line]:
    """Read the kernel's ring buffer without waiting for its next line."""
    handle = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    parts: List[bytes] = []
    size = 0
    try:
        while size < MOST_BYTES:
            try:
                part = os.read(handle, 1 << 16)
            except BrokenPipeError:
                # The oldest line was overwritten while we read.
                continue
            except BlockingIOError:
                break
            if not part:
                break
            # Thousands of lines, of which a handful matter.
            if b"NVRM" in part or b"Xid" in part or b"amdgpu" in part:
                parts.append(part if part.endswith(b"\n") else part + b"\n")
            size += len(part)
    finally:
        os.close(handle)
    return list(parse_kmsg(b"".join(parts).decode("utf-8", "replace")))


def _read_journal() -> List[Line]:
    tool = shutil.which("journalctl")
    if tool is None:
        raise NoAnswerError("no journalctl")
    if os.geteuid() != 0 and not JOURNAL_GROUPS & set(_group_names()):
        # It would show an empty journal, which is not the same as nothing to tell.
        raise NoAnswerError("the journal is for the groups adm and systemd-journal")
    words = [tool, "-k", "-b", "-q", "-o", "short-monotonic", "--no-pager", "--no-hostname"]
    text = ask(words, JOURNAL_LIMIT_S)
    if not text.strip():
        raise NoAnswerError("journalctl shows no line of the kernel")
    return list(parse_dmesg(text))


def _group_names() -> Iterator[str]:
    for number in os.getgroups():
        with contextlib.suppress(KeyError):
            yield grp.getgrgid(number).gr_name


def parse_kmsg(text: str) -> Iterator[Line]:
    """Read records of /dev/kmsg: "6,1234,98765432,-;text"; give seconds since boot and text."""
    for line in text.splitlines():
        match = re.match(r"\d+,\d+,(\d+),[^;]*;(.*)", line)
        if match is not None:
            yield int(match.group(1)) / 1e6, match.group(2)


def parse_dmesg(text: str) -> Iterator[Line]:
    """Read lines of dmesg or journalctl -o short-monotonic: "[ 1234.567890] text"."""
    for line in text.splitlines():
        match = re.match(r"\[\s*(\d+\.\d+)\]\s+(.*)", line)
        if match is not None:
            yield float(match.group(1)), match.group(2)


def parse_event(text: str) -> Optional[Facts]:
    """Read one line of the kernel log; None when it tells of no trouble of a GPU."""
    for kind, pattern in (("xid", _XID), ("sxid", _SXID)):
        match = pattern.search(text)
        if match is not None:
            pci, code, said = match.groups()
            return _event(kind, int(code), pci_address(pci), said or "")
    for name, pattern in _NVRM:
        if pattern.search(text):
            return _event(name, None, pci_address(text), text.partition("NVRM: ")[2])
    match = _AMD.search(text)
    if match is None or _HARMLESS.search(text):
        return None
    name = next((name for name, pattern in _AMD_KINDS if pattern.search(text)), "")
    return _event(f"amdgpu {name}", None, match.group(1) or "", text) if name else None


def _event(kind: str, code: Optional[int], pci: str, said: str) -> Facts:
    return {"kind": kind, "code": code, "pci": pci, "text": said.strip()[:MOST_TEXT]}


def fold_events(lines: Iterable[Line], now: float) -> List[Facts]:
    """Fold equal events of one GPU: how often, and how long ago the last one was."""
    folded: Dict[Tuple[str, Optional[int], str], Facts] = {}
    for seconds, text in lines:
        event = parse_event(text)
        if event is None:
            continue
        key = (event["kind"], event["code"], event["pci"])
        count = folded.pop(key, {"count": 0})["count"] + 1
        folded[key] = {**event, "count": count, "age_s": round(max(0.0, now - seconds), 1)}
    return list(folded.values())
