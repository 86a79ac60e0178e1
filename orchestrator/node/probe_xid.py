"""What the kernel said of the GPUs since boot: Xids of NVIDIA's driver, time-outs and resets of amdgpu."""

from __future__ import annotations

import re
import time

from orchestrator.node.kernel_log import parse_dmesg, parse_kmsg, read_lines
from orchestrator.node.smi_health import pci_address

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Tuple

    from orchestrator.node.kernel_log import Line

    Facts = Dict[str, Any]

MOST_TEXT = 160

__all__ = ["fold_events", "parse_dmesg", "parse_event", "parse_kmsg", "read_events"]

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
_HARMLESS = re.compile(r"\b0 (un)?correctable hardware errors|poison (is )?(supported|enabled|mode)", re.IGNORECASE)
_NVRM = (
    ("init failed", re.compile(r"NVRM: .*RmInitAdapter failed")),
    ("mismatch", re.compile(r"NVRM: API mismatch")),
)


def read_events() -> Tuple[List[Facts], str]:
    """Give the events with their age, folded; and why there is nothing to tell."""
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    lines, trouble = read_lines(lambda part: b"NVRM" in part or b"Xid" in part or b"amdgpu" in part)
    return fold_events(lines, now), trouble


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
