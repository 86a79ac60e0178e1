"""What prune removes on a node, and what keeps it from doing so."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node import forget, processes

RUN = "run_20261101-aaaa"


class Wire:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        del body
        self.sent.append(header)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".aorta" / "runs" / RUN / "0"
    (path / "ranks").mkdir(parents=True)
    (path / "ranks" / "stdout.log").write_bytes(b"x" * 50_000)
    (path / "status.json").write_text("{}")
    return path


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "100"], env={}) as process:
        yield process
        process.kill()


def ask(*runs: tuple[str, int], remove: bool = True) -> list[dict[str, Any]]:
    wire = Wire()
    forget.main({"runs": runs or [(RUN, 0)], "remove": remove}, wire, {})  # type: ignore[arg-type] # all that it does is send
    assert wire.sent.pop() == {"t": "end"}
    return wire.sent


def identity(pid: int, boot_id: str | None = None) -> dict[str, Any]:
    process = processes.read_process(pid)
    assert process is not None
    return {"pid": pid, "ticks": process.ticks, "boot_id": processes.boot_id() if boot_id is None else boot_id}


def test_a_dead_run_is_measured_and_removed(folder: Path) -> None:
    (told,) = ask(remove=False)
    assert (told["found"], told["removed"], told["files"], told["fault"]) == (True, False, 2, "")
    assert 50_000 <= told["bytes"] < 80_000
    assert folder.exists()
    (told,) = ask()
    assert (told["removed"], told["fault"]) == (True, "")
    assert not folder.parent.exists()
    assert folder.parents[1].exists()
    (again,) = ask()
    assert (again["found"], again["removed"], again["bytes"]) == (False, True, 0)


def test_the_other_node_of_a_shared_home_is_left(folder: Path) -> None:
    other = folder.with_name("1")
    other.mkdir()
    assert ask()[0]["removed"]
    assert (other.exists(), folder.exists()) == (True, False)


def test_whatever_lives_of_a_run_keeps_its_folder(folder: Path, sleeper: subprocess.Popen[bytes]) -> None:
    supervisor = {"supervisor": identity(sleeper.pid)}
    tree = {"supervisor": {**identity(sleeper.pid), "pid": 1}, "tree": [[sleeper.pid, identity(sleeper.pid)["ticks"]]]}
    elsewhere = {"supervisor": identity(sleeper.pid, "another boot"), "heartbeat": time.time(), "events": []}
    for status, words in ((supervisor, "its supervisor, pid"), (tree, "sleep 100"), (elsewhere, "within the last")):
        (folder / "status.json").write_text(json.dumps(status))
        (told,) = ask()
        assert words in told["living"]
        assert not told["removed"]
        assert folder.exists()
    with (folder / "lock").open("w") as lock:
        (folder / "status.json").write_text("{}")
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ask()[0]["living"] == "its supervisor holds its lock"
    ended = {**elsewhere, "events": [{"ev": "final"}]}
    (folder / "status.json").write_text(json.dumps(ended))
    assert ask()[0]["removed"]


@pytest.mark.usefixtures("folder")
def test_a_marked_process_keeps_it_even_when_the_folder_is_gone() -> None:
    with subprocess.Popen(["sleep", "100"], env={"AORTA_RUN_ID": RUN}) as process:
        (told,) = ask()
        (absent,) = ask((RUN, 7))
        process.kill()
    assert told["living"] == absent["living"] == f"pid {process.pid}  sleep 100"
    assert not absent["removed"]


def test_a_pid_that_is_somebody_elses_by_now_keeps_nothing(folder: Path, sleeper: subprocess.Popen[bytes]) -> None:
    was = {**identity(sleeper.pid), "ticks": 1}
    (folder / "status.json").write_text(json.dumps({"supervisor": was, "tree": [[sleeper.pid, 1]]}))
    assert ask()[0]["removed"]
    assert sleeper.poll() is None


def test_links_are_removed_and_not_followed(folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_bytes(b"x" * 10_000_000)
    (folder / "out").symlink_to(precious)
    (folder / "ranks" / "file").symlink_to(precious / "data")
    os.link(folder / "ranks" / "stdout.log", folder / "ranks" / "twin.log")
    (told,) = ask(remove=False)
    assert told["bytes"] < 80_000, "neither what a link leads to nor a twin counts"
    assert ask()[0]["removed"]
    assert (precious / "data").stat().st_size == 10_000_000


@pytest.mark.parametrize("place", ["run", "rank"])
def test_a_link_in_the_place_of_the_folder_is_refused(folder: Path, tmp_path: Path, place: str) -> None:
    real = tmp_path / "elsewhere"
    moved = folder.parent if place == "run" else folder
    moved.rename(real)
    moved.symlink_to(real)
    (told,) = ask()
    assert "is no folder: left as it is" in told["fault"]
    assert not told["removed"]
    assert list(real.iterdir())


@pytest.mark.parametrize("run_id", ["..", "../x", "", ".", "/etc", "a/b", ".hidden", "a\n"])
def test_an_id_that_leads_out_is_refused(folder: Path, run_id: str) -> None:
    (told,) = ask((run_id, 0))
    assert "is no run id" in told["fault"]
    assert folder.exists()


def test_deep_and_closed_folders_are_removed(folder: Path) -> None:
    here = Path.cwd()
    try:
        os.chdir(folder)
        for _ in range(1200):
            os.mkdir("d")  # noqa: PTH102 - by relative path: the whole would be too long for pathlib's own walk
            os.chdir("d")
    finally:
        os.chdir(here)
    closed = folder / "ranks" / "closed"
    closed.mkdir()
    (closed / "file").touch()
    closed.chmod(0)
    (told,) = ask()
    assert (told["removed"], told["fault"]) == (True, "")
    assert not folder.exists()
