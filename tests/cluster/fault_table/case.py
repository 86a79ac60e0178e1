"""A run that a fault strikes: started for real, watched on the launch host and on the nodes alike."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cluster import Cluster, Completed, Launcher, Process, wait_for
from cluster.programs import start_ticks
from scenes import Scene, wait_running

from .row import Fault
from .scripts import build_script

FLOWING = 5
"""Lines of each rank that arrive before the fault comes, and after a fault that a run survives."""


class Case:
    """One fault, the nodes that it strikes, and the launch that goes on there."""

    def __init__(self, fault: Fault, cluster: Cluster, tmp_path: Path, undo: ExitStack) -> None:
        self.fault, self.cluster, self.undo, self.tmp_path = fault, cluster, undo, tmp_path
        self.python: dict[int, str] = {}
        self.scene = Scene(cluster, tmp_path, nodes=list(fault.nodes))
        self.launcher: Launcher
        self.mend: Callable[[], object] = lambda: None
        """Takes the fault back, for what a user does afterwards."""
        self.foreign: list[tuple[int, Process]] = []

    # -- the run

    def start(self) -> None:
        """Launch, and go on once lines of every rank arrive."""
        fault, scene = self.fault, self.scene
        scene.write("rank.py", build_script(fault.setup, fault.act, real_torch=fault.real_torch))
        settings = {
            "grace_s": 1,
            "check": os.environ.get("NOCHK") is None,
            "nproc_per_node": fault.processes,
            **fault.settings,
        }
        config = self.tmp_path / "fault.yaml"
        config.write_text(json.dumps({"launch": settings}))
        extra = {k: f"python={path}" for k, path in self.python.items()}
        python = self.cluster.python if fault.real_torch else "" if extra else None
        if extra:
            extra = {k: extra.get(k, f"python={self.cluster.fake_python}") for k in fault.nodes}
        scene.nodes = self.cluster.write_list(scene.nodes, extra, python=python, nodes=list(fault.nodes))
        detach = ["--detach"] if fault.detached else []
        self.launcher = scene.start(*detach, "--config", str(config), "rank.py")
        if fault.detached:
            done = self.launcher.wait(60)
            assert done.exit_code == 0, done
            assert done.stdout == f"{self.run_id}\n", done
            self.wait_flowing()
        elif fault.flows:
            wait_running(self.launcher, len(fault.nodes) * fault.processes)
            self.wait_flowing()

    def ranks_of(self, k: int) -> range:
        """The ranks on a node."""
        first = self.node_rank(k) * self.fault.processes
        return range(first, first + self.fault.processes)

    @property
    def ranks(self) -> list[int]:
        """All ranks."""
        return [rank for k in self.fault.nodes for rank in self.ranks_of(k)]

    def node_rank(self, k: int) -> int:
        """The place of a node in the list."""
        return self.fault.nodes.index(k)

    def wait_flowing(self, *nodes: int, deadline_s: float = 60) -> None:
        """Wait until new lines of every rank (of these nodes) arrive on the launch host."""
        ranks = [rank for k in (nodes or self.fault.nodes) for rank in self.ranks_of(k)]
        wait_growing(self.host_out, ranks, deadline_s, "on the launch host")

    def wait_writing(self, *nodes: int) -> None:
        """Wait until every rank of these nodes has written on, as its node sees it."""
        ranks = [rank for k in nodes for rank in self.ranks_of(k)]
        wait_growing(lambda rank: self.node_file(rank, "stdout"), ranks, 30, "on the node")

    def tell(self, k: int, word: str) -> None:
        """Tell the ranks of a node to act or to finish."""
        done = self.cluster.exec(k, ["touch", f"{self.folder_words(k)}/outputs/{word}"])
        assert done.returncode == 0, done

    def finish(self) -> None:
        """Tell all ranks that they are through."""
        for k in self.fault.nodes:
            self.tell(k, "finish")

    # -- files

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.scene.experiment.name

    def folder_words(self, k: int) -> str:
        """The run folder, as its node writes it."""
        return f"{self.cluster.spec.home_on_node(k)}/.aorta/runs/{self.run_id}/{self.node_rank(k)}"

    def run_folder(self, k: int) -> Path:
        """The run folder, as this machine sees it: through the node itself while that is on."""
        if self.cluster.spec.namespaces and self.cluster.alive(k):
            return Path(f"/proc/{self.cluster.pid(k)}/root{self.folder_words(k)}")
        return self.cluster.home(k) / f".aorta/runs/{self.run_id}/{self.node_rank(k)}"

    def host_out(self, rank: int) -> Path:
        """What the launch host has of a rank's output."""
        return self.scene.experiment / f"logs/rank_{rank:04d}.out"

    def node_file(self, rank: int, stream: str) -> Path:
        """What a rank wrote, on its node."""
        k = self.fault.nodes[rank // self.fault.processes]
        found = self.run_folder(k).glob(f"ranks/*/attempt_0/{rank % self.fault.processes}/{stream}.log")
        return max(found, key=lambda path: path.stat().st_mtime, default=Path("/nowhere"))

    def status(self, k: int) -> dict[str, Any]:
        """The status file of a node's supervisor."""
        status: dict[str, Any] = json.loads((self.run_folder(k) / "status.json").read_text())
        return status

    # -- processes

    def agent(self, k: int) -> int:
        """The agent of the run, by the node's count."""
        (pid,) = self.scene.pids(k, "torch.distributed.run")
        return pid

    def supervisor(self, k: int) -> int:
        """The supervisor of the run."""
        (pid,) = self.scene.pids(k, "supervisor.py")
        return pid

    def rank_pids(self, k: int) -> list[int]:
        """The ranks on a node, in order."""
        found = {event["local_rank"]: event["pid"] for event in self.status(k)["events"] if event["ev"] == "rank"}
        return [found[local_rank] for local_rank in sorted(found)]

    def links(self, k: int) -> list[int]:
        """The processes by which sshd serves the launch host on a node."""
        return self.scene.pids(k, "sshd: ")

    def send(self, k: int, number: int, *pids: int) -> None:
        """Signal processes of a node, all at once; one that has just gone is no error."""
        names = " ".join(map(str, pids))
        self.cluster.exec(k, ["sh", "-c", f"kill -{int(number)} {names} 2>/dev/null; true"]).check_returncode()

    def kill_links(self, k: int) -> None:
        """SIGKILL what serves the launch host on a node."""
        self.send(k, signal.SIGKILL, *self.links(k))

    def start_foreign(self, k: int, *words: str, folder: str = "/", **environ: str) -> Process:
        """Start a process of the same user that has nothing to do with the run; it has to survive."""
        script = 'setsid env -C "$@" >/dev/null 2>&1 </dev/null & echo $!'
        given = [f"{name}={value}" for name, value in environ.items()]
        pid = int(self.cluster.exec(k, ["sh", "-c", script, "sh", folder, *given, *words]).stdout)

        def find() -> list[Process]:
            return [one for one in self.cluster.process_table(k) if (one.pid, one.command) == (pid, " ".join(words))]

        wait_for(lambda: bool(find()), 10, "the foreign process has its own words")
        self.foreign.append((k, find()[0]))
        return self.foreign[-1][1]

    def end_foreign(self) -> None:
        """Assert that every one of them is still there, and end it."""
        for k, process in self.foreign:
            assert process in self.cluster.process_table(k), f"a foreign process was ended: {process}"
            self.cluster.kill_process(k, process.pid, signal.SIGKILL)
        self.foreign.clear()

    def remembered(self, suffix: str) -> Path:
        """By what the launch host remembers the run: its entry (json), and the lock of its controller."""
        return self.cluster.launch_home / f".aorta/launches/{self.run_id}.{suffix}"

    @property
    def controller(self) -> int:
        """The process on the launch host that controls the run, as its lock names it; 0 where none lives."""
        first, newline, _ = self.remembered("lock").read_text().partition("\n")
        pid = int(json.loads(first)["pid"]) if newline else 0
        return pid if start_ticks(pid) is not None else 0

    def kill_controller(self) -> None:
        """SIGKILL of the controller, wherever it is."""
        wait_for(lambda: bool(self.controller), 20, "the run has a controller")
        pid = self.controller
        ticks = start_ticks(pid)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: start_ticks(pid) != ticks, 10, "the controller is gone")

    # -- what a user does

    def kill(self, *words: str) -> Completed:
        """`aorta-launch kill` from another shell."""
        return self.scene.verb("kill", self.run_id, "--grace", "1s", *words)

    def start_attach(self) -> Launcher:
        """`aorta-launch attach` in another shell."""
        return self.cluster.start_launcher(["attach", self.run_id], cwd=self.scene.project)

    def attach(self) -> Completed:
        """The same to its end."""
        return self.start_attach().wait(60)


def wait_growing(find: Callable[[int], Path], ranks: list[int], deadline_s: float, where: str) -> None:
    """Wait until some more lines stand in a file of each rank."""

    def lines(rank: int) -> int:
        try:
            return find(rank).read_bytes().count(b"\n")
        except OSError:
            return 0

    begin = {rank: lines(rank) for rank in ranks}
    wait_for(
        lambda: all(lines(rank) >= begin[rank] + FLOWING for rank in ranks),
        deadline_s,
        lambda: f"new lines {where}: { ({rank: lines(rank) - begin[rank] for rank in ranks}) }",
    )


def press_ctrl_c(case: Case) -> Completed:
    """Stop the run from its own terminal."""
    case.launcher.press_ctrl_c()
    return case.launcher.wait(60)


def kill_from_elsewhere(case: Case) -> Completed:
    """Stop the run by `kill`, each node proves that nothing is left; the foreground launch is no more."""
    done = case.kill()
    for k in case.fault.nodes:
        (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"{case.cluster.address(k)}: "))
        assert line.endswith("none left"), done
    return done
