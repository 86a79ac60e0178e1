"""What `aorta-launch check` finds on real nodes: each thing broken for real, on one node, and named."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from asking import check
from cluster import Cluster, wait_for
from conftest import FreshCluster

PORT = 29444


@pytest.mark.namespaces
def test_three_nodes_are_ready_and_prove_their_addresses(nodes3: Cluster, tmp_path: Path) -> None:
    checked = check(nodes3, tmp_path)
    assert checked.failing() == set()
    assert (checked.exit_code, checked.document["ready"]) == (0, True)
    for node_rank in range(3):
        detail = checked.finding("addresses", node_rank)["detail"]
        assert f"reaches {nodes3.address(1)} port " in detail
        assert f" from {nodes3.address(node_rank + 1)} (eth0)" in detail
        assert checked.finding("clock", node_rank)["status"] == "ok"


@contextmanager
def firewall(cluster: Cluster, k: int, *rule: str) -> Iterator[None]:
    subprocess_ok(cluster, k, "iptables", "-w", "-I", "INPUT", *rule)
    try:
        yield
    finally:
        subprocess_ok(cluster, k, "iptables", "-w", "-D", "INPUT", *rule)


def subprocess_ok(cluster: Cluster, k: int, *words: str) -> None:
    done = cluster.exec(k, words)
    assert done.returncode == 0, done


@pytest.mark.namespaces
@pytest.mark.parametrize(
    ("target", "step"), [(("DROP",), "timeout"), (("REJECT", "--reject-with", "tcp-reset"), "refused")]
)
def test_a_firewall_that_stops_one_node_is_told_of_that_node(
    nodes3: Cluster, tmp_path: Path, target: tuple[str, ...], step: str
) -> None:
    rule = ("-s", nodes3.address(3), "-p", "tcp", "--dport", str(PORT), "-j", *target)
    with firewall(nodes3, 1, *rule):
        checked = check(nodes3, tmp_path, "--master-port", str(PORT))
    assert checked.exit_code == 3
    assert checked.failing() == {("addresses", 2)}
    finding = checked.finding("addresses", 2)
    assert f"{nodes3.address(1)} port {PORT}: {step}" in finding["detail"]
    assert f"--master-port {PORT}" in finding["remedy"] or "addr=ADDRESS" in finding["remedy"]


@contextmanager
def started(cluster: Cluster, k: int, command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program on node k that ends when its stdin does."""
    process = subprocess.Popen(
        [*cluster.ssh_words(k), command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.communicate(timeout=10)


@pytest.mark.namespaces
def test_a_foreign_service_on_the_port_is_named_with_its_owner(nodes3: Cluster, tmp_path: Path) -> None:
    program = f"import socket,sys; s = socket.create_server(('', {PORT})); print('up', flush=True); sys.stdin.read()"
    with started(nodes3, 1, f'{nodes3.python} -c "{program}"') as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        checked = check(nodes3, tmp_path, "--master-port", str(PORT))
    assert checked.failing() == {("master-port", 0)}
    finding = checked.finding("master-port", 0)
    assert f"port {PORT} is taken by pid " in finding["detail"]
    assert f"({nodes3.spec.user})" in finding["detail"]
    assert "create_server" in finding["detail"]
    assert f"leave out --master-port {PORT}" in finding["remedy"]


@pytest.mark.namespaces
def test_a_wrong_data_address_of_the_head_is_named(nodes3: Cluster, tmp_path: Path) -> None:
    checked = check(nodes3, tmp_path, extra={1: "addr=10.255.0.9"})
    assert checked.failing() == {("addresses", node_rank) for node_rank in range(3)}
    finding = checked.finding("addresses", 1)
    assert "at 10.255.0.9 port " in finding["detail"]
    assert "correct addr=10.255.0.9" in finding["remedy"]
    assert f"{nodes3.address(1)} (eth0)" in finding["remedy"]


@pytest.mark.namespaces
def test_a_wrong_data_address_or_interface_of_another_node_is_named(nodes3: Cluster, tmp_path: Path) -> None:
    checked = check(nodes3, tmp_path, extra={2: "addr=10.255.0.9", 3: "iface=eth9"})
    assert checked.failing() == {("addresses", 1), ("addresses", 2), ("interface", 2)}
    assert "no such address" in checked.finding("addresses", 1)["detail"]
    assert "eth9 has no" in checked.finding("addresses", 2)["detail"]


def test_an_interpreter_that_is_not_there_and_one_without_torch(nodes3: Cluster, tmp_path: Path) -> None:
    bare = f"{nodes3.spec.base_prefix}/bin/python3"
    nodes = nodes3.write_list(
        tmp_path / "nodes.txt",
        python="",
        extra={1: f"python={nodes3.fake_python}", 2: "python=/opt/x/python", 3: f"python={bare}"},
    )
    checked = check(nodes3, tmp_path, nodes=nodes)
    assert checked.exit_code == 3
    assert checked.failing() == {("python", 1), ("torch", 2)}
    assert "/opt/x/python" in checked.finding("python", 1)["detail"]
    assert "correct python=/opt/x/python" in checked.finding("python", 1)["remedy"]
    assert f"no torch in {bare} (node list python=)" in checked.finding("torch", 2)["detail"]
    assert "pip install torch" in checked.finding("torch", 2)["remedy"]


@pytest.mark.namespaces
def test_two_lines_that_are_one_machine(nodes3: Cluster, tmp_path: Path) -> None:
    nodes = nodes3.write_list(tmp_path / "nodes.txt", nodes=[1, 2])
    # A second address of node 1, known to the launch host under the key of the first.
    second = f"10.{nodes3.spec.octet}.9.1"
    subprocess_ok(nodes3, 1, "ip", "address", "add", f"{second}/16", "dev", "eth0")
    try:
        key = next(line for line in nodes3.known_hosts.read_text().splitlines() if nodes3.address(1) in line)
        with nodes3.known_hosts.open("a") as file:
            file.write(key.replace(nodes3.address(1), second) + "\n")
        first = next(line for line in nodes.read_text().splitlines() if nodes3.address(1) in line)
        with nodes.open("a") as file:
            file.write(first.replace(nodes3.address(1), second) + "\n")
        checked = check(nodes3, tmp_path, nodes=nodes)
    finally:
        subprocess_ok(nodes3, 1, "ip", "address", "del", f"{second}/16", "dev", "eth0")
    assert checked.failing() == {("same-machine", 0), ("same-machine", 2)}


@pytest.mark.namespaces
def test_leftovers_of_an_earlier_run_are_told_and_do_not_stop_a_launch(nodes3: Cluster, tmp_path: Path) -> None:
    with started(nodes3, 2, "AORTA_RUN_ID=old-run-1 exec cat") as process:
        wait_for(lambda: any("cat" in one.command for one in nodes3.process_table(2)), 10, "the leftover runs")
        assert process.poll() is None
        checked = check(nodes3, tmp_path)
    assert (checked.exit_code, checked.failing()) == (0, set())
    finding = checked.finding("leftovers", 1)
    assert finding["status"] == "warn"
    assert "run old-run-1 has left processes: pid " in finding["detail"]
    assert finding["remedy"] == "aorta-launch kill old-run-1"
    assert checked.finding("leftovers", 0)["status"] == "ok"


@pytest.mark.namespaces
def test_a_full_disk_fails_where_it_is(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(2)
    cluster.mount_small(2, f"{cluster.spec.home_on_node(2)}/.aorta", 1)
    checked = check(cluster, tmp_path)
    assert checked.failing() == {("disk", 1)}
    assert "/.aorta" in checked.finding("disk", 1)["detail"]


def test_gpus_are_counted_and_a_driver_that_hangs_costs_only_its_own_time(
    fresh_cluster: FreshCluster, tmp_path: Path
) -> None:
    cluster = fresh_cluster(3, gpus=8)
    cluster.folder(2).joinpath("nvidia_smi.sleep").write_text("60\n")
    cluster.folder(3).joinpath("nvidia_smi.exit").write_text("9\n")
    began = time.monotonic()
    checked = check(cluster, tmp_path)
    assert time.monotonic() - began < 40, "the launcher waited for the tool and not for its limit"
    assert checked.finding("gpu-count", 0)["detail"] == "8 GPUs"
    assert "nvidia-smi gave no answer within 5 s" in checked.finding("gpu-driver", 1)["detail"]
    assert "couldn't communicate" in checked.finding("gpu-driver", 2)["detail"]
    assert [checked.finding("gpu-driver", node_rank)["status"] for node_rank in (1, 2)] == ["unknown", "unknown"]
    for node_rank in range(3):
        assert checked.finding("disk", node_rank)["status"] == "ok"
