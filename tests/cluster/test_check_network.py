"""What `check` finds between real nodes: firewalls, sizes of packets, copied machines, names, clocks, interfaces."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from asking import check, run_on, try_remedy
from cluster import Cluster
from cluster.programs import run
from conftest import FreshCluster

pytestmark = pytest.mark.namespaces
PORT = 29444
SHIFT_S = 20
"""From 15 s on agents refuse to meet."""


def shift_clock(cluster: Cluster, k: int) -> None:
    """Let every Python on a node, the probe's too, see a clock that is ahead."""
    folder = cluster.home(k) / "shift"
    folder.mkdir()
    code = f"import time as t; r = t.time; t.time = lambda: r() + {SHIFT_S}"
    (folder / "python3").write_text(
        "#!/bin/bash\nwords=()\n"
        f'while [ "$1" != -c ]; do words+=("$1"); shift; done\ncode="{code}\n$2"; shift 2\n'
        f'exec {cluster.python} "${{words[@]}}" -c "$code" "$@"\n'
    )
    (folder / "python3").chmod(0o755)
    (cluster.home(k) / ".bashrc").write_text("PATH=$HOME/shift:$PATH\n")


def copy_machine(cluster: Cluster, k: int, other: int) -> None:
    """Make a node what a copied disk makes of it: the name and the machine id of another."""
    run_on(cluster, k, "hostname", cluster.spec.name(other))
    (cluster.folder(k) / "etc" / "machine-id").chmod(0o644)
    (cluster.folder(k) / "etc" / "machine-id").write_text((cluster.folder(other) / "etc" / "machine-id").read_text())


def test_what_is_wrong_between_nodes_is_named_and_the_remedies_mend_it(
    fresh_cluster: FreshCluster, tmp_path: Path
) -> None:
    cluster = fresh_cluster(4)
    copy_machine(cluster, 2, 1)
    shift_clock(cluster, 3)
    run_on(cluster, 4, "ip", "link", "set", "eth0", "mtu", "1400")
    narrow = "dev eth0 root tbf rate 20mbit burst 16kb latency 400ms"
    run_on(cluster, 4, "tc", "qdisc", "add", *narrow.split())
    closed = f"-s {cluster.address(3)} -p tcp --syn -j DROP"
    run_on(cluster, 2, "iptables", "-w", "-A", "INPUT", *closed.split())
    checked = check(cluster, tmp_path)
    assert checked.exit_code == 3
    assert checked.failing() == {("pairs", 1), ("clock", 2)}
    pairs = checked.finding("pairs", 1)
    assert f"{cluster.address(3)} cannot reach it" in pairs["detail"]
    assert "timeout" in pairs["detail"]
    told = checked.finding("clock", 2)["detail"]
    assert abs(float(told.split()[0]) - SHIFT_S) < 0.5, told
    warned = checked.found("warn")
    wanted = {("hostnames", 0), ("hostnames", 1), ("machine-ids", 0), ("machine-ids", 1), ("mtu-equal", 3)}
    wanted |= {("latency", 3)}
    assert wanted <= warned, warned
    assert not warned & {("latency", 0), ("latency", 1), ("latency", 2)}
    assert ("path-mtu", 0) in warned
    found = re.search(r"1500 bytes do not pass in one piece, (\d+) do", checked.finding("path-mtu", 0)["detail"])
    # A virtual link leaves room for a VLAN tag of four bytes.
    assert found
    assert 1400 <= int(found[1]) <= 1404

    for finding in (pairs, checked.finding("mtu-equal", 3)):
        try_remedy(cluster, finding)
    (cluster.home(3) / ".bashrc").unlink()
    again = check(cluster, tmp_path)
    assert again.failing() == set()
    assert not again.found("warn") & {("mtu-equal", 3), ("path-mtu", 0)}


def test_a_firewall_that_lets_in_ssh_and_the_rendezvous_alone_is_found(
    fresh_cluster: FreshCluster, tmp_path: Path
) -> None:
    cluster = fresh_cluster(3)
    for rule in (
        "-m state --state ESTABLISHED -j ACCEPT",
        f"-p tcp --dport {PORT} -j ACCEPT",
        f"-s {cluster.spec.launch_address} -j ACCEPT",
        "-i eth0 -j DROP",
    ):
        run_on(cluster, 1, "iptables", "-w", "-A", "INPUT", *rule.split())
    # A black hole on the way: it connects, and large packets are lost. Without it the kernel would pass on many as one.
    run_on(cluster, 3, "ip", "link", "set", "dev", "eth0", "gso_max_segs", "1")
    hole = f"-s {cluster.address(3)} -p tcp -m length --length 1300:65535 -j DROP"
    run_on(cluster, 2, "iptables", "-w", "-A", "INPUT", *hole.split())
    checked = check(cluster, tmp_path, "--master-port", str(PORT))
    assert checked.failing() == {("pairs", 0), ("path-mtu", 1), ("path-mtu", 2)}
    finding = checked.finding("pairs", 0)
    for k in (2, 3):
        assert cluster.address(k) in finding["detail"]
        assert f"iptables -I INPUT -s {cluster.address(k)} -j ACCEPT" in finding["remedy"]
    assert checked.finding("addresses", 1)["status"] == "ok"
    assert f"to {cluster.address(2)}: large packets are lost" in checked.finding("path-mtu", 2)["detail"]
    try_remedy(cluster, finding)
    try_remedy(cluster, checked.finding("path-mtu", 2))
    assert check(cluster, tmp_path, "--master-port", str(PORT)).failing() == set()


NFT = """table inet filter {
    chain input {
        type filter hook input priority 0; policy drop;
        ct state established accept
        iif lo accept
        tcp dport { 22, %d } accept
    }
}
"""
"""As Debian's nftables.conf is written, with a port of the rendezvous let in."""


@pytest.mark.long
def test_networks_that_are_odd_are_told(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    """One call finds: a firewall of nftables, a translated address, another way back, a narrow cable, dead UDP, a shared address."""
    cluster = fresh_cluster(4)
    port = 40444
    enabled = cluster.folder(2) / "etc" / "systemd" / "system" / "sysinit.target.wants" / "nftables.service"
    enabled.parent.mkdir(parents=True)
    enabled.write_text("")
    (cluster.folder(2) / "etc" / "nftables.conf").write_text(NFT % port)
    run_on(cluster, 2, "nft", "-f", "/etc/nftables.conf")
    translated = f"-A INPUT -s {cluster.address(3)} -p tcp -j SNAT --to-source 10.99.1.9"
    run_on(cluster, 1, "iptables", "-w", "-t", "nat", *translated.split())
    for k in (3, 4):
        for words in (
            "link add x0 type veth peer name y0",
            "link set y0 up",
            "link set x0 up",
            f"addr add 10.99.0.{k}/24 dev x0",
            "addr add 10.99.7.7/32 dev x0",
        ):
            run_on(cluster, k, "ip", *words.split())
    run_on(cluster, 3, "ip", "route", "add", cluster.address(4), "dev", "eth0", "src", "10.99.0.3")
    run_on(cluster, 1, "iptables", "-w", "-A", "INPUT", "-p", "udp", "-j", "DROP")
    # The cable of one node carries smaller packets than the interfaces at both ends say.
    run(["ip", "link", "set", "dev", cluster.spec.interface(3), "mtu", "1300"])
    checked = check(cluster, tmp_path, "--master-port", str(port), extra={1: "iface=eth0"})
    assert checked.failing() == {("pairs", 1), *(("path-mtu", node_rank) for node_rank in range(4))}
    pairs = checked.finding("pairs", 1)
    assert f"nft insert rule inet filter input ip saddr {cluster.address(1)} accept" in pairs["remedy"]
    assert "as 10.99.1.9, which is" in checked.finding("routes", 0)["detail"]
    assert "but the way back is x0 (10.99.0.3)" in checked.finding("routes", 2)["detail"]
    assert "10.99.7.7 (x0) is also on" in checked.finding("addresses-unique", 2)["detail"]
    cable = checked.finding("path-mtu", 3)
    assert re.search(rf"to {cluster.address(3)}: large packets are lost, 130\d bytes pass$", cable["detail"])
    assert checked.finding("path-mtu", 0)["remedy"] == cable["remedy"]
    wanted = {("routes", 0), ("routes", 2), ("port-range", 0)}
    wanted |= {("addresses-unique", 2), ("addresses-unique", 3)}
    mine = {"routes", "latency", "port-range", "addresses-unique", "path-mtu", "mtu-equal", "hostnames", "machine-ids"}
    assert {(name, rank) for name, rank in checked.found("warn") if name in mine} == wanted
    for finding in (pairs, cable, checked.finding("port-range", 0)):
        try_remedy(cluster, finding)
    again = check(cluster, tmp_path, "--master-port", str(port))
    assert again.failing() == set()
    # Datagrams to it, or from it, come to nothing.
    assert again.status("path-mtu", 0) == "unknown"
    assert again.status("port-range", 0) == "ok"


NAMES = {
    "Debian's own line": "127.0.0.1 localhost\n127.0.1.1 {name}\n",
    "a copied name": "127.0.0.1 localhost {name}\n",
    "no name": "127.0.0.1 localhost\n",
}


def test_traps_of_names_are_told_and_a_wrong_interface_is_refused_within_seconds(
    fresh_cluster: FreshCluster, tmp_path: Path
) -> None:
    """Each of these makes a bare torchrun hang for minutes; what our launch makes harmless is said to be so."""
    cluster = fresh_cluster(3)
    for k, text in enumerate(NAMES.values(), 1):
        (cluster.folder(k) / "etc" / "hosts").write_text(text.format(name=cluster.spec.name(k)))
    (tmp_path / "rank.py").write_text("import os\nprint('here', os.environ['GLOO_SOCKET_IFNAME'])\n")
    # What a node's own session says is laid aside: the interface that was proved is given to the run.
    (cluster.home(2) / ".bashrc").write_text("export GLOO_SOCKET_IFNAME=eth9\n")
    nodes = cluster.write_list(tmp_path / "nodes.txt", python=cluster.fake_python)
    checked = check(cluster, tmp_path, nodes=nodes)
    assert (checked.exit_code, checked.failing()) == (0, set())
    for node_rank in (0, 1):
        detail = checked.finding("hostname", node_rank)["detail"]
        assert "127." in detail
        assert "harmless" in detail
    assert checked.status("hostname", 2) == "warn"
    assert "127.0.1.1 node3" in checked.finding("hostname", 2)["remedy"]
    # What is said to be harmless is: the run ends well.
    done = cluster.run_launcher(["--nodes", str(nodes), "--ranks", "all", "rank.py"], cwd=tmp_path)
    assert done.exit_code == 0, done
    assert done.stdout.count("here eth0") == 3

    words = {2: "env.GLOO_SOCKET_IFNAME=eth9", 3: "env.NCCL_SOCKET_IFNAME=lo"}
    wrong = check(cluster, tmp_path, "--env", "GLOO_SOCKET_IFNAME=lo", extra=words)
    assert wrong.exit_code == 3
    assert wrong.failing() == {("socket-ifname", node_rank) for node_rank in range(3)}
    assert "GLOO_SOCKET_IFNAME=eth9 names no interface" in wrong.finding("socket-ifname", 1)["detail"]
    assert (
        "GLOO_SOCKET_IFNAME=lo is lo, which no other node reaches; eth0 was proved"
        in (wrong.finding("socket-ifname", 2)["detail"])
    )
    assert wrong.seconds < 30
    nodes = cluster.write_list(tmp_path / "nodes.txt", python=cluster.fake_python, extra={2: "iface=eth9"})
    done = cluster.run_launcher(["--nodes", str(nodes), "rank.py"], cwd=tmp_path)
    assert done.exit_code == 3, done
    assert "iface=eth9 has no address; there are lo, eth0" in done.stderr
    assert done.seconds < 30
