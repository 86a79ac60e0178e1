"""Ctrl-C before the live view at a terminal: stop, detach or go on; and a controller that is killed again and again."""

from __future__ import annotations

import os
import pty
import random
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest
from cluster import Cluster, wait_for
from cluster.launcher import launch_environ, launcher_words, on_launch_host
from scenes import Scene
from test_detach import controller_pid, detached, is_gone


class Terminal:
    """A launcher whose three streams are a terminal."""

    def __init__(self, scene: Scene, *words: str) -> None:
        spec = scene.cluster.spec
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *on_launch_host(spec, launcher_words(words), scene.project)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=scene.project,
            env=launch_environ(spec, None),
        )
        os.close(theirs)
        self.shown = ""

    def read(self) -> str:
        """Read what has come; all that was shown so far."""
        while select.select([self._ours], [], [], 0.05)[0]:
            try:
                data = os.read(self._ours, 1 << 16)
            except OSError:  # the other side has ended
                break
            self.shown += data.decode("utf-8", "replace")
        return self.shown

    def wait_for(self, text: str) -> None:
        """Wait until a text is shown."""
        wait_for(lambda: text in self.read(), 30, lambda: f"{text!r}\n{self.shown}")

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    def wait(self) -> int:
        """Wait for its end."""
        wait_for(lambda: self.read() is not None and self.process.poll() is not None, 40, lambda: self.shown)
        return self.process.returncode

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@contextmanager
def terminal(scene: Scene, *words: str) -> Iterator[Terminal]:
    one = Terminal(scene, *words)
    try:
        yield one
    finally:
        one.close()


TICK = """
import time
while True:
    print("tick", flush=True)
    time.sleep(0.2)
"""


@pytest.mark.namespaces
def test_ctrl_c_asks_and_does_what_is_answered(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("tick.py", TICK)
    run_id = detached(scene, "--grace", "2s", "tick.py")
    with terminal(scene, "attach", run_id) as view:
        view.wait_for("tick")
        view.type("\x03")
        view.wait_for("[d]etach")
        # One key after the other: with Ctrl-C a terminal throws away what nobody has read yet.
        view.type("what\n")
        wait_for(lambda: view.read().count("[d]etach") == 2, 20, "it asks again")
        ticks = view.read().count("tick")
        view.type("g\n")
        wait_for(lambda: view.read().count("tick") > ticks, 20, "it goes on")
        view.type("\x03")
        wait_for(lambda: view.read().count("[d]etach") == 3, 20, "it asks once more")
        view.type("d\n")
        assert view.wait() == 0
        assert f"{run_id} goes on" in view.shown
    assert scene.pids(1, "tick.py")
    with terminal(scene, "attach", run_id) as view:
        view.wait_for("tick")
        view.type("\x03")
        view.wait_for("[s]top")
        view.type("s\n")
        assert view.wait() == 130
        assert "KILLED" in view.shown
    scene.wait_empty(10)
    assert scene.verdict()["cause"] == "stopped by Ctrl-C"


WORK = """
import hashlib, os, time
rank, end = os.environ["RANK"], time.time() + 90
digest = hashlib.sha256()
number = 0
while time.time() < end and not os.path.exists(os.path.expanduser("~/enough")):
    line = "%s %d %s\\r\\n" % (rank, number, "\\u00e9" * (number % 300))
    os.write(1, line.encode())
    digest.update(line.encode())
    number += 1
    time.sleep(0.01)
with open(os.path.join(os.environ["AORTA_OUTPUT_DIR"], "sha_" + rank), "w") as file:
    file.write(digest.hexdigest())
if rank == "1":
    raise SystemExit(3)
time.sleep(600)
"""


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_controller_killed_at_twenty_random_moments_loses_and_doubles_nothing(
    nodes3: Cluster, tmp_path: Path
) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("work.py", WORK)
    seed = int(time.time())
    print(f"seed {seed}")
    chance = random.Random(seed)
    run_id = detached(scene, "work.py")
    for number in range(20):
        view = scene.cluster.start_launcher(["attach", run_id], cwd=scene.project)
        wait_for(lambda: not is_gone(controller_pid(scene, run_id)), 20, "a controller lives")
        pause_s = chance.uniform(0.0, 2.0)
        time.sleep(pause_s)  # the moment is the subject
        view.kill()
        pid = controller_pid(scene, run_id)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda pid=pid: is_gone(pid), 10, f"controller {number} is gone")  # type: ignore[misc]
        if number == 17:
            for k in nodes3.numbers:
                (nodes3.home(k) / "enough").touch()
    last = scene.verb("attach", run_id)
    for k in nodes3.numbers:
        (nodes3.home(k) / "enough").unlink()
    assert last.exit_code == 1, last
    assert scene.verdict()["first_failure"]["rank"] == 1
    assert scene.verdict()["first_failure"]["exit_code"] == 3
    for rank in range(3):
        data = (scene.experiment / f"logs/rank_{rank:04d}.out").read_bytes()
        assert sha256(data).hexdigest() == (scene.experiment / f"outputs/sha_{rank}").read_text(), f"rank {rank}"
    scene.wait_empty(10)
    taken = len(scene.run_json()["taken_over"])
    print(f"taken over {taken} times")
    assert taken >= 5, "most moments lie within a take-over, or just behind it"
