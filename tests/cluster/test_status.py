"""`status`: how a run stands, by its controller, straight from its nodes, and from the record when it is over."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import struct
import termios
import time
from pathlib import Path

import pytest
from cluster import Cluster, wait_for
from conftest import FreshCluster
from scenes import Scene, wait_running
from test_attach_terminal import terminal

STEPS = """
import os, sys, time
rank = int(os.environ["RANK"])
for step in range(1, 4):
    print(f"step {step} loss 0.5", flush=True)
sys.stdout.write(f"rank {rank} at step {10 + rank}\\rrank {rank} at step {20 + rank}")
sys.stdout.flush()
open(os.path.join(os.environ["AORTA_OUTPUT_DIR"], "started"), "w").close()
time.sleep(600)
"""
UNTIL = """
import os, sys, time
print("step", 5, flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.mark.namespaces
def test_a_live_run_with_and_without_its_controller(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("steps.py", STEPS)
    launcher = scene.start("--nproc-per-node", "2", "steps.py")
    wait_running(launcher, 6)
    run_id = scene.experiment.name

    def asked(*words: str) -> list[str]:
        begin = time.monotonic()
        done = scene.verb("status", *words)
        print(f"status {' '.join(words)}: {time.monotonic() - begin:.2f} s")
        assert done.exit_code == 0, done
        return done.stdout.splitlines()

    wait_for(lambda: "25" in "".join(asked(run_id)), 30, "all ranks are at their last step")
    through = asked()
    assert through[0].startswith(f"{run_id}  running  ")
    assert through[1] == f"controller pid {launcher.process.pid}, in the foreground"
    for k, line in zip(nodes3.numbers, through[-3:], strict=True):
        words = line.split()
        assert words[:4] == [str(k - 1), nodes3.address(k), "running", f"{2 * k - 2}-{2 * k - 1}"], line
        assert words[4] in map(str, scene.pids(k, "torch.distributed.run"))
        assert f"{2 * k + 18}-{2 * k + 19}  rank {2 * k - 2} at step {2 * k + 18}" in line

    launcher.kill()
    straight = asked(run_id[:-2], "-v")
    assert straight[1] == f"no controller: aorta-launch attach {run_id}"
    assert sum("  running  " in line for line in straight) == 1 + 3 + 6
    document = json.loads("\n".join(asked("--json")))
    assert (document["schema"], document["state"], document["controller"]) == (1, "running", None)
    first = document["nodes"][0]
    assert first["supervisor"]["alive"]
    assert first["heartbeat_age_s"] < 30
    assert [(rank["rank"], rank["state"], rank["step"]) for rank in first["ranks"]] == [
        (0, "running", 20),
        (1, "running", 21),
    ]
    assert scene.verb("kill", "--grace", "2s").exit_code == 0
    scene.wait_empty(5)
    assert scene.verb("status").exit_code == 2, "no run is live"


@pytest.mark.namespaces
def test_watch_ends_with_the_run_and_a_finished_one_is_told_from_its_record(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("until.py", UNTIL)
    over = f"/tmp/over_{tmp_path.name[-8:]}"
    launcher = scene.start("until.py", over)
    wait_running(launcher, 3)
    watch = nodes3.start_launcher(["status", "--watch", "--every", "0.2"], cwd=scene.project)
    watch.wait_for_text("step 5", 60)
    for k in nodes3.numbers:
        assert nodes3.exec(k, ["touch", over]).returncode == 0
    assert launcher.wait(30).exit_code == 0
    done = watch.wait(30)
    assert done.exit_code == 0, done
    assert done.stdout.count(scene.experiment.name) >= 2
    assert "SUCCEEDED" in done.stdout
    told = scene.verb("status", scene.experiment.name)
    assert told.exit_code == 0, told
    assert told.stdout.startswith(f"{scene.experiment.name}  succeeded  ")
    assert "SUCCEEDED" in told.stdout
    assert "controller" not in told.stdout
    document = json.loads(scene.verb("status", scene.experiment.name, "--json").stdout)
    assert (document["live"], document["nodes"], document["verdict"]["exit_code"]) == (False, [], 0)


@pytest.mark.long
def test_ctrl_c_at_a_terminal_ends_a_watch_and_touches_nothing(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write("steps.py", STEPS)
    launcher = scene.start("steps.py")
    wait_running(launcher, 2)
    with terminal(scene, "status", "--watch", "--every", "0.2") as view:
        fcntl.ioctl(view._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        wait_for(lambda: view.read().count("0 " + nodes3.address(1)) >= 3, 60, lambda: view.shown)
        view.type("\x03")
        assert view.wait() == 0
    rows = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", view.shown).replace("\r", "\n").splitlines()
    assert "Traceback" not in view.shown
    assert max(len(row) for row in rows if row.startswith("0 ")) <= 60
    assert any(row.startswith("0 ") and row.endswith("…") for row in rows), rows
    assert launcher.running
    assert scene.verb("kill", "--grace", "2s").exit_code == 0
    assert launcher.wait(30).exit_code == 143
    scene.wait_empty(5)


@pytest.mark.namespaces
def test_without_a_controller_a_failure_is_brought_to_its_end(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("steps.py", STEPS)
    launcher = scene.start("--grace", "2s", "steps.py")
    wait_running(launcher, 3)
    launcher.kill()
    (rank,) = (pid for pid in scene.pids(2, "steps.py") if pid not in scene.pids(2, "torch.distributed.run"))
    nodes3.kill_process(2, rank, signal.SIGKILL)
    nodes3.wait_process_table(2, scene.before[2], 30)
    assert scene.pids(1, "steps.py"), "the others do not know yet"
    begin = time.monotonic()
    done = scene.verb("status")
    print(f"status that settles: {time.monotonic() - begin:.2f} s")
    assert done.exit_code == 0, done
    assert "FAILED" in done.stdout
    assert f"rank 1 (node 1 {nodes3.address(2)}" in done.stdout
    scene.wait_empty(5)
    assert scene.verdict()["state"] == "failed"


@pytest.mark.long
@pytest.mark.namespaces
def test_a_node_that_cannot_be_asked_and_a_driver_that_hangs(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(3, gpus=2)
    scene = Scene(cluster, tmp_path)
    scene.write("steps.py", STEPS)
    launcher = scene.start("--nproc-per-node", "2", "steps.py")
    wait_running(launcher, 6)
    (cluster.folder(2) / "nvidia_smi.sleep").write_text("60\n")
    table = cluster.folder(1) / "gpus.csv"
    table.write_text(table.read_text().replace(",81559,4,0,", ",81559,61000,87,"))
    begin = time.monotonic()
    done = scene.verb("status", "-v")
    print(f"status with a driver that hangs, through the controller: {time.monotonic() - begin:.2f} s")
    assert done.exit_code == 0, done
    assert "2 GPUs 87 % 60/80 GiB" in done.stdout
    assert "GPUs: nvidia-smi gave no answer within 5 s" in done.stdout
    assert time.monotonic() - begin < 25
    assert "suspect" not in launcher.stderr

    launcher.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    done = scene.verb("status")
    print(f"status with a controller that stands still: {time.monotonic() - begin:.2f} s")
    assert done.exit_code == 0, done
    assert f"its controller, pid {launcher.process.pid} on " in done.stdout
    assert "does not answer" in done.stdout
    assert f"2 {cluster.address(3)}  running" in done.stdout

    launcher.kill()
    cluster.stop_sshd(3)
    done = scene.verb("status", "--connect-timeout", "3s")
    assert done.exit_code == 1, done
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"2 {cluster.address(3)}"))
    assert "unreachable" in line
    assert "running" in done.stdout
    document = json.loads(scene.verb("status", "--json", "--connect-timeout", "3s").stdout)
    assert document["nodes"][1]["gpus"] is None
    assert document["nodes"][2]["contact"] == "unreachable"
    cluster.start_sshd(3)
    (cluster.folder(2) / "nvidia_smi.sleep").unlink()
    table.write_text(table.read_text().replace(",81559,61000,87,", ",81559,4,0,"))
    killed = scene.verb("kill", "--grace", "2s")
    assert killed.exit_code == 0, killed
    assert killed.stdout.count("none left, GPU memory as before") == 3
    scene.wait_empty(5)
