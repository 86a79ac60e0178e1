"""Other agents than torchrun, and the library that every run's ranks find."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from cluster import Cluster, wait_for
from scenes import Scene

JOIN = """
import os, sys
# Under -S nothing is installed; torch is all that is wanted of what is.
sys.path.append("%s/lib/python%d.%d/site-packages" % (os.path.dirname(os.path.dirname(sys.executable)), *sys.version_info[:2]))
import orchestrator, orchestrator.distributed as helpers
import torch, torch.distributed as dist
url, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method=url, rank=rank, world_size=world)
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
print("step", rank, "sum", total.item(), helpers.__file__, getattr(orchestrator, "__file__", None), flush=True)
dist.destroy_process_group()
"""
FAIL = """
import sys, time
node_rank = int(sys.argv[1])
print("node", node_rank, "begins", flush=True)
if node_rank == 1:
    time.sleep(3)
    raise ValueError("bad news")
time.sleep(600)
"""
DEAF = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, env={})
print("step", 12, "of", os.environ["NODE_RANK"], flush=True)
time.sleep(600)
"""
FIND = """
import importlib.util, json, os
spec = importlib.util.find_spec("orchestrator.distributed")
place = os.path.join(os.environ["AORTA_OUTPUT_DIR"], f"rank_{os.environ['RANK']}.json")
json.dump([spec.origin, os.environ["PYTHONPATH"]], open(place, "w"))
raise SystemExit(int(os.environ["RANK"]) == 3 and "FAIL" in os.environ and 9)
"""


def pair(nodes: Cluster, tmp_path: Path, python: str | None = None) -> Scene:
    return Scene(nodes, tmp_path, nodes=[1, 2], python=python)


@pytest.mark.torch
def test_a_command_joins_by_tcp_and_finds_the_library_where_nothing_is_installed(
    nodes3: Cluster, tmp_path: Path
) -> None:
    scene = pair(nodes3, tmp_path, nodes3.python)
    scene.write("join.py", JOIN)
    words = '["{python}", -S, join.py, "tcp://{master_addr}:{master_port}", "{node_rank}", "{nnodes}"]'
    scene.write("c.yaml", f"launch:\n  agent: command\n  command: {words}\n  ranks: all\n")
    done = scene.launch("--config", "c.yaml", "--nproc-per-node", "1", env={"OMP_NUM_THREADS": "1"})
    assert done.exit_code == 0, done
    assert "running: 2 commands for 2 ranks on 2 nodes" in done.stderr
    run = scene.experiment.name
    for rank in range(2):
        home = nodes3.spec.home_on_node(rank + 1)
        place = f"{home}/.aorta/runs/{run}/{rank}/library/orchestrator/distributed/__init__.py"
        said = f"step {rank} sum 3.0 {place} None\n"
        assert (scene.experiment / f"logs/rank_{rank:04d}.out").read_text() == said
        assert said in done.stdout
    assert scene.run_json()["plan"]["agent"] == "command"
    scene.wait_empty(10)


def test_a_command_that_fails_is_told_by_node_exit_code_and_words(nodes3: Cluster, tmp_path: Path) -> None:
    scene = pair(nodes3, tmp_path)
    scene.write("fail.py", FAIL)
    done = scene.launch("--agent", "command", "--command", "{python} -u fail.py {node_rank}", "--nproc-per-node", "2")
    assert done.exit_code == 1, done
    name = nodes3.address(2)
    assert f"the command on {name} ended with exit code 1; stopping the other nodes" in done.stderr
    verdict, first = scene.verdict(), scene.verdict()["first_failure"]
    assert verdict["cause"] == "ValueError: bad news"
    assert (first["node"], first["rank"], first["exit_code"]) == (name, None, 1)
    assert "/fail.py:7 in <module>" in first["traceback"]
    # Nobody can tell the output of a command's ranks apart: it stands under the first rank of its node.
    assert "ValueError: bad news" in (scene.experiment / "logs/rank_0002.err").read_text()
    assert (scene.experiment / "logs/rank_0000.out").read_text() == "node 0 begins\n"
    assert "node 0 begins" in done.stdout
    scene.wait_empty(10)
    told = scene.verb("why", scene.experiment.name)
    assert "ValueError: bad news" in told.stdout


def test_the_ranks_that_a_command_starts_are_watched(nodes3: Cluster, tmp_path: Path) -> None:
    scene = pair(nodes3, tmp_path)
    scene.write("find.py", FIND)
    own = "--nnodes {nnodes} --node-rank {node_rank} --nproc-per-node {nproc_per_node} --master-addr {master_addr}"
    rest = "--master-port {master_port} --rdzv-id x --rdzv-conf timeout=60 --max-restarts 0 --monitor-interval 0.1"
    words = f"{{python}} -m torch.distributed.run {own} {rest} --redirects 3 --log-dir {{output_dir}}/x -- find.py"
    flags = ("--agent", "command", "--nproc-per-node", "2", "--env", "FAIL=1", "--env", "PYTHONPATH=src")
    done = scene.launch(*flags, "--command", words)
    assert done.exit_code == 1, done
    assert {event["rank"] for event in scene.events("rank")} == {0, 1, 2, 3}
    first = scene.verdict()["first_failure"]
    # What a torchrun inside of the command reaps before it is looked at has no code; then its node alone is sure.
    assert (first["rank"], first["exit_code"]) == (3, 9) or (first["node"], first["exit_code"]) == (
        nodes3.address(2),
        None,
    )
    origin, path = scene.answers()[-1]
    assert path.startswith("src:/")
    assert path.endswith("/library")
    assert origin == path.removeprefix("src:") + "/orchestrator/distributed/__init__.py"
    scene.wait_empty(10)


def test_status_logs_and_kill_of_a_detached_command(nodes3: Cluster, tmp_path: Path) -> None:
    scene = pair(nodes3, tmp_path)
    scene.write("deaf.py", DEAF)
    words = ("--agent", "command", "--command", "sh -c '{python} deaf.py; true'")
    run = scene.launch("--detach", *words).stdout.strip()
    try:
        wait_for(lambda: "step 12" in scene.verb("logs", run, "--rank", "1").stdout, 30, "the output of node 2")
        told = json.loads(scene.verb("status", run, "--json").stdout)
        assert told["state"] == "running"
        assert [[rank["rank"] for rank in node["ranks"]] for node in told["nodes"]] == [[0], [1]]
        assert {rank["step"] for node in told["nodes"] for rank in node["ranks"]} == {12}
    finally:
        killed = scene.verb("kill", run, "--grace", "1s")
    assert killed.exit_code == 0, killed
    scene.wait_empty(10)
    wait_for(lambda: bool(scene.run_json().get("verdict")), 20, "the verdict")
    assert scene.verdict()["state"] == "killed"


def test_a_program_that_no_node_has_ends_the_run(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    done = scene.launch("--agent", "command", "--command", "/no/such/program x")
    assert done.exit_code == 1, done
    assert "the agent did not start there (certain)" in done.stderr
    assert "No such file or directory: '/no/such/program'" in done.stderr
    assert "silent" not in done.stderr
    scene.wait_empty(10)


def test_what_cannot_start_is_refused_before_anything_does(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2], extra={1: "slots=2", 2: "slots=1"})
    scene.write("find.py", FIND)
    one, two = nodes3.address(1), nodes3.address(2)
    # Without checks the plan refuses them.
    unequal = scene.launch("--equal-nodes", "--no-check", "find.py")
    assert unequal.exit_code == 3, unequal
    assert f"1 on {two}; 2 on {one}" in unequal.stderr
    assert "slots= in the node list" in unequal.stderr
    missing = scene.launch("--agent", "accelerate", "find.py")
    assert missing.exit_code == 3, missing
    assert "no accelerate in" in missing.stderr
    assert two in missing.stderr
    assert scene.runs() == []
    scene.wait_empty(10)


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed: the extra `examples`")
@pytest.mark.parametrize("processes", [2, 1])
def test_accelerate_starts_the_ranks(nodes3: Cluster, tmp_path: Path, processes: int) -> None:
    """Also of a user who once answered `accelerate config` with something else."""
    scene = pair(nodes3, tmp_path, nodes3.python)
    scene.write(
        "train.py",
        "import sys, torch\nfrom accelerate import Accelerator\na = Accelerator()\nt = torch.ones(1)\n"
        "print(a.process_index, 'of', a.num_processes, a.reduce(t, 'sum').item(), sys.argv[1:], flush=True)\n"
        "if 'fail' in sys.argv and a.process_index == 1:\n    raise ValueError('bad news')\n"
        "a.end_training()\n",
    )
    left = nodes3.home(1) / ".cache/huggingface/accelerate/default_config.yaml"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_text("compute_environment: AMAZON_SAGEMAKER\nnonsense: [\n")
    nodes = () if processes == 2 else ("--include", nodes3.address(1))
    done = scene.launch("--agent", "accelerate", *nodes, "--nproc-per-node", str(processes), "train.py", "--num", "--")
    assert done.exit_code == 0, done
    world = 4 if processes == 2 else 1
    for rank in range(world):
        said = f"{rank} of {world} {float(world)} ['--num', '--']\n"
        assert (scene.experiment / f"logs/rank_{rank:04d}.out").read_text() == said
    scene.wait_empty(10)
    if processes == 2:
        assert {event["rank"] for event in scene.events("rank")} == {0, 1, 2, 3}
        failed = scene.launch("--agent", "accelerate", "--nproc-per-node", "2", "train.py", "fail")
        assert failed.exit_code == 1, failed
        verdict = json.loads((scene.runs()[-1] / "run.json").read_text())["verdict"]
        assert (verdict["cause"], verdict["first_failure"]["rank"]) == ("ValueError: bad news", 1)
        scene.wait_empty(10)
