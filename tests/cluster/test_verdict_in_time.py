"""How long it takes from the end of the first rank to the verdict on the screen."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from conftest import FreshCluster
from live_failures.scripts import HEAD
from scenes import Scene, seconds_of

ALLOWED_S = 3.0
LATITUDE = 3
"""Other tests run beside this one."""
RAISES = (
    HEAD
    + """
wait_for_go()
if RANK == 5:
    raise LookupError("bucket 5 of 8 is empty")
work_on()
"""
)


@pytest.mark.namespaces
def test_the_verdict_is_on_the_screen_in_time_at_8_nodes(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(8)
    scene = Scene(cluster, tmp_path)
    scene.write("job.py", RAISES)
    launcher = scene.start("--no-check", "--grace", "2s", "job.py")
    launcher.wait_for_text("running: 8 ranks", 90)
    run_id = scene.experiment.name
    home = cluster.spec.home_on_node(6)
    go = f"{home}/.aorta/runs/{run_id}/5/outputs/go"
    assert cluster.exec(6, ["touch", go]).returncode == 0
    launcher.wait_for_text("FAILED after", 60)
    printed = time.time()
    done = launcher.wait(60)
    assert done.exit_code == 1, done
    first = scene.verdict()["first_failure"]
    assert (first["rank"], first["node_rank"]) == (5, 5)
    assert re.search("bucket 5 of 8 is empty", scene.verdict()["cause"]), done
    (ended,) = (event["time"] for event in scene.events("rank_exit") if event["rank"] == 5)
    took_s = printed - seconds_of(ended)
    print(f"verdict printed {took_s:.2f} s after the end of the first rank, 8 nodes")
    assert took_s < ALLOWED_S * LATITUDE
    scene.wait_empty(15)
