"""The pretend machines do what the other tests take for granted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster import Cluster, ClusterError, PsSampler, start_cluster, wait_for
from conftest import FreshCluster

PROJECT = Path(__file__).resolve().parents[2]
INTERFACES = Path("/sys/class/net")


def read(cluster: Cluster, k: int, command: str) -> str:
    done = cluster.ssh(k, command)
    assert done.returncode == 0, done
    return done.stdout.strip()


def connects(address: str, port: int, timeout_s: float) -> str:
    try:
        with socket.create_connection((address, port), timeout_s) as link:
            link.settimeout(timeout_s)
            return "banner" if link.recv(4) == b"SSH-" else "closed"
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silent"
    except OSError:
        return "no route"


@pytest.mark.namespaces
def test_nodes_look_like_machines_of_their_own(nodes3: Cluster) -> None:
    for file in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/hostname"):
        here = Path(file).read_text().strip() if Path(file).exists() else ""
        values = {read(nodes3, k, f"cat {file}") for k in nodes3.numbers}
        assert len(values | {here}) == 4, file
    assert read(nodes3, 2, "hostname") == "node2"
    assert read(nodes3, 2, "getent hosts node3").split() == [nodes3.address(3), "node3"]
    assert read(nodes3, 1, "ls -A /dev/shm; ls -A /home").split() == ["train"]


@pytest.mark.namespaces
def test_project_is_hidden_and_nothing_can_be_written_there(nodes3: Cluster) -> None:
    assert PROJECT.joinpath("pyproject.toml").exists()
    assert read(nodes3, 1, f"ls -A {PROJECT} 2>/dev/null; true") == ""
    assert nodes3.ssh(1, f"touch {PROJECT}/x").returncode != 0


def test_home_is_each_nodes_own(nodes3: Cluster) -> None:
    for k in nodes3.numbers:
        assert read(nodes3, k, 'echo $HOSTNAME >~/who; pwd; echo "$HOME"').split() == [nodes3.spec.home_on_node(k)] * 2
        assert (nodes3.home(k) / "who").exists()
        (nodes3.home(k) / "who").unlink()
        assert not (nodes3.home(k % 3 + 1) / "who").exists()


@pytest.mark.namespaces
def test_tmp_of_a_node_is_private(nodes3: Cluster) -> None:
    read(nodes3, 1, "touch /tmp/mine /dev/shm/mine /var/tmp/mine")
    assert not [p for p in ("/tmp/mine", "/dev/shm/mine", "/var/tmp/mine") if Path(p).exists()]
    assert nodes3.ssh(2, "ls /tmp/mine /dev/shm/mine /var/tmp/mine").stdout == ""
    read(nodes3, 1, "rm /tmp/mine /dev/shm/mine /var/tmp/mine")


@pytest.mark.torch
def test_python_with_the_real_torch_is_there(nodes3: Cluster) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    out = read(nodes3, 3, f"{nodes3.python} -c 'import torch; print(torch.__version__, torch.__cached__)' 2>/dev/null")
    assert out.startswith("2."), out
    assert Path(out.split()[1].replace(f"{nodes3.spec.state}/venv", sys.prefix)).exists(), "byte code is not reused"


def test_process_table_is_equal_after_a_command_and_shows_what_stays(nodes3: Cluster) -> None:
    before = nodes3.process_table(2)
    read(nodes3, 2, "true")
    nodes3.wait_process_table(2, before, 5)
    pid = int(read(nodes3, 2, "nohup sleep 87 >/dev/null 2>&1 & echo $!"))
    # Until its exec the sleep still has the words of nohup.
    wait_for(lambda: [p.command for p in nodes3.process_table(2) - before] == ["sleep 87"], 5, "only the sleep is new")
    (left,) = nodes3.process_table(2) - before
    assert (left.pid, left.command) == (pid, "sleep 87")
    with pytest.raises(AssertionError, match="sleep 87"):
        nodes3.wait_process_table(2, before, 0.05)
    nodes3.kill_process(2, pid)
    nodes3.wait_process_table(2, before, 5)


@pytest.mark.namespaces
def test_some_nodes_share_folders(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    project = tmp_path / "project"
    cluster = fresh_cluster(3, shared_home=(1, 2), shared={"/tmp/data": (2, 3), str(project): (0, 1)}, gpus=2)
    read(cluster, 1, "echo hello >~/note")
    assert read(cluster, 2, "cat ~/note") == "hello"
    assert cluster.ssh(3, "cat ~/note").returncode != 0
    read(cluster, 2, "echo data >/tmp/data/note")
    assert read(cluster, 3, "cat /tmp/data/note") == "data"
    assert cluster.ssh(1, "ls /tmp/data").returncode != 0
    read(cluster, 1, f"echo code >{project}/train.py")
    assert (project / "train.py").read_text() == "code\n"
    assert read(cluster, 3, "nvidia-smi -L | wc -l") == "2"
    query = "nvidia-smi --query-gpu=index,memory.total,driver_version --format=csv,noheader,nounits"
    assert read(cluster, 1, query).splitlines() == ["0, 81559, 570.00", "1, 81559, 570.00"]
    assert read(cluster, 1, "bash -lc 'command -v nvidia-smi'")


@pytest.mark.namespaces
def test_faults_of_the_network_are_felt_and_taken_back(fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(2)
    one, port = cluster.address(1), 22
    assert connects(one, port, 2) == "banner"
    with socket.create_connection((one, port), 2) as standing:
        standing.settimeout(0.3)
        assert standing.recv(64).startswith(b"SSH-")
        cluster.drop(1)
        assert connects(one, port, 0.3) == "silent"
        standing.sendall(b"SSH-2.0-x\r\n")
        with pytest.raises(TimeoutError):
            standing.recv(64)  # the server's key exchange never comes: open connections are in the hole too
    assert connects(cluster.address(2), port, 2) == "banner"
    cluster.undrop(1)
    cluster.drop(1, 22)
    assert connects(one, port, 0.3) == "silent"
    assert connects(one, 23, 2) == "refused"
    cluster.undrop(1)
    cluster.block_port(1, 22, "reject")
    assert connects(one, port, 2) == "refused"
    cluster.undrop(1)
    cluster.block_port(1, 22, "drop")
    assert connects(one, port, 0.3) == "silent"
    cluster.undrop(1)
    assert connects(one, port, 2) == "banner"
    cluster.link(1, "down")
    assert connects(one, port, 0.3) in {"silent", "no route"}
    cluster.link(1, "up")
    wait_for(lambda: connects(one, port, 0.5) == "banner", 10, "the link is back")


@pytest.mark.namespaces
def test_slow_link_and_full_disk(fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(1)
    seconds = []
    for rate in (None, "4mbit"):
        cluster.rate(1, rate)
        begin = time.monotonic()
        assert len(cluster.ssh(1, "head -c 1000000 /dev/zero").stdout) == 1_000_000
        seconds.append(time.monotonic() - begin)
    # 1 MB less what the shaper lets through at once takes 1.48 s; a busy machine can only make it longer.
    assert seconds[1] > 1.4 > seconds[0], seconds
    cluster.rate(1, None)
    cluster.mount_small(1, "/root/.aorta", 1)
    read(cluster, 1, "echo fits >~/.aorta/x")
    cluster.fill(1, "/root/.aorta")
    assert "No space left" in cluster.ssh(1, "echo more than nothing >~/.aorta/y").stderr
    cluster.unmount(1, "/root/.aorta")
    read(cluster, 1, "echo fits >~/.aorta/y")
    with pytest.raises(ClusterError):
        cluster.fill(1, "/root")


@pytest.mark.namespaces
def test_a_node_is_held_to_its_share_of_a_core(fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(1, cpus={1: 0.25})
    script = "import time;e=time.monotonic()+1\nwhile time.monotonic()<e: pass\nprint(time.process_time())"
    used_s = float(read(cluster, 1, f"{cluster.fake_python} -c '{script}'"))
    assert used_s < 0.5, used_s


def test_sshd_can_be_frozen_stopped_and_started_with_other_options(fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(2)
    one, port = cluster.address(1), cluster.spec.ssh_port
    cluster.freeze_sshd(1)
    assert connects(one, port, 0.3) == "silent"
    cluster.thaw_sshd(1)
    assert connects(one, port, 5) == "banner"
    cluster.stop_sshd(1)
    assert connects(one, port, 2) == "refused"
    cluster.start_sshd(1, "DenyUsers=*")
    assert "Permission denied" in cluster.ssh(1, "true").stderr
    cluster.restart_sshd(1)
    before = cluster.process_table(1)
    assert read(cluster, 1, "echo back") == "back"
    cluster.wait_process_table(1, before, 5)


def test_power_off(fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(2)
    read(cluster, 1, "nohup sleep 86 >/dev/null 2>&1 &")
    cluster.kill_node(1)
    assert not cluster.alive(1)
    assert cluster.alive(2)
    wait_for(lambda: not cluster.process_table(1), 5, "nothing runs on a node that is off")
    assert connects(cluster.address(1), cluster.spec.ssh_port, 0.3) != "banner"
    assert read(cluster, 2, "echo on") == "on"


def test_sampler_catches_a_planted_leak_on_a_node_and_only_that(nodes3: Cluster) -> None:
    with PsSampler("planted-5ecret", "kept-5ecret") as sampler:
        # In the environment of a process, where ps of other users does not look, it is no leak.
        script = f"import time; time.sleep(0.5)  # {'planted'}-5ecret"
        read(nodes3, 2, f"{nodes3.fake_python} -c '{script}'")
        subprocess.run(["sleep", "0.1"], env={**os.environ, "KEPT": "kept-5ecret"}, check=True)
    assert {leak.secret for leak in sampler.leaks} == {"planted-5ecret"}
    assert any("time.sleep" in leak.command for leak in sampler.leaks)
    assert sampler.rate_hz >= 20, sampler.rate_hz


def start_agents(
    cluster: Cluster, counts: list[int], port: int, script: str, *words: str
) -> list[subprocess.CompletedProcess[str]]:
    def start(node_rank: int) -> subprocess.CompletedProcess[str]:
        agent = [cluster.fake_python, "-m", "torch.distributed.run", "--nnodes", str(len(counts))]
        agent += ["--node-rank", str(node_rank), "--nproc-per-node", str(counts[node_rank]), "--rdzv-id", "r.a0"]
        agent += ["--master-addr", cluster.address(1), "--master-port", str(port), "--rdzv-conf", "timeout=10"]
        agent += ["--max-restarts", "0", "--monitor-interval", "0.05", "--redirects", "3", "--log-dir", "ranks", *words]
        return cluster.exec(node_rank + 1, [*agent, "script.py", "a b", "--x"])

    for k in cluster.numbers:
        (cluster.home(k) / "script.py").write_text(script)
    with ThreadPoolExecutor(len(counts)) as pool:
        return list(pool.map(start, range(len(counts))))


SHOW = """
import os, sys
print(*(os.environ[n] for n in "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_PORT".split()), sys.argv[1:])
"""


def test_fake_torchrun_gives_ranks_in_node_order(nodes3: Cluster) -> None:
    done = start_agents(nodes3, [1, 3, 2], 29711, SHOW)
    assert [d.returncode for d in done] == [0, 0, 0], done
    pattern = "ranks/r.a0_????????/attempt_0/*/stdout.log"
    logs = [log for k in nodes3.numbers for log in sorted(nodes3.home(k).glob(pattern))]
    seen = [log.read_text().strip() for log in logs]
    words = "['a b', '--x']"
    places = [(0, 0, 1, 0), (1, 0, 3, 1), (2, 1, 3, 1), (3, 2, 3, 1), (4, 0, 2, 2), (5, 1, 2, 2)]
    assert seen == [f"{rank} {local} 6 {size} {node} 29711 {words}" for rank, local, size, node in places]


def test_fake_torchrun_says_that_the_port_is_taken(nodes3: Cluster) -> None:
    taker = subprocess.Popen(
        [
            *nodes3.ssh_words(1),
            f"exec {nodes3.fake_python} -c 'import socket;s=socket.socket();s.bind((\"\",29712));s.listen();print(1,flush=True);import sys;sys.stdin.read()'",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert taker.stdout is not None
    assert taker.stdin is not None
    assert taker.stdout.readline() == b"1\n"
    (done,) = start_agents(nodes3, [1], 29712, SHOW)
    assert done.returncode == 1
    assert "EADDRINUSE, message: address already in use" in done.stderr
    taker.stdin.close()
    taker.wait()
    taker.stdout.close()


def test_fake_torchrun_on_a_failing_rank(nodes3: Cluster) -> None:
    script = "import os,sys,time\nif os.environ['RANK']=='1': sys.exit(7)\ntime.sleep(0.8 if os.environ['RANK'] == '0' else 60)"
    done = start_agents(nodes3, [1, 2], 29713, script)
    assert [d.returncode for d in done] == [0, 1], "the other node is not told"
    assert "exitcode  : 7" in done[1].stderr.split("Root Cause")[1]
    assert "rank      : 2 (local_rank: 1)" in done[1].stderr.split("Root Cause")[0]
    assert "Signal 15 (SIGTERM) received" in done[1].stderr


def test_fake_torchrun_killed_leaves_its_ranks_and_stopped_takes_them(nodes3: Cluster) -> None:
    script = "import pathlib,time; pathlib.Path('up').write_text('x'); time.sleep(60)"
    (nodes3.home(1) / "script.py").write_text(script)
    for number, left in ((signal.SIGTERM, 0), (signal.SIGKILL, 1)):
        before = nodes3.process_table(1)
        up = nodes3.home(1) / "up"
        up.unlink(missing_ok=True)
        agent = f"{nodes3.fake_python} -m torch.distributed.run --master-port 29714 script.py"
        client = subprocess.Popen([*nodes3.ssh_words(1), f"echo $$; exec {agent} </dev/null"], stdout=subprocess.PIPE)
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        wait_for(up.exists, 10, "the rank runs")
        nodes3.kill_process(1, pid, number)
        wait_for(lambda p=pid: p not in {q.pid for q in nodes3.process_table(1)}, 10, "the agent ends")  # type: ignore[misc]
        ranks = [p for p in nodes3.process_table(1) - before if p.command.endswith("script.py")]
        assert len(ranks) == left, ranks
        for rank in ranks:
            nodes3.kill_process(1, rank.pid)
        client.wait(10)
        client.stdout.close()
        nodes3.wait_process_table(1, before, 5)


def remains(state: str) -> list[str]:
    tag = Path(state).name
    assert state.startswith("/tmp/"), "the cluster did not come up"
    found = [f"interface {name}" for name in INTERFACES.glob(f"{tag}-*")]
    found += [f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines() if state + "/" in line]
    found += [f"group {path}" for path in Path("/sys/fs/cgroup").glob(f"*/{tag}-*")]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if state + "/" in words or words.strip().endswith(state):
            found.append(f"process {entry.name} {words}")
    return found + ([f"folder {state}"] if Path(state).exists() else [])


def read_net_namespaces() -> set[str]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(str(entry.readlink()))
        except OSError:
            continue
    return found


def test_down_leaves_nothing(tmp_path: Path) -> None:
    before = read_net_namespaces()
    with pytest.raises(ZeroDivisionError), start_cluster(2) as cluster:  # noqa: PT012 - its clean-up is the subject
        state = cluster.spec.state
        nodes = {str(Path(f"/proc/{cluster.pid(k)}/ns/net").readlink()) for k in cluster.numbers}
        assert len(nodes - before) == (2 if cluster.spec.namespaces else 0)
        read(cluster, 1, "setsid nohup sleep 85 >/dev/null 2>&1 &")
        cluster.start_launcher(["--help"], cwd=tmp_path)
        assert remains(state)
        raise ZeroDivisionError
    wait_for(lambda: not remains(state), 5, lambda: f"nothing left: {remains(state)}")
    assert not nodes - before & read_net_namespaces()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_owner_is_killed(number: int) -> None:
    script = "from cluster import start_cluster; c = start_cluster(1); print(c.spec.state, flush=True); input()"
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    state = owner.stdout.readline().strip()
    assert remains(state)
    owner.send_signal(number)
    owner.wait()
    wait_for(lambda: not remains(state), 10, lambda: f"nothing left: {remains(state)}")
    owner.stdout.close()
    assert owner.stdin is not None
    owner.stdin.close()
