"""A signal for the ranks of a run on one node: a supervisor that does not answer is told, not taken for none."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node import notify, processes, runfolder, status

RUN = "run_1"


class Answers:
    """A wire that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, header: dict[str, Any]) -> None:
        self.sent.append(header)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".aorta/runs" / RUN / "0"
    runfolder.make_run_folder(str(folder))
    return folder


@pytest.fixture
def supervisor(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Some process that the status file names as the supervisor."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        seen = processes.read_process(process.pid)
        assert seen is not None
        who = {"pid": process.pid, "ticks": seen.ticks, "boot_id": processes.boot_id()}
        runfolder.write_status(str(folder), {"state": "running", "supervisor": who, "events": []})
        yield process
        process.kill()


def send_signal() -> dict[str, Any]:
    wire: Any = Answers()
    notify.main({"run_id": RUN, "node_rank": 0, "signal": 10}, wire, {})
    (answer,) = wire.sent
    return dict(answer)


def test_a_supervisor_that_stands_still_or_says_nothing_is_told(
    folder: Path, supervisor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "ANSWER_S", 0.3)
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.bind(runfolder.SOCKET)
        deaf.listen()
        assert "does not answer" in send_signal()["error"]
        os.kill(supervisor.pid, signal.SIGSTOP)
        os.waitpid(supervisor.pid, os.WUNTRACED)
        assert send_signal() == {"error": "its supervisor is suspended", "remedy": f"kill -CONT {supervisor.pid} there"}


def test_no_supervisor_means_no_rank(supervisor: subprocess.Popen[bytes]) -> None:
    supervisor.kill()
    supervisor.wait()
    assert send_signal() == {"ranks": []}


@pytest.mark.usefixtures("folder")
def test_a_node_without_the_run_says_so_and_one_without_its_status_is_in_trouble() -> None:
    def ask(node_rank: int) -> dict[str, Any]:
        wire: Any = Answers()
        status.main({"run_id": RUN, "node_rank": node_rank}, wire, {})
        (answer,) = wire.sent
        return dict(answer)

    assert ask(1) == {"found": False}
    assert "no status can be read" in ask(0)["error"]
