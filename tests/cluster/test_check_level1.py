"""Level 1 on real nodes with real torch: a slow link and a closed pair are named, and nothing is left."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cluster import Cluster, wait_for
from conftest import FreshCluster

from orchestrator.output.checks_schema import checks_schema

pytestmark = [pytest.mark.namespaces, pytest.mark.torch]


FILTER = "tc filter add dev eth0 parent ffff: protocol ip prio 1 u32"
REDIRECT = "action mirred egress redirect dev slow"


def findings(document: dict[str, Any], check: str) -> dict[int | None, dict[str, str]]:
    """What one check says, by node rank; None: of all together."""
    found: dict[int | None, dict[str, str]] = {
        node["node_rank"]: one for node in document["nodes"] for one in node["findings"] if one["check"] == check
    }
    for one in document["cluster"]:
        if one["check"] == check:
            found[None] = one
    return found


@contextmanager
def slow_pair(cluster: Cluster, k: int, peer: int, rate: str) -> Iterator[None]:
    """Hold back what node k gets from one peer; the others are as fast as before."""
    lines = [
        "ip link add slow type ifb",
        "ip link set slow up",
        f"tc qdisc add dev slow root tbf rate {rate} burst 256k latency 400ms",
        "tc qdisc add dev eth0 ingress",
        f"{FILTER} match ip src {cluster.address(peer)}/32 {REDIRECT}",
    ]
    for line in lines:
        subprocess_ok(cluster, k, *line.split())
    try:
        yield
    finally:
        subprocess_ok(cluster, k, *["tc", "qdisc", "del", "dev", "eth0", "ingress"])
        subprocess_ok(cluster, k, *["ip", "link", "del", "slow"])


def subprocess_ok(cluster: Cluster, k: int, *words: str) -> subprocess.CompletedProcess[str]:
    done = cluster.exec(k, words)
    assert done.returncode == 0, done
    return done


@pytest.mark.timeout(200)
def test_a_slow_link_and_a_closed_pair_are_each_named_with_numbers(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(4)
    nodes = cluster.write_list(tmp_path / "nodes.txt", python=cluster.python)
    # Both nodes of the closed way have other peers to meet afterwards, with whom all is well.
    closed = ("-s", cluster.address(3), "-p", "tcp", "-j", "DROP")
    with slow_pair(cluster, 4, 1, "40mbit"):
        subprocess_ok(cluster, 2, "iptables", "-w", "-I", "INPUT", *closed)
        done = cluster.run_launcher(
            ["check", "--nodes", str(nodes), "--level", "1", "--json"], cwd=tmp_path, timeout_s=150
        )
    document = json.loads(done.stdout)
    assert done.exit_code == 3, done
    links = findings(document, "links")
    assert set(links) == {0, 1}, links
    assert f"the link to {cluster.address(4)}: " in links[0]["detail"]
    pairs = {(pair["first"], pair["second"]): pair for pair in document["survey"]["collectives"]["pairs"]}
    assert pairs[0, 3]["there_mbs"] < 10 < pairs[0, 3]["back_mbs"]
    assert f"{pairs[0, 3]['there_mbs']:.1f} MB/s there" in links[0]["detail"]
    assert links[1]["status"] == "fail"
    assert f"no collectives with {cluster.address(3)}: the others did not come" in links[1]["detail"]
    assert f"ip route get {cluster.address(3)}" in links[1]["remedy"]
    assert {one["status"] for one in findings(document, "world").values()} == {"fail"}
    assert done.seconds < 150
    jsonschema.validate(document, checks_schema())


def test_healthy_nodes_are_ready_with_a_table_of_sizes(nodes3: Cluster, tmp_path: Path) -> None:
    nodes = nodes3.write_list(tmp_path / "nodes.txt", python=nodes3.python, nodes=(1, 2), extra={1: "slots=2"})
    done = nodes3.run_launcher(["check", "--nodes", str(nodes), "--level", "1"], cwd=tmp_path, timeout_s=120)
    assert done.exit_code == 0, done
    assert "world " in done.stdout
    assert "all_reduce, 2 ranks of node 0 " in done.stdout
    assert "all_reduce, 3 ranks of all nodes, gloo\nsize    time" in done.stdout
    assert "\n16 MiB  " in done.stdout
    assert "MB/s from \\ to" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_launcher_that_is_killed_or_interrupted_leaves_nothing(nodes3: Cluster, tmp_path: Path) -> None:
    before = nodes3.process_tables()
    nodes = nodes3.write_list(tmp_path / "nodes.txt", python=nodes3.python)
    for number, code in ((9, -9), (2, 130)):
        launcher = nodes3.start_launcher(["check", "--nodes", str(nodes), "--level", "1"], cwd=tmp_path)
        launcher.wait_for_text("importing torch", 60)
        wait_for(lambda: any("compile(source" in p.command for p in nodes3.process_table(2)), 30, "level 1")
        launcher.send_signal(number)
        assert launcher.wait(30).exit_code == code
        nodes3.wait_process_tables(before, 15)


def test_without_torch_level_1_says_why_it_did_not_run(nodes3: Cluster, tmp_path: Path) -> None:
    bare = f"{nodes3.spec.base_prefix}/bin/python3"
    nodes = nodes3.write_list(tmp_path / "nodes.txt", python=bare, nodes=(1, 2))
    done = nodes3.run_launcher(["check", "--nodes", str(nodes), "--level", "1", "--json"], cwd=tmp_path)
    assert done.exit_code == 3
    world = findings(json.loads(done.stdout), "world")
    assert {(one["status"], one["detail"]) for one in world.values()} == {("skip", "not run: torch failed")}
