"""The values that the rooms hand to each other: frozen, without behaviour beyond what follows from their fields."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

from orchestrator.light_dataclass import dataclass


class Exit(IntEnum):
    """The exit codes, the same in every verb."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_READY = 3
    NODE_LOST = 4
    TIME_LIMIT = 124
    INTERRUPTED = 130
    STOPPED = 143


@dataclass(frozen=True, kw_only=True)
class Node:
    """One line of the node list; its place in the list is its node rank."""

    name: str
    """As the list writes it, unique in the list; what people read."""
    host: str
    """What SSH dials: a name, an address or an alias of ssh_config; no brackets."""
    where: str = ""
    """file:line"""
    user: str | None = None
    port: int | None = None
    key: str | None = None
    jump: str | None = None
    addr: str | None = None
    """Data address, when it differs from the one that SSH reaches."""
    iface: str | None = None
    slots: int | None = None
    gpus: tuple[str, ...] = ()
    """Indices or UUIDs."""
    python: str | None = None
    local: bool | None = None
    """True or False as the list says; None: found out by address."""
    env: tuple[tuple[str, str], ...] = ()


Agent = Literal["torchrun", "accelerate", "command"]
Status = Literal["ok", "warn", "fail", "skip", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check says of one node, or of all of them together (node_rank None)."""

    check: str
    status: Status
    node_rank: int | None = None
    detail: str = ""
    remedy: str = ""
    why: str = ""
    """What would happen at the launch."""
    reason: str = ""
    """Why the config judges it otherwise than the check does."""


@dataclass(frozen=True, kw_only=True)
class EnvValue:
    """One variable of the ranks' environment and who set it."""

    name: str
    value: str
    origin: str
    """e.g. "--env", "config launch.env", "node list node_ip_list.txt:3", "aorta-launch"."""
    secret: bool = False


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """Everything that one node is told."""

    node_rank: int
    node: Node
    processes: int
    first_rank: int
    address: str
    """Numeric data address of this node."""
    interface: str
    python: str
    workdir: str
    run_folder: str
    """Absolute path on the node."""
    argv: tuple[str, ...]
    """The agent's words, first the program."""
    env: tuple[EnvValue, ...]
    files: tuple[tuple[str, str], ...] = ()
    """What the agent reads beside the config: name in the run folder, and text."""
    gpu_memory: tuple[tuple[str, int | None], ...] = ()
    """UUID or index of each GPU that the run uses, and the MiB in use before it that belonged to no process."""

    @property
    def ranks(self) -> range:
        """The global ranks of this node."""
        return range(self.first_rank, self.first_rank + self.processes)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One attempt of a run, complete before anything is started."""

    run_id: str
    attempt: int
    project: str
    nodes: tuple[NodePlan, ...]
    master_addr: str
    master_port: int
    script: tuple[str, ...]
    """The words after the agent's own: the script or -m module, and its arguments; of a command all, as given."""
    grace_s: float
    failure_grace_s: float
    agent: Agent = "torchrun"

    @property
    def world_size(self) -> int:
        """Processes over all nodes."""
        return sum(node.processes for node in self.nodes)

    @property
    def agents_are_commands(self) -> bool:
        """Nothing is sure of what the agents start: a command may be a rank itself, and accelerate's only one is bare."""
        return self.agent == "command" or (self.agent == "accelerate" and self.world_size == 1)


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """How one rank ended: its own status, on the clock of the launch host."""

    node_rank: int
    rank: int
    local_rank: int
    time: float
    """Seconds since the epoch, corrected by the node's clock offset."""
    code: int | None = None
    """None: not known."""
    signal: int | None = None
    after_stop: bool = False
    """The stop order had been given to its node before."""
    disk_full: bool = False
    """The disk of its run folder took nothing more, so its last words may be missing."""
    pid: int | None = None
    oom_kills: int = 0
    """Processes of its memory cgroup that the kernel killed while it ran."""

    @property
    def clean(self) -> bool:
        """It ended with status 0."""
        return self.code == 0 and self.signal is None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A place in the experiment directory that shows what a verdict says."""

    file: str
    line: int | None = None


@dataclass(frozen=True, kw_only=True)
class FirstFailure:
    """The failure that the others follow from."""

    node: str
    node_rank: int
    rank: int | None = None
    local_rank: int | None = None
    time: float | None = None
    exit_code: int | None = None
    signal: str | None = None
    error: str = ""
    """The exception line, or the last line that it wrote."""
    traceback: str = ""
    """Deepest frame: file:line in function."""
    frames: tuple[str, ...] = ()
    """All frames outside of libraries, outermost first."""


UNFINISHED = ("prepared", "pushing", "starting", "running", "stopping")
"""States of a run that is not over, in the order in which it goes through them; of a node all but pushing."""
STOPPED = ("timed out", "killed", "stopped")
"""States of a node that was told to stop."""
ENDED = ("failed", *STOPPED, "succeeded")
"""States of a node that has said its last word; the first one that a node is in is the run's."""
RunState = Literal["succeeded", "failed", "killed", "timed out", "lost"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The one true end of a run."""

    state: RunState
    exit_code: int
    cause: str
    first_failure: FirstFailure | None = None
    stopped: tuple[int, ...] = ()
    """Global ranks that were stopped because of it."""
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""
    duration_s: float = 0.0
    survivors: tuple[tuple[str, int, str], ...] = ()
    """node, pid, command: what outlived the stop."""
    unasked: tuple[str, ...] = ()
    """Nodes that could not be asked at the end; what is left there is not known."""
    gpus_held: tuple[tuple[str, int, int], ...] = ()
    """node, GPU, MiB that it still holds beyond what it held before the run."""
    gpus_unchecked: tuple[tuple[str, str], ...] = ()
    """node, why its GPUs' memory could not be compared."""
    family: str = ""
    """The class of the cause."""
    cause_id: str = ""
    """The entry of the catalogue of causes, where one decided."""
    rule: str = ""
    """How it was found: the rung of the ladder that decided."""
    reason: str = ""
    """The same as a sentence."""
    confidence: Literal["certain", "likely", "unknown"] = "unknown"
    ranks: tuple[int, ...] = ()
    """All ranks that failed by themselves of the same cause, where there are several."""
    last_lines: tuple[str, ...] = ()
    """What the culprit wrote last, where nobody knows the cause."""


@dataclass(frozen=True, kw_only=True)
class Notified:
    """Which ranks of one node took a signal."""

    node_rank: int
    node: str
    ranks: tuple[int, ...] = ()
    error: str = ""
    """Why the node could not be asked."""


@dataclass(frozen=True, kw_only=True)
class StopReport:
    """What a stop order did on one node."""

    node_rank: int
    node: str
    found: bool = True
    """Something of the run was there."""
    stopped: int = 0
    """Processes that are gone because of it, those that needed KILL included."""
    killed: int = 0
    survivors: tuple[tuple[int, str], ...] = ()
    """pid, command."""
    gpus_held: tuple[tuple[int, int], ...] | None = None
    """GPU, MiB that it still holds beyond what it held before the run; None: nothing was compared."""
    gpus_why: str = ""
    """Why the memory of its GPUs could not be compared."""
    error: str = ""
    """Why the node could not be asked; what is left there is not known."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What a command wrote to one of its streams, as far as it is kept."""

    data: bytes = b""
    cut_at: int = 0
    """Where in the data something is left out."""
    left_out: int = 0
    """Bytes."""


@dataclass(frozen=True, kw_only=True)
class Executed:
    """How one command ended on one node."""

    node: str
    code: int | None = None
    signal: int | None = None
    ended: str = ""
    """Why it was ended before its time; empty when it ended by itself."""
    not_started: str = ""
    """Why there was nothing to end."""
    stdout: Stream = Stream()
    stderr: Stream = Stream()
    left_behind: int = 0
    """Processes that it left in the background; they were ended as well."""
    survivors: tuple[tuple[int, str], ...] = ()
    """pid, command: what could not be ended."""
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """It ended by itself with exit code 0."""
        return self.code == 0 and not self.ended and not self.survivors
