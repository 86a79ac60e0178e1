"""All that is known of one run that ended badly, whoever started it, in the form in which it is judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from orchestrator.diagnosis.cause import Family, Hit
from orchestrator.diagnosis.logs.tracebacks import Failure
from orchestrator.light_dataclass import dataclass
from orchestrator.values import Evidence

Confidence = Literal["certain", "likely", "unknown"]


@dataclass(frozen=True, kw_only=True)
class RankStory:
    """What is known of one rank."""

    rank: int
    node_rank: int
    local_rank: int | None = None
    pid: int | None = None
    code: int | None = None
    signal: int | None = None
    time: float | None = None
    """Of its end, seconds since the epoch on one clock for all nodes."""
    exact: bool = False
    """The time is our own record; otherwise it is torchrun's, to the second, when the agent noticed."""
    stopped: bool = False
    """It was told to end by us or by its agent before it ended: how it ended tells nothing."""
    late: bool = False
    """It ended by itself, but only after we had told everyone to end: it may have broken before, or because of that."""
    runs: bool = False
    """It had not ended when this was written down."""
    failure: Failure | None = None
    """Its last exception; without one its last line."""
    hits: tuple[Hit, ...] = ()
    """What the catalogue knows of its words, in their order."""
    oom_kills: int = 0
    """How many processes of its memory cgroup the kernel killed while it ran."""
    file: str = ""
    """Where its words stand, relative to the folder that is judged."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One entry of torchrun's own list of failures on one node; its root cause is the agent's view alone."""

    rank: int
    local_rank: int
    code: int | None
    signal: int | None
    pid: int | None
    time: float | None
    root: bool


@dataclass(frozen=True, kw_only=True)
class NodeStory:
    """What is known of one node."""

    node_rank: int
    name: str
    ranks: tuple[int, ...] = ()
    """Planned, or seen in its words."""
    agent_code: int | None = None
    agent_signal: int | None = None
    agent_time: float | None = None
    closed: bool = True
    """Its log has an end: a report of the agent's, or our own record of it; False: it just stops."""
    heard: bool = True
    """There is a word of it at all."""
    lost: str = ""
    """Why it counts as lost, where we watched it."""
    claims: tuple[Claim, ...] = ()
    hits: tuple[Hit, ...] = ()
    """What the catalogue knows of the words of its agent and of lines that no rank can be told for."""
    kernel: tuple[Hit, ...] = ()
    """What it knows of the words of its kernel."""
    kernel_file: str = ""
    """Where these stand."""
    file: str = ""


@dataclass(frozen=True, kw_only=True)
class Odd:
    """The ranks that do something else than all the others, as their stacks or flight recorders tell."""

    family: Literal["HANG", "MISMATCH"]
    ranks: tuple[int, ...]
    """Empty: all do the same."""
    rule: Literal["stacks", "flight recorder", "NCCL RAS"]
    confidence: Confidence
    cause: str
    """One line: "3 ranks wait in all_reduce, rank 2 is in fetch_remote_shard"."""
    where: str = ""
    """Where the first odd rank is: file:line in function."""
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run to judge."""

    nodes: Sequence[NodeStory]
    ranks: Sequence[RankStory]
    world_size: int | None = None
    """Planned, or told by the ranks."""
    node_count: int | None = None
    """Planned; None: the nodes that there are words of may not be all."""
    watched: bool = False
    """We started and watched it: ends, times and who was stopped are our own records."""
    odd: Odd | None = None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the evidence says."""

    family: Family
    rule: str
    """The rung of the ladder that decided: "kernel", "cause", "silence", ..."""
    confidence: Confidence
    cause: str
    """The headline, one line."""
    cause_id: str = ""
    """The entry of the catalogue, where one decided."""
    rank: int | None = None
    """None: no rank in particular, a node or all alike."""
    node_rank: int | None = None
    """None: no node in particular."""
    ranks: tuple[int, ...] = ()
    """All ranks that failed by themselves of the same cause."""
    reason: str = ""
    """How it was found, one sentence: "5 of 6 ranks waited in vain; rank 4 never complained"."""
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""
    last_lines: tuple[str, ...] = ()
    """What the culprit wrote last, where the catalogue does not know it."""
