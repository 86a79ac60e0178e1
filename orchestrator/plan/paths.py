"""Every path of a run, on the launch host and on a node, in one place."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path, PurePosixPath

from orchestrator.light_dataclass import dataclass


@dataclass(frozen=True)
class ExperimentPaths:
    """The experiment directory of one run on the launch host."""

    root: Path

    @property
    def run_json(self) -> Path:
        """Plan, versions, timings, verdict."""
        return self.root / "run.json"

    @property
    def events_jsonl(self) -> Path:
        """Everything that happened, UTC."""
        return self.root / "events.jsonl"

    @property
    def launch_log(self) -> Path:
        """What the launcher said, whoever was there to hear it."""
        return self.root / "launch.log"

    @property
    def notes_jsonl(self) -> Path:
        """What people noted on the run; a file of its own, so that nothing else writes to it."""
        return self.root / "notes.jsonl"

    @property
    def config_yaml(self) -> Path:
        """The config as used."""
        return self.root / "config.yaml"

    @property
    def code_diff(self) -> Path:
        """What was not committed."""
        return self.root / "code.diff"

    @property
    def checks_json(self) -> Path:
        """The findings before the start."""
        return self.root / "checks.json"

    @property
    def logs(self) -> Path:
        """One file a node for people, one pair a rank byte for byte."""
        return self.root / "logs"

    @property
    def errors(self) -> Path:
        """Torchelastic error files."""
        return self.root / "errors"

    @property
    def outputs(self) -> Path:
        """What the ranks wrote into AORTA_OUTPUT_DIR."""
        return self.root / "outputs"

    @property
    def diagnosis(self) -> Path:
        """Evidence gathered when the run failed."""
        return self.root / "diagnosis"

    def node_log(self, node_rank: int, name: str) -> Path:
        """The agent and the ranks of one node, merged by whole line."""
        return self.logs / f"node_{node_rank}_{file_name(name)}.txt"

    def rank_out(self, rank: int) -> Path:
        """The very bytes of a rank's stdout."""
        return self.logs / f"rank_{rank:04d}.out"

    def rank_err(self, rank: int) -> Path:
        """The very bytes of a rank's stderr."""
        return self.logs / f"rank_{rank:04d}.err"

    def agent_out(self, node_rank: int) -> Path:
        """The agent's stdout."""
        return self.logs / f"agent_{node_rank}.out"

    def agent_err(self, node_rank: int) -> Path:
        """The agent's stderr."""
        return self.logs / f"agent_{node_rank}.err"

    @property
    def gaps_jsonl(self) -> Path:
        """What of the log files was dropped on the nodes before it could be fetched."""
        return self.logs / "gaps.jsonl"

    def log_times(self, name: str) -> Path:
        """When the bytes of a log file came."""
        return self.logs / "times" / name

    def node_evidence(self, node_rank: int) -> Path:
        """What one node knew of itself when the run broke."""
        return self.diagnosis / f"node_{node_rank}.json"

    def kernel_log(self, node_rank: int) -> Path:
        """What the kernel of one node had said since the run began."""
        return self.diagnosis / f"node_{node_rank}.kernel.txt"

    @property
    def flight(self) -> Path:
        """The flight recorders that ranks left when a collective ran out of time."""
        return self.diagnosis / "flight"

    def error_file(self, rank: int) -> Path:
        """The error file of one rank."""
        return self.errors / f"rank_{rank:04d}.json"


@dataclass(frozen=True)
class NodePaths:
    """The run folder of one run on one node; the node rank is in it because HOME may be shared."""

    root: PurePosixPath

    @classmethod
    def of(cls, home: str, run_id: str, node_rank: int) -> NodePaths:
        """Place the run folder below the user's home on the node."""
        return cls(PurePosixPath(home) / ".aorta" / "runs" / run_id / str(node_rank))

    @property
    def ranks(self) -> PurePosixPath:
        """Torchrun's --log-dir."""
        return self.root / "ranks"

    @property
    def config_yaml(self) -> PurePosixPath:
        """The config as used."""
        return self.root / "config.yaml"

    @property
    def outputs(self) -> PurePosixPath:
        """AORTA_OUTPUT_DIR of the ranks."""
        return self.root / "outputs"

    @property
    def diagnosis(self) -> PurePosixPath:
        """What the ranks and the node tell of a hang."""
        return self.root / "diagnosis"

    @property
    def agent_error(self) -> PurePosixPath:
        """TORCHELASTIC_ERROR_FILE of the agent."""
        return self.root / "agent_error.json"


def launches_folder(home: Path) -> Path:
    """Where the launch host remembers its runs: one JSON file a run, named by its id."""
    return home / ".aorta" / "launches"


def seen_file(home: Path, project: Path) -> Path:
    """Where the launch host remembers the hashes of a project's files."""
    mark = hashlib.sha256(os.fsencode(project)).hexdigest()[:16]
    return home / ".aorta" / "seen" / f"{file_name(project.name)}-{mark}"


def file_name(text: str) -> str:
    """Make a node's name one safe part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("_") or "node"
