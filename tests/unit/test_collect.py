"""The outputs of several nodes in one folder, with the real rsync."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.errors import CollectError
from orchestrator.phases.collect import Collected, collect_outputs
from orchestrator.phases.rsync import build_error
from orchestrator.plan.paths import ExperimentPaths
from orchestrator.settings import Settings
from orchestrator.transport import RsyncTarget
from orchestrator.transport.local import LocalLink
from orchestrator.values import Node, NodePlan, Plan


class BrokenLink(LocalLink):
    """A node that no shell reaches any more."""

    def rsync_target(self) -> RsyncTarget:
        return RsyncTarget(shell=("sh", "-c", "echo 'Connection refused' >&2; exit 255"), prefix="gone:")


class Nodes:
    """Run folders on this machine, one a node."""

    def __init__(self, tmp_path: Path, count: int) -> None:
        self.folders = [tmp_path / f"run {rank}" for rank in range(count)]
        self.links: list[LocalLink] = []
        for rank, folder in enumerate(self.folders):
            (folder / "outputs").mkdir(parents=True)
            (folder / "order.json").write_text("not for the launch host")
            self.links.append(LocalLink(Node(name=f"n{rank}", host="127.0.0.1")))
        self.paths = ExperimentPaths(tmp_path / "experiment")

    def write(self, rank: int, path: str, text: str) -> None:
        file = self.folders[rank] / "outputs" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def collect(self) -> list[CollectError]:
        errors = self.collected().errors
        assert all(isinstance(error, CollectError) for error in errors)
        return [error for error in errors if isinstance(error, CollectError)]

    def collected(self) -> Collected:
        nodes = tuple(
            NodePlan(
                node_rank=rank,
                node=self.links[rank].node,
                processes=1,
                first_rank=rank,
                address="127.0.0.1",
                interface="lo",
                python="python3",
                workdir="/",
                run_folder=str(folder),
                argv=(),
                env=(),
            )
            for rank, folder in enumerate(self.folders)
        )
        plan = Plan(
            run_id="r",
            attempt=0,
            project="p",
            nodes=nodes,
            master_addr="127.0.0.1",
            master_port=1,
            script=(),
            grace_s=1,
            failure_grace_s=1,
        )
        return collect_outputs(self.links, plan, self.paths, Settings())

    def came(self) -> dict[str, str]:
        top = self.paths.outputs
        return {str(file.relative_to(top)): file.read_text() for file in top.rglob("*") if file.is_file()}


def test_names_of_one_node_and_equal_content_merge_and_the_rest_is_kept_apart(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3)
    nodes.write(0, "rank_00.jsonl", "zero")
    nodes.write(1, "traces/rank 01\n.json", "one")
    for rank in range(3):
        nodes.write(rank, "same.txt", "same")
        nodes.write(rank, "log.txt", f"node {rank}")
    nodes.write(0, "x", "a file")
    nodes.write(1, "x/y", "a folder")
    assert nodes.collect() == []
    assert nodes.came() == {
        "rank_00.jsonl": "zero", "traces/rank 01\n.json": "one", "same.txt": "same",
        "node_0/log.txt": "node 0", "node_1/log.txt": "node 1", "node_2/log.txt": "node 2",
        "node_0/x": "a file", "node_1/x/y": "a folder",
    }  # fmt: skip
    assert [path.name for path in nodes.paths.root.iterdir()] == ["outputs"]


def test_a_node_that_is_gone_does_not_keep_the_others_back(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3)
    nodes.write(2, "a.txt", "two")
    nodes.links[0] = BrokenLink(nodes.links[0].node)
    nodes.folders[1].joinpath("order.json").unlink()
    nodes.folders[1].joinpath("outputs").rmdir()
    nodes.folders[1].rmdir()
    errors = nodes.collect()
    assert [error.where for error in errors] == ["n0", "n1"]
    assert "reached for control but not for rsync" in errors[0].what
    assert "Connection refused" in errors[0].what
    assert str(nodes.folders[0]) in errors[0].remedy
    assert nodes.came() == {"a.txt": "two"}


def test_a_second_try_completes_what_a_first_one_could_not(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2)
    for rank in range(2):
        nodes.write(rank, "same.txt", "same")
        nodes.write(rank, "log.txt", f"node {rank}")
    nodes.links[1], whole = BrokenLink(nodes.links[1].node), nodes.links[1]
    stale = nodes.paths.root / ".aorta-collect-killed" / "0"
    stale.mkdir(parents=True)
    assert nodes.collected().missing == ("n1",)
    assert nodes.came() == {"same.txt": "same", "log.txt": "node 0"}
    assert not stale.exists(), "of a controller that was killed while it collected"
    nodes.paths.outputs.joinpath("mine.txt").write_text("kept")
    nodes.links[1] = whole
    assert nodes.collected() == Collected()
    assert nodes.came() == {
        "same.txt": "same", "node_0/log.txt": "node 0", "node_1/log.txt": "node 1", "mine.txt": "kept"
    }  # fmt: skip


def test_a_disk_without_room_here_misses_every_node(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2)
    nodes.paths.root.write_text("in the way")
    collected = nodes.collected()
    assert collected.missing == ("n0", "n1")
    assert "outputs cannot be kept" in collected.errors[0].what


def test_nothing_written_is_no_error(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2)
    (nodes.folders[0] / "outputs").rmdir()
    assert nodes.collect() == []
    assert nodes.came() == {}


def test_links_are_kept_inside_and_dropped_when_they_lead_out(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 1)
    nodes.write(0, "step_100.pt", "weights")
    top = nodes.folders[0] / "outputs"
    (top / "latest").symlink_to("step_100.pt")
    (top / "out").symlink_to("/etc")
    (top / "up").symlink_to("../order.json")
    os.mkfifo(top / "pipe")
    assert nodes.collect() == []
    assert str((nodes.paths.outputs / "latest").readlink()) == "step_100.pt"
    assert set(nodes.came()) == {"step_100.pt", "latest"}


def test_a_second_collection_brings_the_newer_content(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 1)
    nodes.write(0, "a.txt", "old")
    nodes.collect()
    nodes.write(0, "a.txt", "newer")
    nodes.collect()
    assert nodes.came() == {"a.txt": "newer"}


@pytest.mark.parametrize(
    ("code", "text", "what", "remedy"),
    [
        (11, 'rsync: write failed on "/x": No space left on device (28)\nrsync error', "no space is left", "--workdir"),
        (11, "rsync: [receiver] mkstemp: Auf dem Gerät ist kein Speicherplatz mehr verfügbar (28)", "no space", "free"),
        (
            12,
            "sh: 1: rsync: not found\nrsync: connection unexpectedly closed",
            "not installed on the node",
            "--no-push",
        ),
        (127, "", "not installed on the node", "install rsync"),
        (12, "closed (0 bytes received so far) [Receiver]", "reached for control but not for rsync", "ssh_config"),
        (12, "closed (99 bytes received so far) [Receiver]", "broke off", "still there"),
        (11, "", "a file could not be written", "quota"),
        (255, "ssh: Could not resolve hostname x", "reached for control but not for rsync", "ssh_config"),
        (255, "@@@@@@\n@  WARNING: IT HAS CHANGED!   @\n@@@@@@\n", ": WARNING: IT HAS CHANGED!", "ssh_config"),
        (2, "protocol version mismatch -- is your shell clean?", "login shell", ".bashrc"),
        (30, "rsync error: timeout in data send/receive (code 30)", "nothing moved", "link"),
        (23, 'rsync: mkstemp "/x/.a" failed: Permission denied (13)', "no permission", "writable"),
        (99, "", "the copy failed", ""),
    ],
)
def test_rsync_failures_are_told_in_our_words(code: int, text: str, what: str, remedy: str) -> None:
    error = build_error(code, text, "n1")
    assert what in error.what
    assert remedy in error.remedy
    assert error.where == "n1"
