"""Log files that outgrow their space, on a node and here: freed there, told here, every other byte intact."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, wait_for
from scenes import Scene, wait_running
from test_detach import controller_pid
from test_volume import rss_mib

from orchestrator.phases.loggaps import Gap, join_gaps, read_gaps

MIB = 1 << 20
BLOCK = 1 << 16
LINE = 128
FLOOD = f"""
import json, os, sys, time
rank, most, seconds, rate = int(os.environ["RANK"]), int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
begin = time.monotonic()
number, slowest = 0, 0.0
while number < most and time.monotonic() - begin < seconds:
    data = (b"%0{LINE - 1}d\\n" % number) * ({BLOCK} // {LINE})
    before = time.monotonic()
    assert os.write(1, data) == len(data)
    slowest = max(slowest, time.monotonic() - before)
    number += 1
    time.sleep(max(0.0, begin + number * {BLOCK} / rate - time.monotonic()))
seconds = time.monotonic() - begin
answer = dict(bytes=number * {BLOCK}, rate=number * {BLOCK} / seconds, slowest=slowest)
with open(os.path.join(os.environ["AORTA_OUTPUT_DIR"], "rank_%d.json" % rank), "w") as file:
    json.dump(answer, file)
"""
"""Writes blocks whose content follows from their place: most blocks, most seconds, bytes a second."""
STEADY = """
import os, time
number = 0
while not os.path.exists(os.path.expanduser("~/enough")):
    os.write(1, b"%04095d\\n" % number)
    number += 1
    time.sleep(0.02)
print("wrote", number, "lines", flush=True)
"""


def told_gaps(experiment: Path, name: str) -> list[Gap]:
    """The told gaps of one log file."""
    return read_gaps(experiment / "logs/gaps.jsonl").get(name, [])


def check_bytes(path: Path, size: int, gaps: Sequence[Gap]) -> None:
    """Every byte is what the rank wrote there, or lies in a told gap and is nothing."""
    assert path.stat().st_size == size
    with path.open("rb") as file:
        for number in range(size // BLOCK):
            begin = number * BLOCK
            wanted = bytearray((b"%0*d\n" % (LINE - 1, number)) * (BLOCK // LINE))
            for start, end in gaps:
                first, last = max(start, begin), min(end, begin + BLOCK)
                if first < last:
                    wanted[first - begin : last - begin] = bytes(last - first)
            assert file.read(BLOCK) == wanted, f"block {number} of {path.name}"


def check_ranks(scene: Scene) -> list[int]:
    """Check the file of every rank; give how many bytes of each were dropped."""
    dropped = []
    for rank, answer in enumerate(scene.answers()):
        name = f"rank_{rank:04d}.out"
        gaps = told_gaps(scene.experiment, name)
        check_bytes(scene.experiment / "logs" / name, answer["bytes"], gaps)
        events = [event for event in scene.events("gap") if event["file"] == "0.out" and event["rank"] == rank]
        assert join_gaps([(event["from"], event["to"]) for event in events]) == gaps
        dropped.append(sum(end - start for start, end in gaps))
        print(
            f"rank {rank}: {answer['bytes'] / MIB:.0f} MiB at {answer['rate'] / 1e6:.0f} MB/s, slowest write"
            f" {answer['slowest']:.3f} s, {dropped[-1] / MIB:.0f} MiB in {len(gaps)} gaps"
        )
    return dropped


def held_mib(cluster: Cluster, k: int) -> float:
    """What the log files of all runs on a node take."""
    files = (cluster.home(k) / ".aorta/runs").rglob("stdout.log")
    return sum(file.stat().st_blocks * 512 for file in files) / MIB


def node_status(scene: Scene, k: int, node_rank: int) -> dict[str, Any]:
    """The status file of the only run on a node."""
    path = scene.cluster.home(k) / f".aorta/runs/{scene.experiment.name}/{node_rank}/status.json"
    status: dict[str, Any] = json.loads(path.read_text())
    return status


def test_what_outgrows_its_space_is_dropped_and_told(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write("flood.py", FLOOD)
    before = [held_mib(nodes3, k) for k in (1, 2)]
    words = ["--ranks", "all", "flood.py", "4096", "60", "2e8"]
    done = scene.launch(*words, env={"AORTA_LAUNCH_LOG_SPACE_MIB": "4"})
    assert done.exit_code == 0, done.stderr
    dropped = check_ranks(scene)
    assert all(0 < size <= 253 * MIB for size in dropped)
    for rank, k in enumerate((1, 2)):
        assert held_mib(nodes3, k) - before[rank] <= 4
        assert node_status(scene, k, rank)["punched"]["0.out"] >= 252 * MIB
        assert done.stderr.count(f"MiB of the output of rank {rank} on {nodes3.address(k)} were dropped there") == 1
    assert "MiB were dropped here)" in done.stdout
    merged = (scene.experiment / f"logs/node_0_{nodes3.address(1)}.txt").read_bytes()
    assert "[rank 0 …] (".encode() in merged
    assert b"\0" not in merged
    assert b"MiB were dropped here)" in merged


def test_logs_that_fit_are_whole_and_zeros_in_them_stay(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1])
    scene.write("zeros.py", "import os\nos.write(1, b'one\\n' + bytes(3 << 20) + b'two\\n')\n")
    done = scene.launch("zeros.py", env={"AORTA_LAUNCH_LOG_SPACE_MIB": "4"})
    assert done.exit_code == 0, done.stderr
    assert (scene.experiment / "logs/rank_0000.out").read_bytes() == b"one\n" + bytes(3 << 20) + b"two\n"
    assert not (scene.experiment / "logs/gaps.jsonl").exists()


@pytest.mark.long
def test_told_gaps_live_through_the_end_of_a_controller(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1])
    scene.write("flood.py", FLOOD)
    launcher = scene.start("flood.py", "1024", "60", "30e6", env={"AORTA_LAUNCH_LOG_SPACE_MIB": "4"})
    wait_running(launcher, 1)
    log = scene.experiment / "logs/rank_0000.out"
    wait_for(lambda: log.exists() and log.stat().st_size > 4 * MIB, 30, "some of the log is here")
    os.kill(controller_pid(scene, scene.experiment.name), signal.SIGKILL)
    launcher.process.wait()
    size = log.stat().st_size
    wait_for(lambda: node_status(scene, 1, 0)["punched"].get("0.out", 0) > size + 8 * MIB, 30, "more is dropped")
    done = scene.verb("attach")
    assert done.exit_code == 0, done
    gaps = told_gaps(scene.experiment, "rank_0000.out")
    assert any(start <= size < end for start, end in gaps)
    check_bytes(log, 64 * MIB, gaps)
    assert "MiB of the output of rank 0" in done.stderr


@contextmanager
def small_runs(cluster: Cluster, k: int, size_mib: float) -> Iterator[str]:
    """Put the run folders of a node on a small file system."""
    path = f"{cluster.spec.home_on_node(k)}/.aorta/runs"
    cluster.mount_small(k, path, size_mib)
    cluster.exec(k, ["chown", "-R", cluster.spec.user, str(Path(path).parent)]).check_returncode()
    try:
        yield path
    finally:
        cluster.unmount(k, path)


def used_mib(cluster: Cluster, k: int, path: str) -> float:
    """What is used of a file system on a node."""
    return int(cluster.exec(k, ["df", "-k", "--output=used", path]).stdout.split()[-1]) / 1024


@pytest.mark.long
@pytest.mark.namespaces
def test_a_file_system_that_frees_nothing_is_told_and_logs_are_whole(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[2])
    scene.write("flood.py", FLOOD)
    script = 'mkdir -p "$1" && mount -t ramfs ramfs "$1" && chown "$2" "$1"'
    runs = f"{nodes3.spec.home_on_node(2)}/.aorta/runs"
    nodes3.exec(2, ["sh", "-c", script, "sh", runs, nodes3.spec.user]).check_returncode()
    try:
        done = scene.launch("flood.py", "128", "60", "8e6", env={"AORTA_LAUNCH_LOG_SPACE_MIB": "2"})
    finally:
        nodes3.unmount(2, runs)
    assert done.exit_code == 0, done
    told = f"warning: {nodes3.address(2)}: old parts of log files cannot be freed on this file system"
    assert done.stderr.count(told) == 1
    assert len(scene.events("log_space")) == 1
    assert check_ranks(scene) == [0]


@pytest.mark.long
@pytest.mark.namespaces
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("rate", "least"), [("100e6", 50e6), ("1e12", 20e6)])
def test_a_flood_neither_stalls_its_rank_nor_fills_a_disk_nor_our_memory(
    nodes3: Cluster, tmp_path: Path, rate: str, least: float
) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[2])
    scene.write("flood.py", FLOOD)
    used: list[float] = []
    memory: list[float] = []
    with small_runs(nodes3, 2, 128) as path:
        before = used_mib(nodes3, 2, path)
        words = ["--ranks", "all", "flood.py", "1000000", "10", rate]
        launcher = scene.start(*words, env={"AORTA_LAUNCH_LOG_SPACE_MIB": "32"})
        wait_running(launcher, 1)

        def ended() -> bool:
            used.append(used_mib(nodes3, 2, path) - before)
            memory.append(rss_mib(launcher.process.pid))
            return not launcher.running

        wait_for(ended, 200, "the run ends")
        done = launcher.wait(5)
    assert done.exit_code == 0, done.stderr
    check_ranks(scene)
    (answer,) = scene.answers()
    print(f"{max(used):.0f} MiB at most on the node; launcher {memory[0]:.0f} to {max(memory):.0f} MiB")
    assert max(used) < 128
    assert max(memory) - memory[0] < 60
    assert answer["slowest"] < 2
    assert answer["rate"] > least


@pytest.mark.long
@pytest.mark.namespaces
def test_what_was_missed_on_a_full_disk_here_comes_when_it_has_space_again(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1])
    scene.write("steady.py", STEADY)
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], check=True)
    try:
        launcher = scene.start("--experiments-dir", str(small), "steady.py")
        wait_running(launcher, 1)
        (experiment,) = small.iterdir()
        log = experiment / "logs/rank_0000.out"
        wait_for(lambda: log.exists() and log.stat().st_size > 40960, 60, "the log grows")
        filler = (small / "filler").open("wb", buffering=0)
        with pytest.raises(OSError, match="No space"):  # noqa: PT012 - until nothing goes in any more
            while True:
                filler.write(bytes(4096))
        launcher.wait_for_text("logs cannot be written here", 30)
        time.sleep(1)
        filler.truncate(0)
        filler.close()
        launcher.wait_for_text("logs can be written here again", 30)
        (nodes3.home(1) / "enough").touch()
        done = launcher.wait(60)
        text = log.read_bytes()
    finally:
        (nodes3.home(1) / "enough").unlink(missing_ok=True)
        subprocess.run(["umount", "-l", str(small)], check=True)
    assert done.exit_code == 0, done.stderr
    lines = text.split(b"\n")
    assert lines[-2] == b"wrote %d lines" % (len(lines) - 2)
    assert lines[:-2] == [b"%04095d" % number for number in range(len(lines) - 2)]
