"""The answer of the node probe as frozen values; what a node could not tell is named under `unknown`, never guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from orchestrator.facts.answer import Answer
from orchestrator.facts.gpus import Gpu, GpuProcess, visible_gpus
from orchestrator.facts.group import FactGroup, parse_group
from orchestrator.facts.health import HealthFacts
from orchestrator.facts.network import NetworkFacts
from orchestrator.facts.project import ProjectFacts
from orchestrator.facts.rdma import RdmaFacts
from orchestrator.facts.session import SessionFacts
from orchestrator.facts.system import SystemFacts
from orchestrator.light_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Address:
    """One address of the node; link-local ones carry no scope."""

    interface: str
    address: str
    mtu: int | None = None
    speed_mbit: int | None = None


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A process that carries the id of an earlier run; supervised while that run still lives."""

    run_id: str
    pid: int
    command: str
    supervised: bool = False


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What one node said of itself."""

    node_rank: int
    hostname: str = ""
    user: str = ""
    home: str = ""
    home_writable: bool | None = None
    boot_id: str = ""
    machine_id: str = ""
    network_id: str = ""
    """Network namespace: two nodes that share it and the boot id are one machine."""
    kernel: str = ""
    os: str = ""
    python: str = ""
    """Absolute path of the run's interpreter; empty when there is none."""
    python_version: str = ""
    python_origin: str = ""
    python_trouble: str = ""
    """Why there is none."""
    torch_version: str | None = None
    torch_cuda: str | None = None
    torch_hip: str | None = None
    torch_folder: str = ""
    torch_bytecode: bool | None = None
    """False: every process compiles torch anew, seconds each."""
    nccl_version: str | None = None
    numpy_version: str | None = None
    torchrun_flags: tuple[str, ...] = ()
    gpu_kind: str = ""
    """nvidia, amd or nothing."""
    gpus: tuple[Gpu, ...] = ()
    """Those that the session may see."""
    hidden_gpus: int = 0
    """Those that CUDA_VISIBLE_DEVICES and its like hide."""
    gpu_processes: tuple[GpuProcess, ...] = ()
    driver_version: str = ""
    visible_devices: Mapping[str, str] | None = None
    addresses: tuple[Address, ...] = ()
    ssh_server_address: str = ""
    routes: Mapping[str, str] | None = None
    port_range: tuple[int, ...] = ()
    hostname_addresses: tuple[str, ...] = ()
    hostname_s: float | None = None
    """How long it took to look the node's own name up."""
    cores: int = 1
    memory_gib: float | None = None
    memory_free_gib: float | None = None
    memory_limit_gib: float | None = None
    shm_gib: float | None = None
    disk_free_gib: float | None = None
    disk_path: str = ""
    inodes_free: int | None = None
    limits: Mapping[str, int] | None = None
    """nofile, nofile_hard, memlock (bytes), nproc; -1 is unlimited."""
    rsync: str = ""
    leftovers: tuple[Leftover, ...] = ()
    clock_offset_s: float | None = None
    """The node's clock minus the launch host's."""
    clock_error_s: float | None = None
    answer_s: float | None = None
    """From the question to the answer, by the launch host's clock."""
    control_python: str = ""
    control_version: str = ""
    session: SessionFacts = field(default_factory=SessionFacts)
    system: SystemFacts = field(default_factory=SystemFacts)
    health: HealthFacts = field(default_factory=HealthFacts)
    rdma: RdmaFacts = field(default_factory=RdmaFacts)
    project: ProjectFacts = field(default_factory=ProjectFacts)
    network: NetworkFacts = field(default_factory=NetworkFacts)
    unknown: tuple[tuple[str, str], ...] = ()
    """Group of facts, and why it is not known."""

    def why_unknown(self, group: str) -> str:
        """Say why a group of facts is missing; empty when it is there."""
        return dict(self.unknown).get(group, "")

    @property
    def machine(self) -> tuple[str, str]:
        """What tells one machine from another: a container shares the boot with its machine, not the network."""
        return self.boot_id, self.network_id

    def interface_of(self, address: str) -> str:
        """Name the interface that holds an address; empty when none does."""
        exact = [entry.interface for entry in self.addresses if entry.address == address]
        # All of 127/8 is the loopback's, although it lists one address.
        loopback = [entry.interface for entry in self.addresses if entry.address.startswith("127.")]
        return next(iter(exact or (loopback if address.startswith("127.") else [])), "")


def parse_facts(
    node_rank: int,
    answer: Mapping[str, Any],
    clock: tuple[float, float] | None = None,
    where: str = "",
) -> Facts:
    """Turn the probe's answer into facts; what is missing stays unknown, what has the wrong type is an error."""
    raw = Answer(answer.get("facts", {}), where or f"node {node_rank}")
    unknown = Answer(answer, raw.where).map("unknown", str)
    version_py = raw.text("torch_version_py")
    everything = tuple(_parse_gpu(entry) for entry in raw.entries("gpus"))
    visible = raw.map("visible_devices", str)
    gpus = visible_gpus(everything, visible)
    facts = Facts(
        node_rank=node_rank,
        torch_version=version_of(version_py, "__version__") or raw.optional("torch_metadata", str),
        torch_cuda=version_of(version_py, "cuda"),
        torch_hip=version_of(version_py, "hip"),
        nccl_version=raw.optional("nccl_metadata", str),
        torchrun_flags=raw.texts("torchrun_flags"),
        gpus=gpus,
        hidden_gpus=len(everything) - len(gpus),
        gpu_processes=tuple(_parse_process(entry) for entry in raw.entries("gpu_processes")),
        visible_devices=visible,
        addresses=tuple(_parse_address(entry) for entry in raw.entries("addresses")),
        routes=raw.map("routes", str),
        port_range=raw.numbers("port_range"),
        hostname_addresses=raw.texts("hostname_addresses"),
        cores=raw.optional("cores", int) or 1,
        limits=raw.map("limits", int),
        leftovers=tuple(_parse_leftover(entry) for entry in raw.entries("leftovers")),
        clock_offset_s=None if clock is None else clock[0],
        clock_error_s=None if clock is None else clock[1],
        unknown=tuple(sorted(unknown.items())),
    )
    texts = {name: raw.text(name) for name in _TEXTS}
    groups = {name: parse_group(kind, raw.raw.get(name), raw.where) for name, kind in _GROUPS.items()}
    figures = {name: raw.optional(name, float) for name in _FIGURES}
    return replace(
        facts,
        **texts,  # type: ignore[arg-type] # the names are those of the text fields
        **figures,  # type: ignore[arg-type] # and of the figures
        home_writable=raw.optional("home_writable", bool),
        torch_bytecode=raw.optional("torch_bytecode", bool),
        numpy_version=raw.optional("numpy_version", str),
        inodes_free=raw.optional("inodes_free", int),
        **groups,  # type: ignore[arg-type] # and of the groups
    )


_GROUPS: Mapping[str, type[FactGroup]] = {
    "session": SessionFacts,
    "system": SystemFacts,
    "health": HealthFacts,
    "rdma": RdmaFacts,
    "project": ProjectFacts,
    "network": NetworkFacts,
}
_TEXTS = (
    "hostname",
    "user",
    "home",
    "boot_id",
    "machine_id",
    "network_id",
    "kernel",
    "os",
    "python",
    "python_version",
    "python_origin",
    "python_trouble",
    "torch_folder",
    "gpu_kind",
    "driver_version",
    "ssh_server_address",
    "disk_path",
    "rsync",
    "control_python",
    "control_version",
)
_FIGURES = ("hostname_s", "memory_gib", "memory_free_gib", "memory_limit_gib", "shm_gib", "disk_free_gib")


def _parse_gpu(entry: Answer) -> Gpu:
    return Gpu(
        index=entry.optional("index", int) or 0,
        uuid=entry.text("uuid"),
        model=entry.text("model"),
        memory_total_mib=entry.optional("memory_total_mib", int),
        memory_used_mib=entry.optional("memory_used_mib", int),
    )


def _parse_process(entry: Answer) -> GpuProcess:
    return GpuProcess(
        pid=entry.optional("pid", int) or 0,
        uuid=entry.text("uuid"),
        owner=entry.text("owner"),
        command=entry.text("command"),
        used_mib=entry.optional("used_mib", int),
    )


def _parse_address(entry: Answer) -> Address:
    return Address(
        interface=entry.text("interface"),
        address=entry.text("address"),
        mtu=entry.optional("mtu", int),
        speed_mbit=entry.optional("speed_mbit", int),
    )


def _parse_leftover(entry: Answer) -> Leftover:
    return Leftover(
        run_id=entry.text("run_id"),
        pid=entry.optional("pid", int) or 0,
        command=entry.text("command"),
        supervised=entry.optional("supervised", bool) or False,
    )


def version_of(version_py: str, name: str) -> str | None:
    """Find a version in the text of torch/version.py; None where it says None or nothing."""
    match = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", version_py, re.MULTILINE)
    return match.group(1) if match else None
