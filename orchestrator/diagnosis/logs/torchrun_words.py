"""What an elastic agent tells of its ranks: its list of failures, its log lines, its events."""

from __future__ import annotations

import json
import re
from calendar import timegm
from dataclasses import field
from typing import Any

from orchestrator.diagnosis.case import Claim
from orchestrator.diagnosis.logs.speech import EXCEPTION
from orchestrator.diagnosis.logs.tracebacks import Failure, is_library
from orchestrator.light_dataclass import dataclass

_RANK = re.compile(r"^\s*rank\s+: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
_CODE = re.compile(r"^\s*exitcode\s+: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)")
_TIME = re.compile(r"^\s*time\s+: (?P<time>\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)")
_TEXT = re.compile(r"^\s*traceback : Traceback \(most recent call last\)")
_FRAME = re.compile(r'^\s{4,}File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
_FAILED = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)")
_STOPPING = re.compile(r"Sending process (?P<pid>\d+) closing signal (?P<signal>\w+)")
_FORCED = re.compile(r"Unable to shutdown process (?P<pid>\d+) via")
_GOT_SIGNAL = re.compile(
    r"Received (?P<a>\d+) death signal|Process \d+ got signal: (?P<b>\d+)|Got termination signal: (?P<c>\d+)"
)
AGENT_LINE = re.compile(
    r"^(?:\[[^\]]{0,80}\] )?[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ torch/distributed/(?:elastic|run|launcher)"
)
NATIVE_LINE = re.compile(r"^\[[IWEF]\d{0,4} ?\d\d:\d\d:\d\d\.\d+ \w[\w.]+:\d+\]")
_EVENT = '"torchelastic.worker.status.'
_BLOCK_END = re.compile(r"^={20,}$")
_FRAMEWORK = re.compile(
    r"^(?:={20,}|-{20,}|Failures:|\[\d+\]:|\s+(?:host|error_file|traceback)\s*:|\s+<NO_OTHER_FAILURES>|\S+ FAILED$)"
)
"""Lines of its list that tell nothing."""
_HALF_SIGNALS = 128
MOST_CLAIMS = 4096


@dataclass
class AgentWords:
    """Follows what the agent of one node says."""

    claims: list[Claim] = field(default_factory=list)
    told: dict[int, Failure] = field(default_factory=dict)
    """What its list says that a rank raised (only ranks that write error files have that)."""
    failed: list[tuple[int, int, int]] = field(default_factory=list)
    """(local rank, code, pid) of its one-line reports."""
    stopped_pids: set[int] = field(default_factory=set)
    forced_pids: set[int] = field(default_factory=set)
    signals: list[int] = field(default_factory=list)
    reported: int | None = None
    """The line of its first report: what is told after it is told of ranks that are being stopped."""
    ended_well: set[int] = field(default_factory=set)
    pids: dict[int, int] = field(default_factory=dict)
    _root: bool = False
    _time: float | None = None
    _rank: tuple[int, int] | None = None
    _texting: int | None = None
    _frames: list[str] = field(default_factory=list)

    def feed(self, number: int, text: str) -> bool:
        """Take one line; True when it was the agent's own."""
        if (
            self._read_list(text)
            or (_EVENT in text and self._read_event(text))
            or (("process" in text or "exitcode" in text or "signal" in text) and self._read_line(text))
        ):
            self.reported = self.reported or number
            return True
        return bool(AGENT_LINE.match(text) or _FRAMEWORK.match(text))

    def _read_list(self, text: str) -> bool:
        if text.startswith("Root Cause (first observed failure)"):
            self._root = True
            return True
        if found := _TIME.match(text):
            self._time, self._texting = parse_moment(found["time"]), None
            return True
        if found := _RANK.match(text):
            self._rank = (int(found["rank"]), int(found["local"]))
            return True
        if (found := _CODE.match(text)) and self._rank is not None and len(self.claims) < MOST_CLAIMS:
            self._add(int(found["code"]), int(found["pid"]))
            return True
        if _TEXT.match(text) and self.claims:
            self._texting, self._frames = self.claims[-1].rank, []
            return True
        return self._texting is not None and self._read_text(text)

    def _add(self, number: int, pid: int) -> None:
        rank, local = self._rank or (0, 0)
        code, signal = parse_status(number)
        self.claims.append(
            Claim(rank=rank, local_rank=local, code=code, signal=signal, pid=pid, time=self._time, root=self._root)
        )
        self._rank = self._time = None

    def _read_text(self, text: str) -> bool:
        """Read the traceback that an entry of the list holds, two columns to the right."""
        if _BLOCK_END.match(text):
            self._texting = None
            return True
        if not text.startswith("  "):
            return False
        if found := _FRAME.match(text):
            if not is_library(found["file"]):
                self._frames.append(f"{found['file']}:{found['line']} in {found['function']}")
        elif EXCEPTION.match(text[2:]) and self._texting is not None:
            frames = tuple(self._frames)
            self.told[self._texting] = Failure(
                error=text.strip()[:500], where=frames[-1] if frames else "", frames=frames
            )
        return True

    def _read_line(self, text: str) -> bool:
        if found := _FAILED.search(text):
            self.failed.append((int(found["local"]), int(found["code"]), int(found["pid"])))
            return True
        if found := _FORCED.search(text):
            self.forced_pids.add(int(found["pid"]))
            return True
        if found := _STOPPING.search(text):
            self.stopped_pids.add(int(found["pid"]))
            return True
        if found := _GOT_SIGNAL.search(text):
            self.signals.append(int(found["a"] or found["b"] or found["c"]))
            # As an exception it ends a traceback, whose reader has to see it.
            return not EXCEPTION.match(text)
        return False

    def _read_event(self, text: str) -> bool:
        try:
            event: Any = json.loads(text[text.index("{") :])
            state, about = str(event["name"]).rpartition(".")[2], event["metadata"]
            rank = int(about["global_rank"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        if str(about.get("worker_id") or "").isdigit():
            self.pids[rank] = int(about["worker_id"])
        if state == "SUCCEEDED":
            self.ended_well.add(rank)
        return state in ("FAILED", "TERMINATED", "SUCCEEDED")

    def stopped(self, claim: Claim) -> bool:
        """Tell whether the agent ended this rank because another one had failed."""
        if claim.pid in self.forced_pids:
            return True
        return claim.signal == 15 and claim.pid in self.stopped_pids  # noqa: PLR2004 - SIGTERM


def parse_status(number: int) -> tuple[int | None, int | None]:
    """Tell a code from a signal, in Python's way of writing both as one number."""
    return (None, -number) if number < 0 else (number, None)


def signal_of(code: int | None, signal: int | None) -> int | None:
    """Give the signal that ended something, also where a shell in between made 128 + n of it."""
    if signal is not None:
        return signal
    return code - _HALF_SIGNALS if code is not None and _HALF_SIGNALS < code < _HALF_SIGNALS + 32 else None


def parse_moment(text: str) -> float | None:
    """Read a time that torchrun wrote; the zone is unknown, so it is only good to compare within one log."""
    try:
        numbers = [int(part) for part in re.findall(r"\d+", text)]
        return float(timegm((*numbers[:6], 0, 0, 0)))
    except (ValueError, OverflowError):
        return None
