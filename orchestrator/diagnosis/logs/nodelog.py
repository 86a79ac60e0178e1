"""Reads the log of one node, its agent and ranks merged, whoever wrote it: who said what, how it ended."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import field
from typing import Literal

from orchestrator.diagnosis.cause import Hit
from orchestrator.diagnosis.logs.scan import BLOCK, build_finder
from orchestrator.diagnosis.logs.speech import PATIENCE, Speech
from orchestrator.diagnosis.logs.torchrun_words import AGENT_LINE, NATIVE_LINE, AgentWords
from orchestrator.light_dataclass import dataclass

Speaker = tuple[Literal["rank", "local", "agent", "anyone"], int]
ANYONE: Speaker = ("anyone", 0)
AGENT: Speaker = ("agent", 0)
MOST_SPEAKERS = 4096
MOST_HITS = 200
MOST_LOCAL = 64
LAST_CHARS = 300
EXIT_LINES = 12
"""Within so many last lines a launcher says how it ended."""

_PREFIX = re.compile(
    r"^\[(?:rank(?P<rank>\d+)\]:\s?"  # torch's own
    r"|rank (?P<ours>\d+)(?: …)?\]\s"  # ours
    r"|rank(?P<script>\d+)\]\s"
    r"|1,(?P<mpi>\d+)\]<std(?:out|err)>:\s?"
    r"|(?P<agent>agent)(?: …)?\]\s"
    r"|[a-z_]+(?P<local>\d+)\]:\s?)"  # torchrun --tee: role and local rank
)
_TEED = re.compile(r"^\[(?:default|trainer|worker|ranks?)(?P<local>\d{1,3})\]:\s?(?:\[rank(?P<rank>\d+)\]:)?")
_STAMP = re.compile(
    r"^(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(?: |$)"
)
"""The time that a collector of logs puts in front of every line."""
_NCCL_RANK = re.compile(r"ProcessGroupNCCL\.\w+:\d+\]\s*\[(?:PG [^\]]*?)?Rank (?P<rank>\d+)\]")
_NCCL_LOCAL = re.compile(r"^\S+:\d+:\d+ \[(?P<local>\d+)\] NCCL ")
_SEEN = re.compile(r"\[[Rr]ank ?(?P<rank>\d+)\]")
_WORLD = re.compile(r"\bworld(?:[_ ]?size)?\s?[=:]\s?(?P<size>\d+)\b", re.IGNORECASE)
_EXIT = re.compile(
    r"\b(?:exit(?:ed)?|ended|finished|return(?:ed)?|terminated|rc|status)\b"
    r"(?:[\s:=(\[]*\b(?:with|code|status|non-zero|value|was|is|of|exit)\b)*[\s:=(\[]{0,3}(?P<code>-?\d{1,3})\W{0,3}$",
    re.IGNORECASE,
)


@dataclass
class NodeLog:
    """What one log says."""

    name: str
    file: str
    speeches: dict[Speaker, Speech] = field(default_factory=dict)
    agent: AgentWords = field(default_factory=AgentWords)
    native: deque[Hit] = field(default_factory=lambda: deque(maxlen=MOST_HITS))
    """Hits in lines of torch's own C++ code that no rank can be told for."""
    marked: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    """Ranks that are spoken of as ranks here."""
    local_of: dict[int, int] = field(default_factory=dict)
    """Local ranks by rank, where a line names both."""
    task: int | None = None
    """The number that a scheduler gave to the one process that speaks here."""
    world_size: int | None = None
    exit_code: int | None = None
    """What a launcher wrote at its end; a signal is negative."""
    lines: int = 0

    @property
    def ranks(self) -> set[int]:
        """The ranks that surely speak here."""
        return {number for kind, number in self.speeches if kind == "rank"} | {one.rank for one in self.agent.claims}

    @property
    def teed(self) -> set[int]:
        """The local ranks that torchrun marked lines with."""
        return {number for kind, number in self.speeches if kind == "local" and number < MOST_LOCAL} & self.marked

    def speech(self, speaker: Speaker) -> Speech | None:
        """Give what somebody said."""
        return self.speeches.get(speaker)


def read_node_log(lines: Iterable[str], name: str, file: str = "", first: int = 1) -> NodeLog:
    """Read a log line by line; what is kept of it does not grow with its length."""
    reader = NodeLogReader(name, file)
    reader.feed(lines, first)
    return reader.end()


class NodeLogReader:
    """Takes the lines of a log, or the parts of it that matter."""

    def __init__(self, name: str, file: str = "") -> None:
        """Begin with an empty log."""
        self.log = NodeLog(name=name, file=file)
        self._stamped: bool | None = None
        self._last: deque[str] = deque(maxlen=EXIT_LINES)

    def feed(self, lines: Iterable[str], first: int) -> None:
        """Take lines; `first` is the number of the first one."""
        block: list[str] = []
        number = first
        for line in lines:
            block.append(line)
            if len(block) == BLOCK:
                self._feed_block(block, number)
                number += BLOCK
                block = []
        if block:
            self._feed_block(block, number)

    def end(self) -> NodeLog:
        """Give what was found."""
        for speech in self.log.speeches.values():
            speech.end()
        for line in self._last:
            if found := _EXIT.search(line[-LAST_CHARS:]):
                self.log.exit_code = int(found["code"])
        return self.log

    def _feed_block(self, block: list[str], first: int) -> None:
        texts = [line.rstrip("\r\n") for line in block]
        if self._stamped is None:
            said = [text for text in texts if text.strip()]
            self._stamped = bool(said) and sum(1 for text in said if _STAMP.match(text)) * 10 >= len(said) * 9
        if self._stamped:
            texts = [_STAMP.sub("", text) for text in texts]
        spoken = [split_speaker(text) for text in texts]
        find = build_finder([words for _, words, _ in spoken])
        for number, text in enumerate(texts, start=first):
            self.log.lines = number
            if text and not text.isspace():
                self._last.append(text)
                speaker, words, sure = spoken[number - first]
                self._take(number, text, (speaker, words, sure), find(number, words))

    def _take_mark(self, text: str) -> None:
        if teed := _TEED.match(text):
            self.log.marked.add(int(teed["local"]))
            if teed["rank"]:
                self.log.local_of[int(teed["rank"])] = int(teed["local"])

    def _take(self, number: int, text: str, spoken: tuple[Speaker, str, bool], hit: Hit | None) -> None:
        log = self.log
        if "ank" in text and len(log.seen) < MOST_SPEAKERS:
            log.seen.update(int(found) for found in _SEEN.findall(text)[:16])
        if "orld" in text.lower() and (world := _WORLD.search(text)):
            log.world_size = int(world["size"])
        speaker, words, sure = spoken
        if text != words:
            self._take_mark(text)
        if speaker[0] in ("anyone", "agent") and log.agent.feed(number, words):
            speaker = AGENT
            if hit is None or hit.cause.role == "noise":
                return
        if speaker is ANYONE and NATIVE_LINE.match(words):
            if hit is not None:
                log.native.append(hit)
            return
        speech = log.speeches.get(speaker)
        if speech is None:
            if len(log.speeches) >= MOST_SPEAKERS:
                return
            speech = log.speeches[speaker] = Speech()
        speech.feed(number, words, hit, sure=sure)


def split_speaker(text: str) -> tuple[Speaker, str, bool]:
    """Tell who speaks in a line, the line without the mark, and whether that is sure: a script can write any mark."""
    speaker: Speaker = ANYONE
    sure = False
    for _ in range(2):  # ours before torch's
        found = _PREFIX.match(text) if text.startswith("[") else None
        if found is None:
            break
        if found["agent"]:
            return AGENT, text[found.end() :], True
        sure = sure or not found["script"]
        text = text[found.end() :]
        rank = found["rank"] or found["ours"] or found["script"] or found["mpi"]
        speaker = ("rank", int(rank)) if rank else ("local", int(found["local"]))
    if speaker is ANYONE and "NCCL" in text:
        if named := _NCCL_RANK.search(text):
            return ("rank", int(named["rank"])), text, True
        if placed := _NCCL_LOCAL.match(text):
            return ("local", int(placed["local"])), text, False
    elif speaker is ANYONE and AGENT_LINE.match(text):
        return AGENT, text, True
    return speaker, text, sure


def last_words(text: str) -> Speech:
    """Read what one process wrote: its last exceptions, and the hits that belong to them."""
    speech = Speech()
    lines = text.split("\n")
    for start in range(0, len(lines), BLOCK):
        block = lines[start : start + BLOCK]
        find = build_finder(block)
        for number, line in enumerate(block, start=start + 1):
            words = split_speaker(line.rstrip("\r"))[1]
            speech.feed(number, words, find(number, words))
    speech.end()
    # What was followed by so much more was survived.
    while speech.utterances and speech.last - speech.utterances[-1].end > PATIENCE:
        speech.utterances.pop()
    return speech
