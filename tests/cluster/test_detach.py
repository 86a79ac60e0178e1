"""Runs that nobody watches: --detach, attach, and a controller that dies."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from cluster import Cluster, wait_for
from scenes import SLEEP, STUBBORN, Scene, wait_running

LINES = 60
COUNT = """
import os, sys, time
for number in range(int(sys.argv[1])):
    print(os.environ["RANK"], number, "x" * 50, flush=True)
    time.sleep(0.05)
open(os.path.join(os.environ["AORTA_OUTPUT_DIR"], "rank_%s.txt" % os.environ["RANK"]), "w").write("done")
"""
RAISE_LATER = """
import os, sys, time
print("rank", os.environ["RANK"], "runs", flush=True)
while not (os.environ["RANK"] == "1" and os.path.exists(os.path.expanduser("~/raise_now"))):
    time.sleep(0.05)
raise ValueError("batch 17 holds no tokens")
"""


def wanted(rank: int, lines: int = LINES) -> str:
    return "".join(f"{rank} {number} {'x' * 50}\n" for number in range(lines))


def controller_pid(scene: Scene, run_id: str) -> int:
    """The process that controls a run, as its lock names it."""
    lock = scene.cluster.launch_home / f".aorta/launches/{run_id}.lock"
    wait_for(lambda: lock.exists() and "\n" in lock.read_text(), 20, "the controller has its lock")
    return int(json.loads(lock.read_text().partition("\n")[0])["pid"])


def end_controller(scene: Scene, number: int = signal.SIGKILL) -> None:
    """Signal the controller of the only run and wait for its end."""
    pid = controller_pid(scene, scene.experiment.name)
    os.kill(pid, number)
    wait_for(lambda: is_gone(pid), 10, "the controller is gone")


def is_gone(pid: int) -> bool:
    """It has ended; a launcher that the test itself started is a zombie until it is waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


def detached(scene: Scene, *words: str) -> str:
    """Start a run in the background; give its id."""
    done = scene.launch("--detach", *words)
    assert done.exit_code == 0, done
    run_id = done.stdout.strip()
    assert run_id == scene.experiment.name
    return run_id


def rank_file(scene: Scene, rank: int) -> str:
    path = scene.experiment / f"logs/rank_{rank:04d}.out"
    return path.read_text() if path.exists() else ""


def wait_lines(scene: Scene, text: str, ranks: int = 3) -> None:
    """Wait until every rank's file on the launch host holds a text."""
    wait_for(lambda: all(text in rank_file(scene, rank) for rank in range(ranks)), 60, f"{text!r} of every rank")


def test_detach_gives_the_shell_back_and_attach_shows_the_rest(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("count.py", COUNT)
    run_id = detached(scene, "count.py", str(LINES))
    again = scene.cluster.start_launcher(["attach", run_id, "--ranks", "all"], cwd=scene.project)
    attached = scene.verb("attach", run_id)
    assert attached.exit_code == 0, attached
    assert attached.stderr.count("SUCCEEDED") == 1
    assert f"0 {LINES - 1} x" in attached.stdout
    other = again.wait(30)
    assert other.exit_code == 0, other
    assert all(f"[{rank}:{rank}] {rank} {LINES - 1} x" in other.stdout for rank in range(3))
    assert [rank_file(scene, rank) for rank in range(3)] == [wanted(rank) for rank in range(3)]
    assert len(list((scene.experiment / "outputs").iterdir())) == 3
    scene.wait_empty(10)
    ended = scene.verb("attach", run_id)
    assert ended.exit_code == 0
    assert "SUCCEEDED" in ended.stderr


@pytest.mark.long
def test_a_detached_launch_that_cannot_start_says_so_and_ends_with_its_code(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, python="/nowhere/python3")
    scene.write("sleep.py", SLEEP)
    done = scene.launch("--detach", "sleep.py")
    assert done.exit_code == 3, done
    assert "/nowhere/python3" in done.stderr
    assert done.stdout == ""
    scene.wait_empty(10)


def test_a_killed_launcher_is_replaced_by_attach_and_no_byte_is_lost(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("count.py", COUNT)
    launcher = scene.start("--ranks", "all", "count.py", str(LINES + 40))
    wait_running(launcher, 3)
    wait_lines(scene, " 20 x")
    end_controller(scene)
    launcher.process.wait()
    two = [scene.cluster.start_launcher(["attach", scene.experiment.name], cwd=scene.project) for _ in range(2)]
    ended = [one.wait(60) for one in two]
    assert [one.exit_code for one in ended] == [0, 0], ended
    took = [one for one in ended if "a new one has taken it over" in one.stderr]
    assert took, ended
    assert [rank_file(scene, rank) for rank in range(3)] == [wanted(rank, LINES + 40) for rank in range(3)]
    scene.wait_empty(10)
    assert len(scene.run_json()["taken_over"]) == 1, "two who attach at once share one controller"
    kinds = [event["kind"] for event in scene.events()]
    assert kinds.count("rank") == kinds.count("rank_exit") == 3, "what was known is not told again"
    merged = "".join(path.read_text() for path in (scene.experiment / "logs").glob("node_*.txt"))
    assert merged.count("\n") == merged.count("[rank ") == 3 * (LINES + 40)


@pytest.mark.long
def test_a_run_that_ended_without_a_controller_is_completed(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("count.py", COUNT)
    run_id = detached(scene, "count.py", str(LINES))
    end_controller(scene)
    scene.wait_empty(30)
    assert "verdict" not in scene.run_json()
    shown = scene.verb("status", run_id)
    assert shown.exit_code == 0, shown
    assert scene.verdict()["state"] == "succeeded"
    assert [rank_file(scene, rank) for rank in range(3)] == [wanted(rank) for rank in range(3)]
    assert len(list((scene.experiment / "outputs").iterdir())) == 3
    assert scene.verb("attach", run_id).exit_code == 0


@pytest.mark.parametrize("verb", ["attach", pytest.param("status", marks=pytest.mark.long)])
def test_without_a_controller_a_failed_node_empties_itself_and_the_next_verb_stops_the_others(
    nodes3: Cluster, tmp_path: Path, verb: str
) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("raise.py", RAISE_LATER)
    run_id = detached(scene, "raise.py")
    wait_lines(scene, " runs")
    end_controller(scene)
    flag = nodes3.home(2) / "raise_now"
    flag.touch()
    begin = time.monotonic()
    nodes3.wait_process_table(2, scene.before[2], 10)
    print(f"node 2 empty {time.monotonic() - begin:.2f} s after its rank raised")
    flag.unlink()
    assert scene.pids(1, "raise.py")
    assert scene.pids(3, "raise.py"), "nobody has told the other nodes"
    done = scene.verb(verb, run_id)
    assert "ValueError: batch 17 holds no tokens" in done.stdout + done.stderr, done
    assert done.exit_code == (1 if verb == "attach" else 0)
    scene.wait_empty(10)
    assert scene.verdict()["state"] == "failed"
    assert scene.verdict()["first_failure"]["rank"] == 1


def test_kill_reaches_a_background_run_through_its_controller(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("deaf.py", STUBBORN)
    run_id = detached(scene, "deaf.py")
    wait_lines(scene, "is deaf")
    pid = controller_pid(scene, run_id)
    done = scene.verb("kill", run_id, "--grace", "1s")
    assert done.exit_code == 0, done
    assert done.stdout.count("none left") == 3
    assert scene.verdict()["cause"] == "stopped by aorta-launch kill"
    assert scene.verdict()["exit_code"] == 143
    wait_for(lambda: is_gone(pid), 20, "the controller ends")
    scene.wait_empty(5)


def test_kill_ends_a_launch_that_is_still_pushing(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("sleep.py", SLEEP)
    (scene.project / "big.bin").write_bytes(os.urandom(80_000_000))
    launcher = scene.start("sleep.py")
    wait_for(lambda: bool(scene.pids(1, "rsync")), 60, "rsync runs on a node")
    done = scene.verb("kill", scene.experiment.name)
    ended = launcher.wait(30)
    assert done.exit_code == 0, done
    assert ended.exit_code == 143, ended
    assert scene.run_json()["state"] == "not started"
    scene.wait_empty(10)


def test_a_closed_terminal_leaves_the_run_to_the_background(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("count.py", COUNT)
    launcher = scene.start("count.py", str(LINES))
    wait_running(launcher, 3)
    launcher.send_signal(signal.SIGHUP)
    attached = scene.verb("attach", scene.experiment.name)
    assert attached.exit_code == 0, attached
    assert launcher.wait(30).exit_code == 0
    assert "taken_over" not in scene.run_json()


@pytest.mark.long
def test_sigterm_to_a_background_controller_leaves_the_run_for_attach(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("count.py", COUNT)
    run_id = detached(scene, "count.py", str(LINES))
    wait_lines(scene, " 2 x")
    end_controller(scene, signal.SIGTERM)
    assert scene.pids(1, "count.py")
    attached = scene.verb("attach", run_id)
    assert attached.exit_code == 0, attached
    assert [rank_file(scene, rank) for rank in range(3)] == [wanted(rank) for rank in range(3)]


@pytest.mark.long
def test_ctrl_c_without_a_terminal_ends_only_the_view(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("sleep.py", SLEEP)
    run_id = detached(scene, "sleep.py")
    view = scene.cluster.start_launcher(["attach", run_id], cwd=scene.project)
    view.wait_for_text("sleeps", 30)
    view.press_ctrl_c()
    left = view.wait(20)
    assert left.exit_code == 130, left
    assert f"{run_id} goes on" in left.stderr
    assert scene.pids(1, "sleep.py")
    assert scene.verb("kill", run_id, "--grace", "2s").exit_code == 0
    scene.wait_empty(10)


@pytest.mark.long
def test_a_lease_that_nobody_renews_stops_the_run(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("sleep.py", SLEEP)
    scene.write("c.yaml", "launch: {on_disconnect: stop, lease_s: 7, grace_s: 1}\n")
    run_id = detached(scene, "--config", "c.yaml", "sleep.py")
    wait_lines(scene, "sleeps")
    end_controller(scene)
    begin = time.monotonic()
    took_s = scene.wait_empty(30)
    print(f"lease of 7 s: empty after {took_s:.1f} s")
    assert time.monotonic() - begin > 1
    done = scene.verb("attach", run_id)
    assert done.exit_code == 143, done
    assert "no controller for 7 s" in done.stderr


def test_kill_with_a_signal_tells_the_ranks_and_stops_nothing(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write(
        "listen.py",
        "import os, signal, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('rank', os.environ['RANK'], 'heard it', flush=True))\n"
        "print('rank', os.environ['RANK'], 'listens', flush=True)\n"
        "time.sleep(600)\n",
    )
    run_id = detached(scene, "listen.py")
    wait_lines(scene, "listens")
    done = scene.verb("kill", run_id, "--signal", "USR1")
    assert done.exit_code == 0, done
    assert [f"USR1 sent to rank {rank}" in done.stdout for rank in range(3)] == [True] * 3
    wait_lines(scene, "heard it")
    end_controller(scene)
    assert scene.verb("kill", run_id, "--signal", "USR1").exit_code == 0, "straight to the nodes"
    wait_for(lambda: rank_count(scene, "heard it") == 3, 20, "it came again")
    assert scene.verb("kill", run_id, "--signal", "NONSENSE").exit_code == 2
    assert scene.verb("kill", run_id, "--grace", "2s").exit_code == 0
    scene.wait_empty(10)
    assert rank_count(scene, "heard it") == 6, "what came while nobody watched is here as well"
    assert scene.verdict()["state"] == "killed"


def rank_count(scene: Scene, text: str) -> int:
    return sum(rank_file(scene, rank).count(text) for rank in range(3))
