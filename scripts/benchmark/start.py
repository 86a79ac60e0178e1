"""Part b: from the command to the first line of the user's script on all ranks."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .bench import MANY, Bench, Contender, Must, Part
from .nodes import Nodes, open_nodes, pick_port
from .timing import BenchError
from .tools import CLUSH_RANK, CURVE, PDSH_RANK, aorta, clush, deepspeed, pdsh, torchrun, torchrunx

HERE = Path(__file__).resolve().parent
REAL, FAKE = "PyTorch's torchrun", "a stand-in for torchrun that imports no PyTorch"
REAL_AT_MOST = 8
BARE, FULL = "aorta-launch --no-check --no-push", "aorta-launch with check and push"
HAND, DEEPSPEED, TORCHRUNX = "clush … torchrun", "deepspeed, pdsh", "torchrunx"
Words = Callable[[list[str]], list[str]]


class Stage:
    """The user's script on the launch host and in the shared folder, and the folders in which its ranks tell the time."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes, self._numbers = nodes, itertools.count()
        for folder in (nodes.project, nodes.shared):
            shutil.copy(HERE / "first_line.py", folder)
        shutil.copy(HERE / "torchrunx_start.py", nodes.shared)

    def build(self, tool: str, command: str, words: Words, *, shared: bool = True, timeout_s: float = 150) -> Contender:
        """A launcher; `words` gets the script with its own words, and gives the launcher's."""

        def measure() -> Mapping[str, float]:
            folder = self.nodes.shared / f"first_{next(self._numbers)}"
            folder.mkdir()
            typed = words(["first_line.py", str(folder)])
            ran = self.nodes.run(typed, cwd=self.nodes.shared if shared else self.nodes.project, timeout_s=timeout_s)
            ran.check()
            return {
                "seconds": read_first_lines(folder, self.nodes.count) - ran.began,
                "end_s": ran.seconds,
                "cpu_s": ran.cpu_s,
            }

        return Contender(tool=tool, command=command, measure=measure)


def read_first_lines(folder: Path, ranks: int) -> float:
    """The moment in which the last rank was there."""
    times = [float(path.read_text()) for path in folder.iterdir()]
    if len(times) != ranks:
        raise BenchError(f"{len(times)} of {ranks} ranks came to their first line")
    return max(times)


def measure(bench: Bench, count: int) -> None:
    """Start with the stand-in on any number of nodes, with PyTorch's own torchrun where memory and cores allow."""
    with open_nodes(count) as nodes:
        stage = Stage(nodes)
        if count <= REAL_AT_MOST:
            both = [*list_ours(stage, real=True), *list_by_hand(stage, nodes.python), *list_launchers(stage)]
            bench.compare("start", REAL, count, both, warm_up=True)
        fake = [*list_ours(stage, real=False), *list_by_hand(stage, nodes.fake_python)]
        bench.compare("start", FAKE, count, fake, warm_up=count < MANY)


def list_ours(stage: Stage, *, real: bool) -> list[Contender]:
    """aorta-launch with nothing done before the start, and with everything."""
    nodes = stage.nodes
    node_list = nodes.write_list("real.txt" if real else "stand_in.txt", real=real)
    flags: Sequence[str | Path] = ("--nodes", node_list, "--fanout", str(nodes.count))
    bare = ("--no-check", "--no-push", "--workdir", nodes.shared)
    return [
        stage.build(
            BARE,
            "aorta-launch --nodes nodes.txt --no-check --no-push --workdir … first_line.py …",
            lambda script: aorta(*flags, *bare, *script),
        ),
        stage.build(
            FULL,
            "aorta-launch --nodes nodes.txt first_line.py …",
            lambda script: aorta(*flags, *script),
            shared=False,
        ),
    ]


def list_by_hand(stage: Stage, python: str) -> list[Contender]:
    """The agents started by a fan-out tool."""
    nodes, count = stage.nodes, stage.nodes.count
    clush_typed, pdsh_typed = (
        f"'cd … && python -m torch.distributed.run --nnodes {count} --node-rank {rank} --nproc-per-node 1 "
        "--master-addr … --master-port … first_line.py …'"
        for rank in (CLUSH_RANK, PDSH_RANK)
    )
    return [
        stage.build(
            HAND,
            f"clush -S -f {count} -w … {clush_typed}",
            lambda script: clush(nodes, torchrun(nodes, python, CLUSH_RANK, script, pick_port())),
        ),
        stage.build(
            f"{HAND}, curve25519",
            f"clush -S -f {count} -o '-o {CURVE}' -w … {clush_typed}",
            lambda script: clush(nodes, torchrun(nodes, python, CLUSH_RANK, script, pick_port()), curve=True),
        ),
        stage.build(
            "pdsh … torchrun",
            f"pdsh -S -R ssh -f {count} -w … {pdsh_typed}",
            lambda script: pdsh(nodes, torchrun(nodes, python, PDSH_RANK, script, pick_port())),
        ),
    ]


def list_launchers(stage: Stage) -> list[Contender]:
    """Other launchers; they need PyTorch on the launch host too."""
    nodes = stage.nodes
    return [
        stage.build(
            DEEPSPEED,
            "deepspeed --hostfile hostfile --launcher pdsh --no_ssh_check --no_local_rank --master_addr … --master_port … first_line.py …",
            lambda script: deepspeed(nodes, script, pick_port()),
        ),
        stage.build(
            TORCHRUNX,
            "torchrunx.Launcher(hostnames=[…], workers_per_host=1, backend=None).run(run_script, …)",
            lambda script: torchrunx(nodes, script),
        ),
    ]


def build_musts() -> tuple[Must, ...]:
    """Against everyone, at eight nodes."""
    texts = {
        HAND: ("first line on 8 real torchrun nodes against clush by hand", 1.1),
        DEEPSPEED: ("… against DeepSpeed's launcher with pdsh", 1),
        TORCHRUNX: ("… against torchrunx", 1),
    }
    return tuple(
        Must(says=says, case=REAL, nodes=REAL_AT_MOST, tool=BARE, against=tool, at_most=most)
        for tool, (says, most) in texts.items()
    )


PART = Part(
    word="start",
    title="From the command to the first line of the script on all ranks",
    about=(
        "The script's first line tells the time; counted is the last rank's. One rank a node. A launch in full checks the "
        "nodes and pushes the code, which the others do not do: they find the script in a folder that all nodes share. "
        "end_s is when the command itself was through. The ratios are those of the launch without check and push."
    ),
    sizes=(2, 4, 8, 32, 64, 128),
    measure=measure,
    musts=build_musts(),
)
