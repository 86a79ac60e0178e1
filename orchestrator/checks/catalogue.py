"""The list of all checks, in the order in which they are shown; a new one is one function and one line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from orchestrator.checks import across, hardware, machine, software
from orchestrator.checks.seen import Seen, skip
from orchestrator.errors import ConfigError
from orchestrator.facts import Facts
from orchestrator.settings import Settings
from orchestrator.values import Finding, Node

OneNode = Callable[[Node, Facts, Settings], Seen]
AllNodes = Callable[[Sequence[Node], Sequence[Facts], Settings], Sequence[Seen]]


@dataclass(frozen=True)
class Check:
    """One check: its name, what it looks at, and the function that judges one node or compares all."""

    name: str
    looks_at: str
    each: OneNode | None = None
    across: AllNodes | None = None

    @property
    def scope(self) -> str:
        """Node: judges each alone; cluster: compares them."""
        return "node" if self.each else "cluster"

    def judge(self, nodes: Sequence[Node], facts: Sequence[Facts], settings: Settings) -> list[Seen]:
        """Give what was seen on every node, in their order."""
        if self.each is not None:
            return [self.each(node, fact, settings) for node, fact in zip(nodes, facts, strict=True)]
        assert self.across is not None
        return list(self.across(nodes, facts, settings))


CATALOGUE: tuple[Check, ...] = (
    Check("same-machine", "boot id and network of every node", across=across.compare_machines),
    Check("home", "HOME on the node, where the run folder is made", machine.check_home),
    Check("python", "the interpreter that runs the script", software.check_python),
    Check("python-equal", "major and minor version of Python", across=across.compare_python),
    Check("torch", "torch in that interpreter, by its metadata", software.check_torch),
    Check("torch-equal", "version and build of torch", across=across.compare_torch),
    Check("cuda-equal", "the CUDA or ROCm that torch was built for", across=across.compare_cuda),
    Check("nccl-equal", "version of the NCCL package", across=across.compare_nccl),
    Check("torch-bytecode", "compiled modules of torch", software.check_torch_bytecode),
    Check("gpu-driver", "nvidia-smi, amd-smi or rocm-smi", hardware.check_gpu_driver),
    Check("gpu-count", "GPUs against the processes that were asked for", hardware.check_gpu_count),
    Check("gpu-model", "model of the GPUs", across=across.compare_gpu_model),
    Check("gpu-free", "processes and memory on the GPUs", hardware.check_gpu_free),
    Check("interface", "iface= of the node list", machine.check_interface),
    Check("hostname", "what the node's own name resolves to", machine.check_hostname),
    Check("clock", "clock against the median of all", across=across.compare_clock),
    Check("disk", "free space of the working directory and of ~/.aorta", machine.check_disk),
    Check("memory", "free memory, within the session's limit", machine.check_memory),
    Check("shm", "free space in /dev/shm", machine.check_shm),
    Check("limits", "open files of this very session", machine.check_limits),
    Check("rsync", "rsync on the PATH", software.check_rsync),
    Check("leftovers", "processes that carry the id of an earlier run", machine.check_leftovers),
)


def check_names_exist(names: Sequence[str], where: str) -> None:
    """Refuse the name of a check that there is not.

    Raises:
        ConfigError: it is unknown; the nearest one is named.
    """
    known = [check.name for check in CATALOGUE]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.4)
            meant = f", did you mean {near[0]}?" if near else ""
            raise ConfigError(f"there is no check {name}{meant}", where=where, remedy=f"checks: {', '.join(known)}")


def run_checks(nodes: Sequence[Node], facts: Sequence[Facts], settings: Settings) -> list[Finding]:
    """Let every check judge every node; what the user left out is a finding too."""
    findings: list[Finding] = []
    for check in CATALOGUE:
        if check.name in settings.checks_skip:
            seen = [skip("left out by --skip or launch.checks_skip")] * len(nodes)
        else:
            seen = check.judge(nodes, facts, settings)
        findings += [
            Finding(check=check.name, status=one.status, node_rank=fact.node_rank, detail=one.detail, remedy=one.remedy)
            for fact, one in zip(facts, seen, strict=True)
        ]
    return findings
