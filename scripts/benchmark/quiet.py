"""Part g: what it costs the launch host to hold N nodes on which nothing happens."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .bench import Bench, Contender, Must, Part
from .launches import Launch, wait_until
from .nodes import Nodes, open_nodes, pick_port
from .timing import Running, read_kib
from .tools import CLUSH_RANK, clush, torchrun
from .usage import list_tree, read_tree_cpu_s, read_tree_mib

HERE = Path(__file__).resolve().parent
CASE = "nothing happens"
OURS, HAND = "aorta-launch", "clush … torchrun"
SETTLE_S, WINDOW_S = 10.0, 30.0
_numbers = itertools.count()


def measure(bench: Bench, count: int) -> None:
    """Hold the nodes by one tool, then by the other; several windows each."""
    with open_nodes(count) as nodes:
        shutil.copy(HERE / "still.py", nodes.shared)
        with hold(nodes) as running:
            command = "aorta-launch --nodes nodes.txt … still.py"
            bench.compare("quiet", CASE, count, [build(OURS, command, running)])
        with hold_by_hand(nodes) as running:
            command = f"clush -S -f {count} -w … 'python -m torch.distributed.run … still.py'"
            bench.compare("quiet", CASE, count, [build(HAND, command, running)])


def build(tool: str, command: str, running: Running) -> Contender:
    """Look at a command that is at rest for a while."""

    def run() -> Mapping[str, float]:
        begin, cpu_s = time.monotonic(), read_tree_cpu_s(running.pid)
        time.sleep(WINDOW_S)
        cpu_s, took_s = read_tree_cpu_s(running.pid) - cpu_s, time.monotonic() - begin
        tree = list_tree(running.pid)
        return {
            "core_percent": 100 * cpu_s / took_s,
            "memory_mib": read_tree_mib(running.pid),
            "threads": sum(read_threads(pid) for pid in tree),
        }

    return Contender(tool=tool, command=command, measure=run)


def read_threads(pid: int) -> int:
    """The threads of a process; 0 when it is gone."""
    return read_kib(pid, "Threads")


@contextmanager
def hold(nodes: Nodes, *words: str) -> Iterator[Running]:
    """A launch that runs and has come to rest."""
    with open_folder(nodes) as folder:
        flags = ["--no-check", "--no-push", "--workdir", str(nodes.shared), *words]
        launch = Launch(nodes, [*flags, "still.py", str(folder)])
        launch.wait_for_text("running: ")
        time.sleep(SETTLE_S)
        yield launch.running
    launch.wait()


@contextmanager
def hold_by_hand(nodes: Nodes) -> Iterator[Running]:
    """Agents that were started by a fan-out tool, and have come to rest."""
    with open_folder(nodes) as folder:
        script = ["still.py", str(folder)]
        running = nodes.start(clush(nodes, torchrun(nodes, nodes.fake_python, CLUSH_RANK, script, pick_port())))
        wait_until(lambda: len(list(folder.glob("*.up"))) == nodes.count, 120, "every rank is up")
        time.sleep(SETTLE_S)
        yield running
    running.wait().check()


@contextmanager
def open_folder(nodes: Nodes) -> Iterator[Path]:
    """Where ranks say that they are up, and are told to end."""
    folder = nodes.shared / f"quiet_{next(_numbers)}"
    folder.mkdir()
    yield folder
    (folder / "done").touch()


PART = Part(
    word="quiet",
    title="Holding N nodes on which nothing happens",
    about=(
        f"Windows of {WINDOW_S:g} s, from {SETTLE_S:g} s after the start on, one silent rank a node under a stand-in for torchrun. core_percent, memory_mib (what processes share "
        "counts once) and threads are the launch host's, with all children: a fan-out tool holds one ssh a node."
    ),
    sizes=(32, 64, 128),
    measure=measure,
    musts=(
        Must(
            says="128 quiet nodes, one core of the launch host",
            case=CASE,
            nodes=128,
            tool=OURS,
            metric="core_percent",
            at_most=10,
            unit="%",
        ),
    ),
)
