"""The machine under the session: processors, mounts, kernel log, stuck processes, switches of the kernel."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class MountFacts(FactGroup):
    """The mount that holds a place of the run."""

    role: str
    path: str = ""
    mount: str = ""
    read_only: bool = False
    noexec: bool = False


class StuckProcess(FactGroup):
    """A process that waits inside the kernel and cannot be killed."""

    pid: int
    command: str = ""
    waits_in: str = ""


class BusyProcess(FactGroup):
    """A process that keeps processors busy."""

    pid: int
    owner: str = ""
    command: str = ""
    cores: float = 0.0


class KernelTrouble(FactGroup):
    """One kind of trouble that the kernel has told of."""

    kind: str
    """memory, disk, file system, network file system, hardware, stall, or denied."""
    age_s: float | None = None
    text: str = ""
    count: int = 1


class SystemFacts(FactGroup):
    """The machine under the session: processors, mounts, kernel log, stuck processes, switches of the kernel."""

    load1: float | None = None
    load5: float | None = None
    busy: tuple[BusyProcess, ...] | None = None
    """Who used most of the processors a moment ago; looked at where there is load."""
    uptime_s: float | None = None
    cores: int | None = None
    mounts: tuple[MountFacts, ...] = ()
    stuck: tuple[StuckProcess, ...] | None = None
    troubles: tuple[KernelTrouble, ...] | None = None
    selinux: str = ""
    """enforcing, permissive, or nothing."""
    reboot: str = ""
    """What waits for a reboot."""
    overcommit: int | None = None
    swap_used_gib: float | None = None
    numa_balancing: int | None = None
    governor: str = ""
    scaling_driver: str = ""
    stale_shm: tuple[str, ...] | None = None
    """Files of ours in /dev/shm that no process holds."""
    stale_shm_gib: float = 0.0
