"""What the tests of launch and kill share: a project on the launch host, its runs, and what lies in them afterwards."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Completed, Launcher, Process, wait_for

Tables = Mapping[int, frozenset[Process]]

SLEEP = """
import os, time
open(os.path.join(os.environ["AORTA_OUTPUT_DIR"], "started"), "w").close()
print("rank", os.environ["RANK"], "sleeps", flush=True)
time.sleep(600)
"""

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
words = [sys.executable, "-c", deaf]
subprocess.Popen(words, start_new_session=True)
subprocess.Popen(words, start_new_session=True, env={})
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, words, {})
    os._exit(0)
time.sleep(0.3)
print("rank", os.environ["RANK"], "is deaf", flush=True)
time.sleep(600)
"""

THIEF = """
import socket, sys, time
print("ready", flush=True)
port = int(sys.stdin.readline())
while True:
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        s.bind(("", port))
        s.listen()
        break
    except OSError:
        s.close()
        time.sleep(0.001)
print("taken", flush=True)
time.sleep(600)
"""
"""Takes a port as soon as it is free, and says so."""


class Scene:
    """A project folder with scripts and a node list, on the launch host of a cluster."""

    def __init__(self, cluster: Cluster, tmp_path: Path, *, python: str | None = None, **extra: Any) -> None:
        self.cluster = cluster
        self.project = tmp_path / f"project_{tmp_path.name[-8:]}"
        self.project.mkdir()
        self.nodes = cluster.write_list(tmp_path / "nodes.txt", python=python, **extra)
        self.before = cluster.process_tables()

    def write(self, name: str, text: str) -> str:
        """Write a script of the project."""
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    def start(self, *words: str, env: Mapping[str, str | None] | None = None) -> Launcher:
        """Start a launch and go on."""
        return self.cluster.start_launcher(["--nodes", str(self.nodes), *words], cwd=self.project, env=env)

    def launch(self, *words: str, env: Mapping[str, str | None] | None = None, timeout_s: float = 100) -> Completed:
        """Launch to the end."""
        return self.start(*words, env=env).wait(timeout_s)

    def verb(self, *words: str, timeout_s: float = 100) -> Completed:
        """Run another verb to its end, as from another shell."""
        return self.cluster.run_launcher(words, cwd=self.project, timeout_s=timeout_s)

    def wait_empty(self, deadline_s: float) -> float:
        """Wait until every node runs what it ran before; give the seconds that took."""
        begin = time.monotonic()
        self.cluster.wait_process_tables(self.before, deadline_s)
        return time.monotonic() - begin

    def runs(self) -> list[Path]:
        """The experiment directories, oldest first."""
        return sorted((self.project / "experiments").glob("*"), key=lambda path: path.stat().st_mtime_ns)

    @property
    def experiment(self) -> Path:
        """The only experiment directory."""
        (experiment,) = self.runs()
        return experiment

    def run_json(self) -> dict[str, Any]:
        """The record of the only run."""
        document: dict[str, Any] = json.loads((self.experiment / "run.json").read_text())
        return document

    def verdict(self) -> dict[str, Any]:
        """How the only run ended."""
        verdict: dict[str, Any] = self.run_json()["verdict"]
        return verdict

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """What happened in the only run."""
        events = read_lines((self.experiment / "events.jsonl").read_text())
        return [event for event in events if not kind or event["kind"] == kind]

    def answers(self) -> list[dict[str, Any]]:
        """The JSON documents that the ranks of the only run wrote as rank_<rank>.json, by rank."""
        files = sorted((self.experiment / "outputs").rglob("rank_*.json"), key=lambda path: path.name)
        return [json.loads(file.read_text()) for file in files]

    def pids(self, k: int, text: str) -> list[int]:
        """The processes of node k whose words hold a text, by the node's own count."""
        return [process.pid for process in self.cluster.process_table(k) if text in process.command]

    def wait_for_pids(self, k: int, text: str, count: int = 1) -> list[int]:
        """Wait until node k has so many processes with a text in their words."""
        wait_for(lambda: len(self.pids(k, text)) >= count, 60, f"{count} processes {text!r} on node {k}")
        return self.pids(k, text)


def row_param(row: Any, name: str, marks: Sequence[pytest.MarkDecorator], *, long: bool, torch: bool) -> Any:
    """Make a row of a table one case of a test."""
    own = [*([pytest.mark.long] if long else []), *([pytest.mark.torch] if torch else [])]
    return pytest.param(row, id=name, marks=[*own, *marks])


def read_lines(text: str) -> list[dict[str, Any]]:
    """Parse one JSON document a line."""
    return [json.loads(line) for line in text.splitlines()]


def seconds_of(moment: str) -> float:
    """Turn a moment of a record into seconds since the epoch."""
    return datetime.fromisoformat(moment).timestamp()


def wait_running(launcher: Launcher, ranks: int) -> None:
    """Wait until all ranks run."""
    launcher.wait_for_text(f"running: {ranks} rank", 90)


def said_after(launcher: Launcher, text: str, begin: float, deadline_s: float = 60) -> float:
    """Wait for a text on the screen; give the seconds since a moment of the wall clock."""
    launcher.wait_for_text(text, deadline_s)
    return time.time() - begin


def list_files(folder: Path) -> dict[str, tuple[int, float]]:
    """Every file below a folder with its size and time."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_size, path.lstat().st_mtime)
        for path in folder.rglob("*")
        if not path.is_dir()
    }


def grep_tree(folder: Path, wanted: Sequence[bytes], skip: Callable[[Path], bool] = lambda _: False) -> list[str]:
    """Name the files below a folder that hold one of some texts."""
    found = []
    for top, _, names in os.walk(folder):
        for name in names:
            path = Path(top) / name
            if path.is_file() and not skip(path) and any(text in path.read_bytes() for text in wanted):
                found.append(str(path))
    return found
