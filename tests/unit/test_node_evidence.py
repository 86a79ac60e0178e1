from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node import activity, cgroups, clock, evidence, kernel_log, look, parts, processes, ranks


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A run folder with one rank that spins and one that sleeps."""
    spin = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    sleep = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    assert sleep.stdout is not None
    sleep.stdout.readline()
    end = time.monotonic() + 10
    while "nanosleep" not in Path(f"/proc/{sleep.pid}/wchan").read_text() and time.monotonic() < end:
        time.sleep(0.005)
    ranks = []
    for rank, process in enumerate((spin, sleep)):
        found = processes.read_process(process.pid)
        assert found is not None
        ranks.append({"ev": "rank", "rank": rank, "local_rank": rank, "pid": process.pid, "ticks": found.ticks})
    workdir = tmp_path / "code"
    workdir.mkdir()
    status = {
        "run_id": "r",
        "node_rank": 0,
        "workdir": str(workdir),
        "gpu_memory": {},
        "supervisor": {"boot_id": processes.boot_id(), "pid": os.getpid(), "ticks": 0},
        "events": [{"ev": "ready", "time": time.time()}, *ranks],
    }
    (tmp_path / "status.json").write_text(json.dumps(status))
    (tmp_path / "outputs").mkdir()
    yield tmp_path, status
    for process in (spin, sleep):
        process.kill()
        process.wait()


def test_who_works_and_who_waits_is_told_apart(run: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = run
    found = activity.measure(str(folder), {"window_s": 0.5})
    spins, sleeps = found["ranks"]
    assert spins["cpu_cores"] > 0.1
    assert sleeps["cpu_cores"] < 0.05
    assert (sleeps["state"], sleeps["io_mib_s"]) == ("S", 0.0)
    assert found["outputs_age_s"] is None
    assert found["gpus"] == []


def test_a_rank_whose_children_work_is_at_work() -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'while True: pass']).wait()"
    parent = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        end = time.monotonic() + 10
        while not processes.children(parent.pid):
            assert time.monotonic() < end
        before = activity.read_work(parent.pid)
        began = time.monotonic()
        while activity.compare(before, {"pid": parent.pid}, time.monotonic() - began)["cpu_cores"] < 0.1:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        os.killpg(parent.pid, 9)
        parent.wait()


def test_what_was_written_last_is_told_by_its_age(tmp_path: Path) -> None:
    assert activity.newest_age_s(str(tmp_path)) is None
    (tmp_path / "a").mkdir()
    for name, age in (("old", 500), ("a/young", 100)):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    age_s = activity.newest_age_s(str(tmp_path))
    assert age_s is not None
    assert 99 < age_s < 130


def test_what_the_node_knows_is_gathered(run: tuple[Path, dict[str, Any]]) -> None:
    folder, status = run
    Path(status["workdir"], "train.py").write_text("print(1)\n")
    found = evidence.gather(str(folder), {})
    assert found["memory"]["total_mib"] > 100
    assert found["memory"]["available_mib"] > 0
    assert {"path", "free_mib", "total_mib", "free_inodes"} == set(found["disks"][0])
    assert len(found["top"]) == 5
    assert found["code"] == {"train.py": found["code"]["train.py"]}
    assert found["missing"] == {}
    assert json.dumps(found)


def test_a_part_that_hangs_keeps_back_nothing_of_the_rest(
    run: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A working directory on a file system whose server is gone must not cost what the kernel said.
    folder, _ = run
    over = threading.Event()
    monkeypatch.setattr(evidence, "PARTS_S", 1.0)
    monkeypatch.setattr(evidence, "hash_code", lambda _: over.wait(60))
    began = time.monotonic()
    found = evidence.gather(str(folder), {})
    over.set()
    assert time.monotonic() - began < 6
    assert found["missing"] == {"code": parts.LATE}
    assert "code" not in found
    assert found["memory"]["total_mib"] > 100
    assert len(found["disks"]) > 0


def test_a_part_that_breaks_says_why() -> None:
    def fail() -> None:
        raise PermissionError(13, "not yours")

    found, missing = parts.Parts({"a": lambda: 1, "b": fail}).take(time.monotonic() + 10)
    assert found == {"a": 1}
    assert missing == {"b": "PermissionError: [Errno 13] not yours"}


def test_the_kernel_is_heard_since_shortly_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    ages = (500.0, 100.0, 30.0)
    records = [f"4,{n},{int((now - age) * 1e6)},-;Out of memory: Killed process {n}\n" for n, age in enumerate(ages)]
    (tmp_path / "kmsg").write_text("".join(records))
    monkeypatch.setattr(kernel_log, "KMSG", str(tmp_path / "kmsg"))
    lines, why = evidence.read_kernel({"events": [{"ev": "ready", "time": clock.now() - 50}]})
    assert why == ""
    assert [text[-1] for _, text in lines] == ["1", "2"]
    assert 99 < lines[0][0] < 110
    assert len(evidence.read_kernel({"events": [{"ev": "ready", "time": clock.now() - 600}]})[0]) == 3
    monkeypatch.setattr(kernel_log, "KMSG", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert evidence.read_kernel({}) == ([], f"{tmp_path}/none: No such file or directory; no journalctl")


def test_the_groups_of_the_run_are_looked_at_and_not_those_of_who_asks() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        found = processes.read_process(process.pid)
        assert found is not None
        status = {"supervisor": {"pid": process.pid, "ticks": found.ticks, "boot_id": processes.boot_id()}}
        assert evidence.groups_of(status) == Path(f"/proc/{process.pid}/cgroup").read_text().strip()
    finally:
        process.kill()
        process.wait()
    assert evidence.groups_of(status) == Path("/proc/self/cgroup").read_text().strip()


def test_a_pipe_among_the_code_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.py")
    (tmp_path / "b.py").write_text("")
    assert list(evidence.hash_code(str(tmp_path))) == ["b.py"]


def test_code_is_compared_by_its_python_files_alone(tmp_path: Path) -> None:
    for name in ("a.py", "b/c.py", "b/__pycache__/c.py", ".venv/x.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert sorted(evidence.hash_code(str(tmp_path))) == ["a.py", "b/c.py"]
    assert evidence.hash_code("") == {}


def test_code_that_is_too_much_is_not_compared_at_all(tmp_path: Path) -> None:
    # Half of it would look like files that are missing elsewhere.
    for number in range(evidence.MOST_FILES + 1):
        (tmp_path / f"m{number}.py").write_text("")
    assert evidence.hash_code(str(tmp_path)) == {}


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/user/run\n", "user/run/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"),
        ("7:memory:/user/run\n", "memory/user/run/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
    ],
)
def test_processes_killed_for_memory_are_counted_in_both_versions(
    tmp_path: Path, cgroup: str, file: str, text: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert cgroups.oom_kills(cgroup, str(tmp_path)) == 2
    path.write_text("oom_kill_disable 0\n")
    assert cgroups.oom_kills(cgroup, str(tmp_path)) is None


def test_a_neighbour_below_the_same_group_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "memory.events").write_text("oom 3\noom_kill 5\n")
    assert cgroups.oom_kills("0::/user\n", str(tmp_path)) == 5
    (tmp_path / "user" / "memory.events.local").write_text("oom 1\noom_kill 1\n")
    assert cgroups.oom_kills("0::/user\n", str(tmp_path)) == 1


@pytest.mark.parametrize(("after", "told"), [(3, 1), (2, None)])
def test_a_rank_whose_group_lost_a_process_to_the_kernel_says_so(tmp_path: Path, after: int, told: int | None) -> None:
    agent = """import os, subprocess, sys
env = {**os.environ, "RANK": "4", "LOCAL_RANK": "0", "WORLD_SIZE": "8"}
rank = subprocess.Popen([sys.executable, "-c", "input()"], env=env)
print(rank.pid, flush=True)
sys.stdin.close()
import signal
signal.pause()
"""
    watch = ranks.RankWatch(str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", agent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        file = made_up_counter(tmp_path, Path(f"/proc/{pid}/cgroup").read_text())
        file.write_text("oom_kill 2\n")
        end = time.monotonic() + 10
        while not (events := watch.find(processes.children(process.pid))):
            assert time.monotonic() < end
        file.write_text(f"oom_kill {after}\n")
        os.kill(pid, 9)
        (handle,) = watch.handles
        assert select.select([handle], [], [], 10)[0]
        event = watch.ended(handle)
    finally:
        process.kill()
        process.communicate()
    assert events[0]["rank"] == 4
    assert (event["signal"], event.get("oom_kills")) == (9, told)


def made_up_counter(root: Path, groups: str) -> Path:
    """Give the file that counts for a process, whichever version of control groups this machine has."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            file = root / "memory" / path.lstrip("/") / "memory.oom_control"
            break
    else:
        file = root / groups.strip().split(":", 2)[2].lstrip("/") / "memory.events"
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def test_the_last_look_tells_what_the_ranks_did(
    run: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, status = run
    monkeypatch.chdir(folder)
    ranks = [event for event in status["events"] if event["ev"] == "rank"]
    look.take(ranks, "kill")
    assert look.read_looks(".") == []
    look.take(ranks, "failure")
    (taken,) = look.read_looks(str(folder))
    assert [one["rank"] for one in taken["ranks"]] == [0, 1]
    assert (taken["reason"], taken["ranks"][0]["state"], taken["ranks"][1]["state"]) == ("failure", "R", "S")
