"""A launch that is to fail: the project, the nodes with their ranks, and what a test does to them meanwhile."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from cluster import Cluster, Completed, Launcher, wait_for
from scenes import Scene

from .row import Live


class Stage:
    """One row on its nodes."""

    def __init__(self, row: Live, cluster: Cluster, tmp_path: Path, undo: ExitStack) -> None:
        self.row, self.cluster, self.undo, self.tmp_path = row, cluster, undo, tmp_path
        self.numbers = range(1, len(row.layout) + 1)
        python = cluster.python if row.torch else None
        lines = {k: f"slots={row.layout[k - 1]} {row.lines.get(k, '')}".strip() for k in self.numbers}
        self.scene = Scene(cluster, tmp_path, python=python, extra=lines, nodes=list(self.numbers))
        self.words = list(row.words)
        """Words of the launch; what is known only when the nodes are up is added to them."""
        self.launcher: Launcher

    def start(self) -> None:
        """Launch, and go on."""
        self.scene.write("job.py", self.row.script)
        config = self.tmp_path / "live.yaml"
        config.write_text(json.dumps({"launch": {"grace_s": 2, "check": False, **self.row.settings}}))
        self.launcher = self.scene.start("--config", str(config), *self.words, "job.py", *self.row.args)

    def wait(self) -> Completed:
        """Wait for the end that the launcher finds."""
        return self.launcher.wait(100)

    # -- ranks

    def node_of(self, rank: int) -> int:
        """The number of the node on which a rank is, from 1."""
        firsts = [sum(self.row.layout[:k]) for k in range(len(self.row.layout) + 1)]
        return next(k for k in self.numbers if firsts[k - 1] <= rank < firsts[k])

    def log(self, rank: int, stream: str = "out") -> str:
        """What the launch host has of a rank's output."""
        found = list(self.scene.project.glob(f"experiments/*/logs/rank_{rank:04d}.{stream}"))
        return found[0].read_text(errors="replace") if found else ""

    def wait_said(self, word: str = "ready", *ranks: int) -> None:
        """Wait until ranks (all) have said a word."""
        wanted = ranks or range(sum(self.row.layout))
        wait_for(
            lambda: all(word in self.log(rank) for rank in wanted) or not self.launcher.running,
            90,
            lambda: f"{word!r} of {list(wanted)}\n{self.launcher.stderr}",
        )
        assert self.launcher.running, self.launcher.wait(1)

    def outputs(self, k: int) -> str:
        """Where the ranks of a node write to, as the node knows it."""
        home = self.cluster.spec.home_on_node(k)
        return f"{home}/.aorta/runs/{self.scene.experiment.name}/{k - 1}/outputs"

    def go(self, *nodes: int) -> None:
        """Tell the ranks (of some nodes) to go on."""
        for k in nodes or self.numbers:
            self.sh(k, f"touch {self.outputs(k)}/go")

    def pid(self, rank: int) -> int:
        """A rank's process, as its node counts."""
        (event,) = (event for event in self.scene.events("rank") if event["rank"] == rank)
        return int(event["pid"])

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Signal a rank from outside."""
        self.cluster.kill_process(self.node_of(rank), self.pid(rank), number)

    # -- nodes

    def sh(self, k: int, line: str) -> str:
        """Run a shell line on a node."""
        done = self.cluster.exec(k, ["sh", "-c", line])
        assert done.returncode == 0, done
        return done.stdout

    def put(self, k: int, path: str, text: str) -> None:
        """Write a file below HOME of a node, and take the topmost folder of it away at the end."""
        target = self.cluster.home(k) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        top = Path(path).parts[0]
        self.undo.callback(self.cluster.exec, k, ["rm", "-rf", top])

    def home(self, k: int) -> str:
        """HOME of a node, as it knows it."""
        return self.cluster.spec.home_on_node(k)

    def mount(self, k: int, path: str, size_mib: float) -> None:
        """Put a small file system over a folder of a node."""
        self.cluster.mount_small(k, path, size_mib)
        self.undo.callback(self.cluster.unmount, k, path)

    def host_pids(self, k: int) -> list[int]:
        """All processes of a node, as this machine counts."""
        namespace = read_namespace(Path(f"/proc/{self.cluster.pid(k)}"))
        return [
            int(path.name)
            for path in Path("/proc").iterdir()
            if path.name.isdigit() and read_namespace(path) == namespace
        ]

    def start_beside(self, k: int, words: list[str]) -> subprocess.Popen[str]:
        """Start a program in the network of a node; it is ended with the test."""
        program = subprocess.Popen(
            ["nsenter", "-t", str(self.cluster.pid(k)), "-n", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.undo.callback(end, program)
        return program


def read_namespace(process: Path) -> int | None:
    """Read which namespace of processes a process is in; None once it is gone."""
    try:
        return (process / "ns" / "pid").stat().st_ino
    except OSError:
        return None


def end(program: subprocess.Popen[str]) -> None:
    """End a program that the test started."""
    program.kill()
    program.wait()


Act = Callable[[Stage], None]
