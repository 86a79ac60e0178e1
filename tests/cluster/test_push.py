"""The code's way to real nodes: once for each file system, proved by hash, never into what is not ours."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, start_cluster

from orchestrator.errors import PushError
from orchestrator.phases.carry import Packer, bring_paths
from orchestrator.phases.collect import collect_outputs
from orchestrator.phases.connect import connect
from orchestrator.phases.push import Pushed, push_code
from orchestrator.phases.workdir import Keeper
from orchestrator.plan.paths import ExperimentPaths
from orchestrator.settings import Settings
from orchestrator.transport import Link
from orchestrator.values import Node, NodePlan, Plan

pytestmark = pytest.mark.namespaces
SHARED = "/tmp/shared"


@dataclass
class Bench:
    """Three nodes with links to them, and a project that node 1 sees as its own folder, by the same path."""

    cluster: Cluster
    project: Path
    config: Path
    links: list[Link] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)

    def settings(self, **values: Any) -> Settings:
        return Settings(project=self.project, experiments_dir=self.project / "experiments", **values)

    def push(self, *numbers: int, **values: Any) -> Pushed:
        self.copies.clear()
        return push_code([self.links[k - 1] for k in numbers], (), self.settings(**values), "run")

    def sh(self, k: int, command: str) -> str:
        done = self.cluster.exec(k, ["sh", "-c", command])
        assert done.returncode == 0, done
        return done.stdout


def snapshot(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Mode, time and content of everything below a folder, the folder itself included."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        info = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (info.st_mode, info.st_mtime_ns, content)
    return found


@pytest.fixture(scope="module")
def shared_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("push")
    project = folder / "project"
    project.mkdir()
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    with start_cluster(3, shared={SHARED: (1, 2), str(project): (0, 1)}) as cluster:
        config = folder / "config"
        config.write_text(
            f"Host *\n User {cluster.spec.user}\n IdentityFile {cluster.identity}\n IdentitiesOnly yes\n"
            f" IdentityAgent none\n UserKnownHostsFile {cluster.known_hosts}\n GlobalKnownHostsFile /dev/null\n"
        )
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
        program.chmod(0o755)
        bench = Bench(cluster, project, program.parent)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
            nodes = [Node(name=f"node{k}", host=cluster.address(k), local=False) for k in cluster.numbers]
            bench.links = connect(nodes, bench.settings())
            yield bench
        for link in bench.links:
            link.close()


@pytest.fixture(params=["over the link", "by rsync"])
def bench(shared_bench: Bench, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Bench:
    """The bench with a project of two files, and a count of the copies that are made."""
    for entry in shared_bench.project.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    (shared_bench.project / "pkg").mkdir()
    (shared_bench.project / "train.py").write_text("print('train')\n")
    (shared_bench.project / "pkg/caf\udce9 $(id)'.py").write_text("x = 1\n")

    def counted(keeper: Keeper, packer: Packer, workdir: str, paths: Sequence[str]) -> None:
        shared_bench.copies.append(keeper.node)
        bring_paths(keeper, packer, workdir, paths)

    monkeypatch.setattr("orchestrator.phases.push.bring_paths", counted)
    if request.param == "by rsync":
        monkeypatch.setattr("orchestrator.phases.carry.CARRIED_BYTES", -1)
    monkeypatch.setenv("HOME", str(shared_bench.cluster.launch_home))
    monkeypatch.setenv("PATH", f"{shared_bench.config}:{os.environ['PATH']}")
    return shared_bench


def test_two_nodes_share_a_folder_and_a_third_does_not(bench: Bench) -> None:
    workdir = f"{SHARED}/code of mine"
    bench.sh(1, f"rm -rf '{workdir}'")
    bench.sh(3, f"rm -rf '{workdir}'")
    before = snapshot(bench.project)
    pushed = bench.push(1, 2, 3, workdir=workdir)
    assert sorted(bench.copies) == ["node1", "node3"]
    assert (pushed.folders_pushed, pushed.workdirs) == (2, (workdir,) * 3)
    sums = {
        bench.sh(
            k,
            f"cd '{workdir}' && find . -path ./.aorta-code -prune -o -type f -print0 | sort -z | xargs -0 cat | sha256sum",
        )
        for k in (1, 2, 3)
    }
    assert len(sums) == 1
    assert snapshot(bench.project) == before
    again = bench.push(1, 2, 3, workdir=workdir)
    assert (bench.copies, again.folders_pushed, again.tree_hash) == ([], 0, pushed.tree_hash)


def test_the_launch_hosts_own_tree_is_used_in_place(bench: Bench) -> None:
    (bench.project / "checkpoints").mkdir()
    (bench.project / "checkpoints/last.pt").write_text("weights")
    bench.sh(2, f"rm -rf '{bench.project}'")
    before = snapshot(bench.project)
    pushed = bench.push(1, 2, workdir=str(bench.project))
    assert bench.copies == ["node2"]
    assert pushed.folders_pushed == 1
    assert snapshot(bench.project) == before


def test_a_folder_of_somebody_else_stays_as_it_is(bench: Bench) -> None:
    bench.sh(3, "mkdir -p /tmp/thesis && echo years >/tmp/thesis/thesis.tex")
    with pytest.raises(PushError, match="not made by aorta-launch") as caught:
        bench.push(3, workdir="/tmp/thesis")
    assert (caught.value.where, "--workdir" in caught.value.remedy) == ("node3", True)
    assert bench.sh(3, "ls -A /tmp/thesis; cat /tmp/thesis/*") == "thesis.tex\nyears\n"


def test_what_is_gone_here_goes_there_and_what_the_run_made_stays(bench: Bench) -> None:
    workdir = bench.push(3).workdirs[0]
    assert workdir == f"{bench.cluster.spec.home_on_node(3)}/.aorta/code/project"
    bench.sh(3, f"mkdir -p {workdir}/checkpoints && echo w >{workdir}/checkpoints/1.pt && echo l >{workdir}/loss.txt")
    shutil.rmtree(bench.project / "pkg")
    bench.push(3)
    assert bench.sh(3, f"cd {workdir} && ls").split() == ["checkpoints", "loss.txt", "train.py"]


def test_a_full_disk_is_told_and_repaired_by_the_next_push(bench: Bench) -> None:
    (bench.project / "big.bin").write_bytes(os.urandom(3 << 20))
    bench.cluster.mount_small(3, "/tmp/small", 1)
    with pytest.raises(PushError, match="no space is left") as caught:
        bench.push(3, workdir="/tmp/small/code")
    assert caught.value.where == "node3"
    assert "free space" in caught.value.remedy
    (bench.project / "big.bin").unlink()
    bench.push(3, workdir="/tmp/small/code")
    assert bench.sh(3, "ls /tmp/small/code").split() == ["pkg", "train.py"]
    bench.cluster.unmount(3, "/tmp/small")


def test_a_shell_that_prints_does_no_harm(bench: Bench) -> None:
    bench.sh(3, "echo 'echo welcome to node3' >>~/.bashrc")
    try:
        bench.push(3, workdir="/tmp/noisy")
        assert bench.sh(3, "ls /tmp/noisy").split()[-2:] == ["pkg", "train.py"]
    finally:
        bench.sh(3, "sed -i '/welcome to node3/d' ~/.bashrc")


def test_outputs_come_back_from_the_nodes_that_still_answer(bench: Bench, tmp_path: Path) -> None:
    nodes = []
    for k in (1, 2, 3):
        folder = f"{bench.cluster.spec.home_on_node(k)}/.aorta/runs/r/{k - 1}"
        bench.sh(k, f"mkdir -p {folder}/outputs && cd {folder}/outputs && echo {k} >rank_{k}.txt && echo {k} >log.txt")
        nodes.append(
            NodePlan(
                node_rank=k - 1, node=bench.links[k - 1].node, processes=1, first_rank=k - 1, address="", interface="",
                python="", workdir="", run_folder=folder, argv=(), env=(),
            )
        )  # fmt: skip
    plan = Plan(
        run_id="r", attempt=1, project="p", nodes=tuple(nodes), master_addr="", master_port=1, script=(), grace_s=1,
        failure_grace_s=1,
    )  # fmt: skip
    paths = ExperimentPaths(tmp_path / "experiment")
    bench.cluster.stop_sshd(3)
    try:
        errors = collect_outputs(bench.links, plan, paths, bench.settings()).errors
    finally:
        bench.cluster.start_sshd(3)
    assert [error.where for error in errors] == ["node3"]
    assert "reached for control but not for rsync" in errors[0].what
    came = {str(file.relative_to(paths.outputs)) for file in paths.outputs.rglob("*") if file.is_file()}
    assert came == {"rank_1.txt", "rank_2.txt", "node_0/log.txt", "node_1/log.txt"}
