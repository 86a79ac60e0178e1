"""The nodes of a measurement, and the launch host on which every tool's command is run."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster import Cluster, start_cluster, why_no_namespaces
from cluster.launcher import launch_environ, on_launch_host

from . import PROJECT
from .timing import BenchError, Ran, Running

BENCH_VENV = PROJECT / ".bench-venv"
"""What scripts/bench makes: PyTorch and the tools that need it. Launch host and nodes see it at this same path."""
VENV = PROJECT / ".venv"
LAUNCHER_NAME = "BENCH_LAUNCHER"
"""The variable that names another aorta-launch than the installed one."""
LAUNCH_NAME = "launch-host"


class Nodes:
    """N nodes that are up, and a folder that launch host and nodes share by path.

    Shared, because DeepSpeed's launcher, torchrunx and a torchrun by hand need that; aorta-launch pushes, and only where
    it is told not to push it uses the folder like them.
    """

    def __init__(self, cluster: Cluster, shared: Path, project: Path) -> None:
        self.cluster, self.shared, self.project = cluster, shared, project
        self.count = cluster.spec.nodes
        self.addresses = [cluster.address(k) for k in cluster.numbers]
        self.hosts = ",".join(self.addresses)
        self.python = str(BENCH_VENV / "bin" / "python3")
        """With the real PyTorch."""
        self.fake_python = cluster.fake_python
        """Whose torch.distributed.run is the stand-in of the tests."""
        self.running: list[Running] = []

    def write_list(self, name: str, *, real: bool = False) -> Path:
        """Write a node list into the project folder."""
        path = self.project / name
        return self.cluster.write_list(path, python=self.python if real else self.fake_python)

    def start(
        self, words: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str | None] | None = None
    ) -> Running:
        """Start a command on the launch host and go on."""
        spec = self.cluster.spec
        place = cwd or self.project
        # Not a project on the path of modules but the installed one, as users have it.
        environ = launch_environ(spec, {"PYTHONPATH": None, **(env or {})})
        # Its name, which is in every node's /etc/hosts, is what torchrunx tells the nodes to call back to.
        named = ["unshare", "--uts", "sh", "-c", f'hostname {LAUNCH_NAME} && exec "$@"', "sh"]
        running = Running(
            [str(word) for word in words],
            wrap=lambda stamped: [*named, *on_launch_host(spec, stamped, place)],
            cwd=place,
            env=environ,
        )
        self.running.append(running)
        return running

    def run(
        self,
        words: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout_s: float = 120,
    ) -> Ran:
        """Run a command on the launch host to its end."""
        return self.start(words, cwd=cwd, env=env).wait(timeout_s)


@contextmanager
def open_nodes(count: int) -> Iterator[Nodes]:
    """Bring nodes up, and take them down with all that ran on them."""
    if reason := why_no_namespaces():
        raise BenchError(f"the benchmark needs nodes with namespaces of their own: {reason}")
    if not (BENCH_VENV / "bin" / "python3").exists():
        raise BenchError(f"{BENCH_VENV} is missing: scripts/bench makes it")
    folder = Path(tempfile.mkdtemp(prefix="aorta-bench-"))
    shared, project = folder / "shared", folder / "project"
    shared.mkdir()
    project.mkdir()
    nodes: Nodes | None = None
    try:
        everywhere = tuple(range(count + 1))
        with start_cluster(
            count,
            shared={str(BENCH_VENV): everywhere, str(shared): everywhere},
            prefix=str(BENCH_VENV),
            base_prefix=os.path.realpath(sys.base_prefix),
        ) as cluster:
            nodes = Nodes(cluster, shared, project)
            try:
                yield nodes
            finally:
                for running in nodes.running:
                    running.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pick_port() -> int:
    """A port that is free now; every node has ports of its own, so any will do there."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
