"""What real collectives over the nodes gave."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class ProcessFacts(FactGroup):
    """One process and its device, before any collective."""

    node_rank: int
    local_rank: int
    trouble: str = ""
    import_s: float | None = None
    devices: int = 0
    """GPUs that torch sees."""
    model: str = ""
    gloo: bool = False
    nccl: bool = False


class ReduceRow(FactGroup):
    """all_reduce of one size: seconds of one, the slowest rank's."""

    bytes: int
    seconds: float
    number: int = 1
    """Repeats that the time is the mean of."""


class WorldFacts(FactGroup):
    """One world: all ranks together, or those of one node."""

    node_rank: int | None = None
    """The node whose ranks it holds; None: all."""
    size: int
    formed: bool = False
    troubles: tuple[tuple[int, str], ...] = ()
    """Node rank and what one of its processes said."""
    at_first: tuple[tuple[int, str], ...] = ()
    """The same of a first try that failed, where a second one with more time did not."""
    wrong: tuple[tuple[int, str], ...] = ()
    """Node rank and which sum was wrong there."""
    rows: tuple[ReduceRow, ...] = ()


class PairFacts(FactGroup):
    """The way between two nodes, both directions."""

    first: int
    second: int
    trouble: str = ""
    latency_ms: float | None = None
    """Half of a round trip."""
    there_mbs: float | None = None
    """From the first to the second, 10^6 bytes a second."""
    back_mbs: float | None = None


class CollectivesFacts(FactGroup):
    """Everything of level 1."""

    not_run: str = ""
    """Why nothing was tried."""
    device: str = "cpu"
    addresses: tuple[str, ...] = ()
    """The address of each node that the collectives used."""
    processes: tuple[ProcessFacts, ...] = ()
    alone: tuple[WorldFacts, ...] = ()
    world: WorldFacts | None = None
    pairs: tuple[PairFacts, ...] = ()
    largest: int | None = None
    """So many nodes, from the first, form a world, when all do not although each pair does."""
    transports: tuple[tuple[int, str], ...] = ()
    """Node rank and the network that NCCL has chosen there."""
