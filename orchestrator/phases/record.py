"""Writes the experiment directory's own files, and remembers the run on the launch host."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import __version__
from orchestrator.errors import AortaError, NotReadyError, UsageError
from orchestrator.output.events import render_time
from orchestrator.output.plan_text import plan_document
from orchestrator.output.verdict_text import verdict_document
from orchestrator.phases.signals import Terminated
from orchestrator.plan.paths import ExperimentPaths, launches_folder
from orchestrator.values import Node, Plan, Verdict

if TYPE_CHECKING:
    from orchestrator.facts import Facts
    from orchestrator.phases.git import GitState
    from orchestrator.phases.push import Pushed
    from orchestrator.settings import Settings

SSH_KEYS = ("user", "ssh_port", "identity", "connect_timeout_s", "accept_new_host_keys")
"""What a later kill needs to reach the nodes as this call did."""
ID_TRIES = 8
CONTROL_KEYS = (
    *("fanout", "lost_after_s", "join_timeout_s", "timeout_s", "grace_s", "ranks", "master_port"),
    *("hang_after_s", "hang_grace_s", "hang_action", "py_spy"),
)
"""What a process needs beside these to take a run over."""


def make_experiment(settings: Settings, run_id: str) -> ExperimentPaths:
    """Create the experiment directory of a run.

    Raises:
        UsageError: it cannot be created.
    """
    root = Path(settings.experiments_dir) / run_id
    try:
        root.mkdir(parents=True)
        for folder in ("logs", "errors", "outputs"):
            (root / folder).mkdir()
    except OSError as error:
        raise UsageError(
            what=f"the experiment directory cannot be made: {error.strerror}",
            where=str(root),
            remedy="name another place with --experiments-dir",
        ) from error
    return ExperimentPaths(root.resolve())


def begin_experiment(settings: Settings, new_id: Callable[[], str]) -> ExperimentPaths:
    """Create the experiment directory of a run whose id nobody here has; its name is the id.

    Raises:
        UsageError: it cannot be created.
    """
    for _ in range(ID_TRIES):
        run_id = new_id()
        if (launches_folder(Path.home()) / f"{run_id}.json").exists():
            continue
        try:
            return make_experiment(settings, run_id)
        except UsageError as error:
            # Another launch of the same second has it; where it is something else, the last try tells it.
            if not isinstance(error.__cause__, FileExistsError):
                raise
    return make_experiment(settings, new_id())


@contextlib.contextmanager
def told_as_full_disk(paths: ExperimentPaths) -> Iterator[None]:
    """Turn the troubles of our own disk into an error; before the start they are reason enough not to start.

    Raises:
        NotReadyError: the experiment directory cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise NotReadyError(
            what=f"the experiment directory cannot be written: {error.strerror}",
            where=str(paths.root),
            remedy="free space there, or name another place with --experiments-dir",
        ) from error


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Replace a JSON file in one step."""
    temporary = path.with_name(path.name + ".new")
    text = json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n"
    try:
        temporary.write_text(text, "utf-8", "backslashreplace")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def now_utc() -> str:
    """Say the time as UTC."""
    return render_time(datetime.now(UTC))


class Record:
    """The record of one run here: run.json, and the entry by which kill finds it."""

    def __init__(self, paths: ExperimentPaths, settings: Settings, nodes: Sequence[Node], run_id: str) -> None:
        self.paths = paths
        self.entry = launches_folder(Path.home()) / f"{run_id}.json"
        self.document: dict[str, Any] = {
            "schema": 1,
            "run_id": run_id,
            "state": "prepared",
            "launch_host": {
                "hostname": platform.node(),
                "pid": os.getpid(),
                "python": platform.python_version(),
                "aorta_launch": __version__,
            },
            "timings": {"launched": now_utc()},
            "nodes": [_node_document(node) for node in nodes],
            "ssh": {**{key: getattr(settings, key) for key in SSH_KEYS}, "identity": _absolute(settings.identity)},
            "control": {key: getattr(settings, key) for key in CONTROL_KEYS},
        }

    @classmethod
    def again(cls, paths: ExperimentPaths, entry: Path, document: dict[str, Any]) -> Record:
        """Go on with the record of a run whose controller is gone."""
        record = cls.__new__(cls)
        record.paths, record.entry, record.document = paths, entry, document
        return record

    def open(self) -> None:
        """Remember the run, before anything of it can be alive anywhere.

        Raises:
            NotReadyError: HOME here is full or read-only, and a run that kill could not find is not started.
        """
        entry = {
            "schema": 1,
            "run_id": self.document["run_id"],
            "experiment": str(self.paths.root),
            "live": True,
            "pid": os.getpid(),
            "nodes": self.document["nodes"],
            "ssh": self.document["ssh"],
            "control": self.document["control"],
        }
        try:
            self.entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_json(self.entry, entry)
        except OSError as error:
            self.write(state="not started")
            raise NotReadyError(
                what=f"the run cannot be remembered on this machine: {error.strerror}",
                where=str(self.entry.parent),
                remedy="free space there or make it writable: aorta-launch kill finds a run by its entry in it",
            ) from error
        self.write()

    def write(self, **fields: Any) -> None:
        """Write run.json with what is new; a full disk here must not end a run there."""
        self.document.update(fields)
        with contextlib.suppress(OSError):
            write_json(self.paths.run_json, self.document)

    def time(self, phase: str) -> None:
        """Note when a phase was over."""
        self.document["timings"][phase] = now_utc()

    def note_code(self, pushed: Pushed, git: GitState) -> None:
        """Note which code runs."""
        self.document["code"] = {
            "tree_hash": pushed.tree_hash,
            "files": pushed.files,
            "bytes": pushed.total_bytes,
            "commit": git.commit,
            "branch": git.branch,
            "dirty": git.dirty,
        }
        if git.diff:
            self.paths.code_diff.write_bytes(git.diff)

    def note_facts(self, facts: Sequence[Facts]) -> None:
        """Note the versions on the nodes."""
        self.document["versions"] = [
            {
                "node_rank": fact.node_rank,
                "hostname": fact.hostname,
                "python": fact.python_version,
                "torch": fact.torch_version,
                "cuda": fact.torch_cuda,
                "hip": fact.torch_hip,
                "nccl": fact.nccl_version,
                "driver": fact.driver_version,
                "clock_offset_s": fact.clock_offset_s,
            }
            for fact in facts
        ]

    def note_plan(self, plan: Plan) -> None:
        """Note the plan, secrets masked."""
        self.write(state="starting", plan=plan_document(plan), went=None)
        # A kill that came before anything ran has called it over.
        end_entry(self.entry, live=True)

    def note_went(self, moment: float) -> None:
        """Note that every node was told to start: from now on the run goes on without us."""
        self.write(went=moment)

    def fail(self, error: BaseException) -> None:
        """Note that nothing was started; after a bug of ours something may be alive, and kill has to find it."""
        known = isinstance(error, AortaError | KeyboardInterrupt)
        self.time("ended")
        self.write(state="not started" if known else "unknown", error=_say_why(error))
        end_entry(self.entry, live=not known)

    def end_without_start(self, why: str) -> None:
        """Note that nothing came of it, and that nothing is left."""
        self.time("ended")
        self.write(state="not started", error=why)
        end_entry(self.entry, live=False)

    def end(self, verdict: Verdict) -> None:
        """Note the verdict; the run is no longer live unless something of it may be."""
        self.time("ended")
        self.write(state=verdict.state, verdict=verdict_document(verdict)["verdict"])
        end_entry(self.entry, live=bool(verdict.survivors or verdict.unasked))


def _say_why(error: BaseException) -> str:
    if isinstance(error, Terminated):
        return "stopped by SIGTERM or aorta-launch kill"
    return "stopped by Ctrl-C" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__


def end_entry(entry: Path, *, live: bool) -> None:
    """Say in a run's entry whether something of it may still be alive."""
    try:
        document = json.loads(entry.read_text("utf-8"))
        document["live"] = live
        write_json(entry, document)
    except (OSError, ValueError):
        return


def _node_document(node: Node) -> dict[str, Any]:
    # Values of env.* may be secret, and nothing that reads this needs them.
    return asdict(replace(node, env=(), key=_absolute(node.key)))


def _absolute(path: str | Path | None) -> str | None:
    # A later kill may come from another folder.
    return str(Path(path).expanduser().absolute()) if path else None
