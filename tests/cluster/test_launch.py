"""A launch that goes well: what comes to the ranks, what comes home, and what is left on the nodes, which is nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from cluster import Cluster, wait_for
from conftest import FreshCluster, wait_settled
from scenes import Scene, list_files, read_lines

PROJECT = Path(__file__).resolve().parents[2]

TELL = """
import json, os, socket, sys
rank = os.environ["RANK"]
out = os.environ["AORTA_OUTPUT_DIR"]
told = {"argv": sys.argv[1:], "env": dict(os.environ), "host": socket.gethostname(), "cwd": os.getcwd()}
json.dump(told, open(os.path.join(out, f"rank_{int(rank):02d}.json"), "w"))
open(os.path.join(out, "same.txt"), "w").write("equal everywhere")
open(os.path.join(out, "different.txt"), "w").write(rank)
os.makedirs(os.path.join(out, "deep", "er"), exist_ok=True)
open(os.path.join(out, "deep", "er", f"file of {rank}"), "w").write(rank)
sys.stdout.buffer.write(f"out {rank} \\u00e4\\n".encode() + bytes(range(256)))
sys.stderr.write(f"err {rank}\\nno newline at the end")
"""


@pytest.mark.namespaces
def test_a_good_run_leaves_a_whole_experiment_directory(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=scene.project, check=True)
    scene.write("tell.py", "# to be changed\n")
    scene.write(".gitignore", "experiments/\n")
    subprocess.run(["git", "add", "-A"], cwd=scene.project, check=True)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, "commit", "-q", "-m", "first"], cwd=scene.project, check=True)
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=scene.project, text=True).strip()
    scene.write("tell.py", TELL)
    scene.write("run.yaml", "launch:\n  script: tell.py\n  label: wide\n  ranks: '1'\ntraining:\n  steps: 5  # few\n")
    done = scene.launch("--config", "run.yaml", "--set", "training.steps=7", "--nproc-per-node", "2", "--json")
    assert done.exit_code == 0, done
    assert scene.wait_empty(10) < 10

    root, run = scene.experiment, scene.run_json()
    assert run["schema"] == 1
    assert run["run_id"] == root.name
    assert root.name.startswith("wide_")
    assert run["state"] == run["verdict"]["state"] == "succeeded"
    assert run["verdict"]["exit_code"] == 0
    assert [node["processes"] for node in run["plan"]["nodes"]] == [2, 2, 2]
    assert {version["torch"] for version in run["versions"]} == {"2.13.0"}
    assert len(run["code"]["tree_hash"]) == 64
    assert (run["code"]["commit"], run["code"]["branch"], run["code"]["dirty"]) == (commit, "main", True)
    assert "+import json, os, socket, sys" in (root / "code.diff").read_text()
    assert list(run["timings"].values()) == sorted(run["timings"].values())
    assert {"launched", "checked", "pushed", "ended", "collected"} <= set(run["timings"])
    assert "steps: 7" in (root / "config.yaml").read_text()
    assert "steps: 5" in (scene.project / "run.yaml").read_text()
    assert json.loads((root / "checks.json").read_text())["schema"] == 1

    kinds = [event["kind"] for event in scene.events()]
    assert kinds.count("rank") == kinds.count("rank_exit") == 6
    assert kinds.count("final") == 3
    assert kinds[-1] == "verdict"
    assert read_lines(done.stdout) == scene.events(), "--json shows other events than the file holds"

    for rank in range(6):
        assert (root / f"logs/rank_{rank:04d}.out").read_bytes() == f"out {rank} ä\n".encode() + bytes(range(256))
        assert (root / f"logs/rank_{rank:04d}.err").read_bytes() == f"err {rank}\nno newline at the end".encode()
    for node_rank in range(3):
        (log,) = (root / "logs").glob(f"node_{node_rank}_*.txt")
        for rank in (2 * node_rank, 2 * node_rank + 1):
            assert f"[rank {rank}] err {rank}\n".encode() in log.read_bytes()

    outputs = root / "outputs"
    assert (outputs / "same.txt").read_text() == "equal everywhere"
    assert {(outputs / f"node_{node_rank}/different.txt").read_text() for node_rank in range(3)} <= set("012345")
    assert [(outputs / f"deep/er/file of {rank}").read_text() for rank in range(6)] == list("012345")
    for rank, told in enumerate(scene.answers()):
        env, node_rank = told["env"], rank // 2
        home = nodes3.spec.home_on_node(node_rank + 1)
        assert told["cwd"] == f"{home}/.aorta/code/{scene.project.name}"
        wanted = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "6", "AORTA_NNODES": "3"}
        wanted |= {"AORTA_RUN_ID": root.name, "AORTA_NODE_RANK": str(node_rank), "GROUP_RANK": str(node_rank)}
        wanted |= {"AORTA_HOSTS": ",".join(nodes3.address(k) for k in nodes3.numbers), "PYTHONUNBUFFERED": "1"}
        wanted |= {"AORTA_OUTPUT_DIR": f"{home}/.aorta/runs/{root.name}/{node_rank}/outputs"}
        wanted |= {"AORTA_CONFIG": f"{home}/.aorta/runs/{root.name}/{node_rank}/config.yaml"}
        assert {name: env.get(name) for name in wanted} == wanted
        assert (nodes3.home(node_rank + 1) / f".aorta/runs/{root.name}/{node_rank}/config.yaml").read_text() == (
            root / "config.yaml"
        ).read_text()


def test_error_files_come_home(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    script = 'import json, os\nopen(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write(TEXT)\nraise SystemExit(3)\n'
    message = {"message": "ValueError: from the file", "extraInfo": {"py_callstack": "", "timestamp": "1"}}
    scene.write("err.py", script.replace("TEXT", repr(json.dumps({"message": message}))))
    done = scene.launch("err.py")
    assert done.exit_code == 1, done
    files = {path.name for path in (scene.experiment / "errors").iterdir()}
    assert files & {"rank_0000.json", "rank_0001.json"}, files
    assert scene.verdict()["cause"] == "ValueError: from the file"
    assert scene.verdict()["first_failure"]["exit_code"] == 3


@pytest.mark.namespaces
def test_what_the_screen_shows_and_who_wins(nodes3: Cluster, tmp_path: Path) -> None:
    """Flag over variable over config over default; a module; --ranks; --include and --exclude."""
    scene = Scene(nodes3, tmp_path)
    scene.write("pack/__init__.py", "")
    scene.write("pack/tell.py", TELL)
    config = "launch:\n  module: pack.tell\n  args: [from-config, '{node_rank}', '{run_id}']\n  nproc_per_node: 3\n"
    scene.write("c.yaml", f"{config}  label: config\n  grace_s: 11\n  env: {{A: config, B: config, C: config}}\n")
    (tmp_path / "v.env").write_text("B=file\nC=file\n")
    variables = {"AORTA_LAUNCH_NPROC_PER_NODE": "2", "AORTA_LAUNCH_LABEL": "variable"}
    words = ("--config", "c.yaml", "--env-file", str(tmp_path / "v.env"), "--env", "C=flag", "--exclude", "1", "-v")
    done = scene.launch(*words, "--label", "flag", "--ranks", "1,3", env={**variables, "D": "1"})
    assert done.exit_code == 0, done
    assert scene.experiment.name.startswith("flag_")
    told = scene.answers()
    assert [answer["host"] for answer in told] == ["node1", "node1", "node3", "node3"]
    assert [answer["argv"] for answer in told] == [
        ["from-config", str(r // 2), scene.experiment.name] for r in range(4)
    ]
    assert {(answer["env"]["A"], answer["env"]["B"], answer["env"]["C"]) for answer in told} == {
        ("config", "file", "flag")
    }
    assert all("D" not in answer["env"] for answer in told)
    assert "out 1 " in done.stdout
    assert "out 3 " in done.stdout
    assert "out 0 " not in done.stdout
    assert "out 2 " not in done.stdout
    assert "label = flag  (flag --label)" in done.stderr
    assert "nproc_per_node = 2  (variable AORTA_LAUNCH_NPROC_PER_NODE)" in done.stderr
    assert "grace_s = 11.0  (config c.yaml:" in done.stderr


def test_without_ranks_the_screen_shows_rank_0_and_with_all_every_rank(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write("tell.py", TELL)
    first = scene.launch("--include", nodes3.address(2), "--nproc-per-node", "2", "./tell.py")
    assert first.exit_code == 0, first
    assert "out 0 " in first.stdout
    assert "out 1 " not in first.stdout
    second = scene.launch("--ranks", "all", "-m", "tell", "--ranks", "0")
    assert second.exit_code == 0, second
    assert "[0:0] out 0 " in second.stdout
    assert "[1:1] out 1 " in second.stdout
    last = scene.runs()[-1]
    assert json.loads((last / "outputs/rank_00.json").read_text())["argv"] == ["--ranks", "0"]


def test_dry_run_and_print_commands_change_nothing_and_the_commands_are_the_run(
    nodes3: Cluster, tmp_path: Path
) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("tell.py", TELL)
    here, before = list_files(scene.project), {k: list_files(nodes3.home(k)) for k in nodes3.numbers}
    launch_home = list_files(nodes3.launch_home)
    done = scene.launch("--dry-run", "--env", "API_KEY=hidden-thing", "tell.py")
    assert done.exit_code == 0, done
    assert "hidden-thing" not in done.stdout + done.stderr
    printed = scene.launch("--print-commands", "--env", "X=a 'b' $c", "tell.py", "two words", "$(x)")
    assert printed.exit_code == 0, printed
    assert scene.wait_empty(10) < 10
    assert {k: list_files(nodes3.home(k)) for k in nodes3.numbers} == before
    assert list_files(scene.project) == here
    assert list_files(nodes3.launch_home) == launch_home

    # The code has to lie there; by hand one would copy it.
    blocks = [block for block in printed.stdout.split("# node ") if block.strip()]
    assert [block[0] for block in blocks] == ["0", "1", "2"]
    run_id = printed.stdout.split("AORTA_RUN_ID=")[1].split()[0]
    agents = []
    for k, block in enumerate(blocks, 1):
        command = block.split("\n", 1)[1]
        folder = nodes3.home(k) / ".aorta/code" / scene.project.name
        folder.mkdir(parents=True)
        (folder / "tell.py").write_text(TELL)
        agents.append(subprocess.Popen([*nodes3.ssh_words(k), command], stdin=subprocess.DEVNULL))
    assert [agent.wait(60) for agent in agents] == [0, 0, 0]
    for rank in range(3):
        outputs = nodes3.home(rank + 1) / f".aorta/runs/{run_id}/{rank}/outputs"
        told = json.loads((outputs / f"rank_{rank:02d}.json").read_text())
        assert told["argv"] == ["two words", "$(x)"]
        assert (told["env"]["X"], told["env"]["RANK"], told["env"]["WORLD_SIZE"]) == ("a 'b' $c", str(rank), "3")


@pytest.mark.namespaces
def test_what_stands_in_the_nodes_sessions_does_not_mislead_torchrun(
    fresh_cluster: FreshCluster, tmp_path: Path
) -> None:
    stray = "SetEnv PET_NNODES=9 PET_RDZV_ID=x RANK=5 WORLD_SIZE=77 MASTER_ADDR=10.0.0.1 AORTA_NODE_RANK=8 LOCAL_RANK=3 MINE=kept PATH=/usr/bin:/bin"
    cluster = fresh_cluster(2, sshd_options=[stray])
    assert "77" in cluster.ssh(1, "echo $WORLD_SIZE").stdout
    # What is there before is compared at the end: the session that is just ending must not be in it.
    wait_settled(cluster)
    scene = Scene(cluster, tmp_path)
    scene.write("tell.py", TELL)
    done = scene.launch("tell.py")
    assert done.exit_code == 0, done
    for rank, told in enumerate(scene.answers()):
        env = told["env"]
        assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == (str(rank), "2", "0")
        assert (env["AORTA_NODE_RANK"], env["MINE"]) == (str(rank), "kept")
        assert env["MASTER_ADDR"] == cluster.address(1)
        assert not [name for name in env if name.startswith("PET_")]

    nothing = scene.cluster.write_list(tmp_path / "bare.txt", {2: "python=/nowhere/python3"}, python="")
    bare = scene.verb("--nodes", str(nothing), "tell.py")
    assert bare.exit_code == 3, bare
    assert "/nowhere/python3" in bare.stderr
    assert "torch" in bare.stderr
    assert len(scene.runs()) == 1
    assert scene.wait_empty(10) < 10


def copy_scripts(scene: Scene) -> None:
    scene.write("scripts/verify.py", (PROJECT / "scripts/verify.py").read_text())
    for path in (PROJECT / "scripts/workload").glob("*.py"):
        scene.write(f"scripts/workload/{path.name}", path.read_text())


def check_places(scene: Scene, processes: list[int]) -> None:
    ranks = sum(processes)
    said = (scene.experiment / "logs/rank_0000.out").read_text()
    assert f"sum right: {ranks * (ranks - 1) // 2} of {ranks} ranks" in said, said
    header = next(n for n, line in enumerate(said.splitlines()) if line.startswith("rank  local rank"))
    places = [line.split() for line in said.splitlines()[header + 1 : header + 1 + ranks]]
    wanted = [(node, local) for node, count in enumerate(processes) for local in range(count)]
    assert places == [
        [str(rank), str(local), str(node), f"node{node + 1}", str(node)] for rank, (node, local) in enumerate(wanted)
    ]


@pytest.mark.torch
def test_uneven_nodes_add_up_with_the_real_torchrun(nodes3: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    scene = Scene(nodes3, tmp_path, python=nodes3.python, extra={1: "slots=1", 2: "slots=3", 3: "slots=2"})
    copy_scripts(scene)
    done = scene.launch("scripts/verify.py", timeout_s=110)
    assert done.exit_code == 0, done
    print(f"1+3+2 ranks of verify.py: {done.seconds:.1f} s")
    check_places(scene, [1, 3, 2])


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.namespaces
@pytest.mark.timeout(400)
def test_eight_nodes_with_two_ranks_each_add_up(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    cluster = fresh_cluster(8)
    scene = Scene(cluster, tmp_path, python=cluster.python)
    copy_scripts(scene)
    done = scene.launch("--nproc-per-node", "2", "scripts/verify.py", timeout_s=300)
    assert done.exit_code == 0, done
    print(f"8 nodes x 2 ranks of verify.py: {done.seconds:.1f} s")
    check_places(scene, [2] * 8)
    wait_for(lambda: cluster.process_tables() == scene.before, 10, "every node is empty")
