"""The launcher is killed at any moment of a run: whoever attaches next brings it to a true end."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
from cluster import Cluster, wait_for
from scenes import Scene

LINES = 100
COUNT = f"""
import os, time
for number in range({LINES}):
    print(os.environ["RANK"], number, "x" * 50, flush=True)
    time.sleep(0.01)
"""
TIMES = 20
LONGEST_S = 4.0
"""Push, start, run and collection of this size are over by then."""


@pytest.mark.long
@pytest.mark.namespaces
@pytest.mark.timeout(600)
def test_a_launcher_that_is_killed_at_any_moment_leaves_a_run_that_attach_brings_to_its_end(
    nodes3: Cluster, tmp_path: Path
) -> None:
    seed = int(os.environ.get("AORTA_TESTS_SEED", str(random.SystemRandom().randrange(10**6))))
    dice = random.Random(seed)
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write("count.py", COUNT)
    wanted = ["".join(f"{rank} {number} {'x' * 50}\n" for number in range(LINES)) for rank in (0, 1)]
    ends: dict[int, int] = {}
    known: set[Path] = set()
    for number in range(TIMES):
        launcher = scene.start("--grace", "1s", "count.py")
        moment = (number + dice.random()) * LONGEST_S / TIMES
        wait_for(lambda: bool(set(scene.runs()) - known), 60, "the run is known")
        threading.Event().wait(moment)
        launcher.kill()
        (run,) = set(scene.runs()) - known
        known.add(run)
        done = scene.verb("attach", run.name)
        ends[done.exit_code] = ends.get(done.exit_code, 0) + 1
        where = f"seed {seed}, killed after {moment:.2f} s: {done}"
        assert done.exit_code in (0, 3), where
        scene.wait_empty(30)
        if done.exit_code == 0:
            for rank in (0, 1):
                assert (run / f"logs/rank_{rank:04d}.out").read_text() == wanted[rank], where
    print(f"seed {seed}: exit code of attach, and how often: {ends}")
    assert ends.get(0), "no run came far enough"
    assert scene.verb("kill").exit_code == 2, "a run still counts as live"
