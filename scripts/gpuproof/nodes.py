"""The nodes of the proof, reached by hand: what a person without a launcher would type."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.nodelist import read_node_list
from orchestrator.values import Node

from . import PROJECT
from .results import ProofError

BARE = "bare"
"""The folder in each HOME for what is started by hand."""
INTERFACE = "eth0"
"""As the nodes of scripts/gpu_cluster have it."""
LIMIT_S = 240


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A launch that has ended."""

    exit_code: int
    seconds: float
    ended: float
    stdout: str
    stderr: str
    experiment: Path | None

    @property
    def verdict(self) -> dict[str, Any]:
        """What the run's record says of its end; empty where none was started."""
        if self.experiment is None:
            return {}
        found: dict[str, Any] = json.loads((self.experiment / "run.json").read_text()).get("verdict") or {}
        return found

    @property
    def named_rank(self) -> int | None:
        """The rank that is said to have failed first."""
        return (self.verdict.get("first_failure") or {}).get("rank")

    @property
    def experiment_started(self) -> bool:
        """Ranks were started, by what was kept of them."""
        return self.experiment is not None and any(self.experiment.glob("logs/rank_*"))

    def check(self) -> Launched:
        """Go on only when it ended well."""
        if self.exit_code:
            raise ProofError(f"the launch ended with {self.exit_code}:\n{self.stdout[-2000:]}\n{self.stderr[-4000:]}")
        return self


class Bed:
    """Nodes, and a project of our own that is brought to them."""

    def __init__(self, node_list: Path, work: Path | None = None) -> None:
        self.node_list = node_list.absolute()
        self.nodes: tuple[Node, ...] = read_node_list(node_list)
        self._is_kept = work is not None
        self.project = work.absolute() if work else Path(tempfile.mkdtemp(prefix="gpuproof-"))
        hide = shutil.ignore_patterns("__pycache__")
        for name in ("scripts", "config"):
            shutil.copytree(PROJECT / name, self.project / name, ignore=hide, dirs_exist_ok=True)
        for path in (PROJECT / "scripts" / "gpuproof" / "ranks").glob("*.py"):
            shutil.copy(path, self.project)
        self._port = 29600

    def close(self) -> None:
        """Remove the project, unless it was to be kept; the nodes go with their cluster."""
        if not self._is_kept:
            shutil.rmtree(self.project)

    def ssh_words(self, node: Node) -> list[str]:
        """The words of an OpenSSH client that reaches a node; the command follows."""
        words = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o", "LogLevel=ERROR"]
        words += ["-i", node.key] if node.key else []
        words += ["-p", str(node.port)] if node.port else []
        return [*words, f"{node.user}@{node.host}" if node.user else node.host]

    def say(self, node: Node, command: str) -> str:
        """Run a command on a node and give what it wrote."""
        done = subprocess.run(
            [*self.ssh_words(node), command], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
        )
        if done.returncode:
            raise ProofError(f"{node.name}: {command} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def push(self) -> None:
        """Bring the project to every node, as one does by hand."""
        shutil.copytree(
            PROJECT / "orchestrator", self.project / "orchestrator", ignore=shutil.ignore_patterns("__pycache__")
        )
        for node in self.nodes:
            target = self.ssh_words(node)
            words = ["rsync", "-a", "--delete", "-e", shlex.join(target[:-1]), "--exclude", "experiments"]
            subprocess.run([*words, f"{self.project}/", f"{target[-1]}:{BARE}/"], check=True, stdin=subprocess.DEVNULL)
        shutil.rmtree(self.project / "orchestrator")

    def torchrun(self, script: Sequence[str], *, nodes: Sequence[Node] | None = None) -> tuple[str, float]:
        """Start torchrun on every node by ssh, wait for all; give what the first node wrote, and the seconds."""
        chosen = list(nodes or self.nodes)
        self._port += 1
        began = time.monotonic()
        started = []
        with tempfile.TemporaryDirectory() as folder:
            for rank, node in enumerate(chosen):
                log = Path(folder, str(rank)).open("w+")  # noqa: SIM115 - open until its process has ended
                words = [*self.ssh_words(node), self.torchrun_line(chosen, rank, script)]
                process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
                started.append((process, log))
            texts = []
            for process, log in started:
                process.wait(LIMIT_S)
                log.seek(0)
                texts.append(log.read())
                log.close()
        if any(process.returncode for process, _ in started):
            raise ProofError("torchrun by hand failed:\n" + "\n".join(text[-3000:] for text in texts))
        return texts[0], time.monotonic() - began

    def torchrun_line(self, nodes: Sequence[Node], rank: int, script: Sequence[str]) -> str:
        """What is typed on one node."""
        python = nodes[rank].python or "python3"
        words = [python, "-m", "torch.distributed.run", "--nnodes", str(len(nodes)), "--node-rank", str(rank)]
        words += ["--nproc-per-node", str(self.processes(nodes[rank])), "--master-addr", nodes[0].host]
        words += ["--master-port", str(self._port), *script]
        environ = (
            f"PYTHONPATH=$PWD AORTA_OUTPUT_DIR=$PWD/out NCCL_SOCKET_IFNAME={INTERFACE} GLOO_SOCKET_IFNAME={INTERFACE}"
        )
        return f"cd {BARE} && rm -rf out && {environ} exec {shlex.join(words)}"

    def processes(self, node: Node) -> int:
        """How many ranks a node gets: one for each of its GPUs, one where there is none."""
        return self._counts[node.name]

    @cached_property
    def _counts(self) -> dict[str, int]:
        return {node.name: self._count(node) for node in self.nodes}

    def _count(self, node: Node) -> int:
        listed = self.say(node, "nvidia-smi -L 2>/dev/null || true")
        return max(1, sum(line.startswith("GPU ") for line in listed.splitlines()))

    def launch(
        self, words: Sequence[str], *, label: str, node_list: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Launched:
        """Run aorta-launch in the project, and find what it recorded."""
        given = [word for name, value in (env or {}).items() for word in ("--env", f"{name}={value}")]
        began = time.monotonic()
        done = self.orchestrate([*given, "--label", label, *words], node_list=node_list)
        seconds, ended = time.monotonic() - began, time.time()
        runs = sorted(self.project.glob(f"experiments/{label}_*"), key=lambda path: path.stat().st_mtime_ns)
        return Launched(
            exit_code=done.returncode,
            seconds=seconds,
            ended=ended,
            stdout=done.stdout,
            stderr=done.stderr,
            experiment=runs[-1] if runs and (runs[-1] / "run.json").exists() else None,
        )

    def orchestrate(self, words: Sequence[str], *, node_list: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run one verb of aorta-launch, with this project's own code."""
        program = [sys.executable, "-m", "orchestrator"]
        verb = [words[0]] if words[0] == "check" else []
        shared = ["--nodes", str(node_list or self.node_list), "--accept-new-host-keys"]
        return subprocess.run(
            [*program, *verb, *shared, *words[len(verb) :]],
            cwd=self.project,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            },
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
        )
