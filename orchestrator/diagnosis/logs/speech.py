"""What one speaker of a log said last: its exceptions as they come, line by line, in bounded memory."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import field

from orchestrator.diagnosis.cause import Hit
from orchestrator.diagnosis.logs.tracebacks import Failure, is_library
from orchestrator.light_dataclass import dataclass

MOST_FRAMES = 40
MOST_HITS = 60
MOST_UTTERANCES = 64
LAST_LINES = 8
NEAR = 60
"""Lines after an exception that can still explain it."""
FEW_LINES = 6
GENERIC = 10
"""Priorities below it belong to exceptions of which no more is known."""
PATIENCE = 400
"""Lines without an exception after which a traceback that never ended is given up."""

_START = re.compile(r"^\s{0,4}(?:Original )?Traceback \(most recent call last\)")
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_IGNORED = ("Exception ignored ", "--- Logging error ---")
"""Before a traceback that Python tells and goes on."""
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_GROUPED = re.compile(
    r"^ {2,40}(?:(?P<start>\+ Exception Group (?=Traceback))|\| ?|(?P<rule>\+-[-+]*(?: (?P<number>\d+) -+)?$))"
)
STEPS_AFTER = 2
"""Lines of steps behind an exception: who failed for good tells at most where it was."""
_STEP = re.compile(r"(?:\b(?:step|epoch|iter|iteration|batch)\b\W{0,4}\d|\bloss\W{0,4}\d|\d+%\|)", re.IGNORECASE)
_DONE = re.compile(
    r"^done\b|\b(?:train\w*|run|job|all|everything)\b.{0,40}\b(?:done|finished|complete|ended)", re.IGNORECASE
)
_TROUBLE = re.compile(r"^wandb:|\b(?:fail|error|abort|exit|stopp|crash)", re.IGNORECASE)
_AGENT = ("/torch/distributed/run.py", "/torch/distributed/launcher/api.py", "/torch/distributed/elastic/agent/")
EXCEPTION = re.compile(
    r"^(?:[a-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Fault|Failure|Iteration|Timeout|Expired|Empty|Full|Abort|NotMet|Violation|Killed|Cancelled)"
    r"|(?:[a-z_]\w*\.)+[A-Z]\w+)(?::\s.*|:)?$"
)
"""An exception as Python tells it, sure enough among other lines: a known ending, or a module before it."""
_NCCL_WORDS = re.compile(r"^(?:nccl[A-Z]\w+:|Last error:|NET/|socket\w*:|\w+: Connect)")
_NAME = re.compile(r"^[A-Z]\w*(?::\s.*|:)?$")
_NO_NAME = re.compile(
    r"^(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL|FATAL|NOTE|TRACE|Epoch|Step|Iter|Loss|Rank|Train|Eval)\b"
)


@dataclass(frozen=True)
class Utterance:
    """One exception with all that led to it, or a native crash."""

    failure: Failure
    hits: tuple[Hit, ...]
    start: int
    end: int
    agent: bool
    """The elastic agent raised it, not a rank."""


@dataclass
class Speech:
    """Follows one speaker."""

    utterances: deque[Utterance] = field(default_factory=lambda: deque(maxlen=MOST_UTTERANCES))
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    loose: deque[Hit] = field(default_factory=lambda: deque(maxlen=MOST_HITS))
    """Hits outside of any traceback."""
    murmurs: deque[Hit] = field(default_factory=lambda: deque(maxlen=MOST_HITS))
    """Those of them that a script may have written on its way."""
    last: int = 0
    """Where it spoke last."""
    _places: deque[int] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    """Where the last lines stand."""
    _grouped: bool = False
    """A group of exceptions is being told."""
    _others: bool = False
    """Those of it that are not the first."""
    _ignored: int = 0
    """Where it was said last that the next traceback ends nothing."""
    _open: int = 0
    _start: int = 0
    _agent: bool = False
    _chained: bool = False
    _frames: list[str] = field(default_factory=list)
    _hits: list[Hit] = field(default_factory=list)
    _weak: tuple[int, str] | None = None

    def feed(self, number: int, text: str, hit: Hit | None, *, sure: bool = True) -> None:
        """Take one line, without its prefix; one that may be somebody else's is not sure."""
        self.last = number
        if self._grouped or text.startswith("  + Exc"):
            text = self._ungroup(text)
        opened = self._open
        if _START.match(text):
            if text.lstrip().startswith("Original"):
                # A worker's exception, told again by the rank that it worked for.
                self._chain(keep_frames=True)
            self._begin(number)
        elif text.startswith(_CHAIN):
            self._chain()
        elif text.startswith(_IGNORED):
            self._ignored = number
        elif self._open:
            self._read(number, text, hit, sure=sure)
        elif hit is not None:
            self._after(number, hit, text, sure=sure)
        # Of a traceback only the exception is a last word, and of the agent's own not even that.
        if text.strip() and not opened and not self._open:
            self.last_lines.append(text[:300])
            self._places.append(number)

    def end(self) -> None:
        """Take what is in hand: the log is over."""
        while self._open:
            self._give_up()

    def went_on(self, said: Utterance) -> bool:
        """Tell whether training went on behind an exception: it was caught, and told for the record."""
        after = [line for number, line in zip(self._places, self.last_lines, strict=True) if number > said.end]
        steps = [line for line in after if _STEP.search(line) and not _TROUBLE.search(line)]
        return len(steps) >= STEPS_AFTER or any(_DONE.search(line) and not _TROUBLE.search(line) for line in after)

    def _ungroup(self, text: str) -> str:
        """Give a line of a group of exceptions as if its first had been raised alone; empty where it is of another one."""
        found = _GROUPED.match(text)
        if found is None:
            self._grouped = False
            return text
        words = text[found.end() :]
        if found["start"] and not self._grouped:
            self._grouped, self._others = True, False
            return words
        self._others = self._others or int(found["number"] or 0) > 1
        return "" if self._others or found["rule"] or _START.match(words) else words

    def _begin(self, number: int) -> None:
        if self._open == 0 or number - self._start > PATIENCE:
            while self._open:
                self._give_up()
            if not self._chained:
                self._frames, self._hits, self._agent = [], [], False
                self._start = number
            self._weak = None
        self._chained = False
        self._open += 1

    def _chain(self, *, keep_frames: bool = False) -> None:
        """Take the exception before this line back: it is a part of the one that follows."""
        if self.utterances and self._open == 0:
            before = self.utterances.pop()
            self._start, self._agent = before.start, before.agent
            # An exception that was handled, of which no more is known, explains nothing.
            self._hits = [hit for hit in before.hits if is_telling(hit)]
            self._frames = list(before.failure.frames) if keep_frames else []
            self._chained = True

    def _read(self, number: int, text: str, hit: Hit | None, *, sure: bool) -> None:
        frame = _FRAME.match(text)
        if frame is not None:
            self._agent = self._agent or any(part in frame["file"] for part in _AGENT)
            if not is_library(frame["file"]) and len(self._frames) < MOST_FRAMES:
                place = f"{frame['file']}:{frame['line']}"
                self._frames.append(place + (f" in {frame['function']}" if frame["function"] else ""))
            return
        raised = EXCEPTION.match(text) is not None
        if hit is not None and len(self._hits) < MOST_HITS:
            # A line of code that is quoted is no message, whatever words it holds.
            quoted = text.startswith("    ")
            if raised or (quoted and hit.cause.role == "hint") or (sure and not quoted):
                self._hits.append(hit)
        if raised:
            self._close(number, text)
        elif self._weak is None and _NAME.match(text) and not _NO_NAME.match(text):
            self._weak = (number, text)
        elif number - self._start > PATIENCE:
            self._give_up()

    def _close(self, number: int, text: str) -> None:
        frames = tuple(self._frames)
        failure = Failure(error=text.strip()[:500], where=frames[-1] if frames else "", line=number, frames=frames)
        hits = tuple(self._hits)
        ignored = 0 < self._ignored < self._start <= self._ignored + FEW_LINES
        if not ignored:
            self.utterances.append(Utterance(failure, hits, self._start, number, self._agent))
        if not self._agent:
            self.last_lines.append(failure.error[:300])
            self._places.append(number)
        self._open -= 1
        if self._open == 0:
            self._hits, self._agent = [], False
        else:
            # Two that are interleaved: what was found at the end of the one is not of the other.
            self._hits = [hit for hit in self._hits if hit.line != number]

    def _give_up(self) -> None:
        if self._weak is not None:
            number, text = self._weak
            self._weak = None
            self._close(number, text)
            return
        self.loose.extend(self._hits)
        self._open, self._hits, self._agent = 0, [], False

    def _after(self, number: int, hit: Hit, text: str, *, sure: bool) -> None:
        """Keep what was said after an exception, or without any."""
        (self.loose if sure else self.murmurs).append(hit)
        if not self.utterances or EXCEPTION.match(text):
            return
        last = self.utterances[-1]
        near = number - last.end <= (NEAR if sure else FEW_LINES)
        # NCCL's own words stand on the lines below the exception.
        own = sure or ("NCCL" in last.failure.error and _NCCL_WORDS.match(text) is not None)
        known = any(is_telling(one) and one.cause.role == "cause" for one in last.hits)
        if near and own and not last.agent and len(last.hits) < MOST_HITS and not known:
            self.utterances[-1] = Utterance(last.failure, (*last.hits, hit), last.start, last.end, last.agent)


def is_telling(hit: Hit) -> bool:
    """Tell whether a hit knows more than that an exception was raised."""
    return hit.cause.role != "noise" and hit.cause.priority >= GENERIC
