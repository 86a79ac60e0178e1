"""How fast every GPU, or the processors of every node, are under load, and what held them back."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class MemberFacts(FactGroup):
    """One GPU, or the processors of one node."""

    node_rank: int
    local_rank: int
    index: int | None = None
    """Of the GPU, as the driver counts; None on processors."""
    trouble: str = ""
    spared: str = ""
    """Why nothing was put on it."""
    model: str = ""
    threads: int | None = None
    tflops: float | None = None
    """10^12 operations a second: bf16 on a GPU, fp32 on processors."""
    memory_gbs: float | None = None
    """10^9 bytes read and written a second."""
    to_device_gbs: float | None = None
    from_device_gbs: float | None = None
    repeats: int = 0
    different: int = 0
    """Repeats of the same product whose bits were not the first one's."""
    digest: str = ""
    """Of the first product of a GPU: equal ones give equal bits."""


class GpuGauge(FactGroup):
    """What a GPU showed under the load: the middle clock, and the highest of the rest."""

    index: int
    clock_mhz: int | None = None
    clock_max_mhz: int | None = None
    temperature_c: int | None = None
    power_w: int | None = None
    throttle: tuple[str, ...] = ()


class ForeignProcess(FactGroup):
    """A process of somebody else that took processor time meanwhile."""

    pid: int
    owner: str = ""
    command: str = ""
    cores: float = 0.0


class Gauges(FactGroup):
    """What one node showed under one kind of load."""

    node_rank: int
    load: str = ""
    """compute, memory or host."""
    trouble: str = ""
    took_s: float = 0.0
    busy_share: float | None = None
    steal_share: float | None = None
    held_s: float | None = None
    """For how long a control group held its processes back."""
    quota_cores: float | None = None
    cores: int | None = None
    """Of the whole machine, which the busy share is of."""
    ours_cores: float | None = None
    """What the load itself took."""
    clock_mhz: int | None = None
    """The middle clock of the processors."""
    clock_max_mhz: int | None = None
    hot_events: int = 0
    """How often processors slowed down because of heat."""
    foreign: tuple[ForeignProcess, ...] = ()
    gpus: tuple[GpuGauge, ...] = ()


class LoadFacts(FactGroup):
    """Everything of level 2."""

    not_run: str = ""
    """Why nothing was tried."""
    device: str = "cpu"
    members: tuple[MemberFacts, ...] = ()
    gauges: tuple[Gauges, ...] = ()
