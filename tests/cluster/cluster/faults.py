"""Things that go wrong on a network, on a disk and in an sshd, made to happen on one node."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Literal

from .life import Pids, join_cgroup, read_logs, sshd_listens, sshd_words, start_loopback_sshd
from .programs import (
    ClusterError,
    NeedsNamespaces,
    find_program,
    read_children,
    run,
    start_ticks,
    try_run,
    wait_for,
)
from .spec import Spec


def enter_words(pids: Pids, k: int, *namespaces: str) -> list[str]:
    """The words that run a program inside a node."""
    return [find_program("nsenter"), "-t", str(pids[k][0]), *(namespaces or ("-m", "-u", "-i", "-n", "-p"))]


def need_namespaces(spec: Spec, fault: str) -> None:
    """Refuse what loopback nodes cannot do."""
    if not spec.namespaces:
        raise NeedsNamespaces(f"{fault} needs nodes with namespaces of their own")


def set_link(spec: Spec, k: int, state: Literal["up", "down"]) -> None:
    """Pull or plug the cable of a node."""
    need_namespaces(spec, "link")
    run([find_program("ip"), "link", "set", spec.interface(k), state])


def drop(spec: Spec, pids: Pids, k: int, port: int | None) -> None:
    """Let packets vanish both ways, those of connections that stand included; with a port, only to and from that port of the node."""
    need_namespaces(spec, "drop")
    if not shutil.which("iptables", path="/usr/sbin:/sbin:/usr/bin"):
        drop_by_traffic_control(pids, k, port)
        return
    tcp_in = [] if port is None else ["-p", "tcp", "--dport", str(port)]
    tcp_out = [] if port is None else ["-p", "tcp", "--sport", str(port)]
    for words in (["-I", "INPUT", "-i", "eth0", *tcp_in], ["-I", "OUTPUT", "-o", "eth0", *tcp_out]):
        run([*enter_words(pids, k, "-n"), find_program("iptables"), "-w", *words, "-j", "DROP"])


def drop_by_traffic_control(pids: Pids, k: int, port: int | None) -> None:
    """Do the incoming half of `drop` where there is no iptables."""
    enter = enter_words(pids, k, "-n")
    try_run([*enter, "ip", "link", "add", "sink", "type", "ifb"])
    try_run([*enter, "tc", "qdisc", "add", "dev", "eth0", "ingress"])
    match = ["match", "u32", "0", "0"]
    if port is not None:
        match = ["match", "ip", "protocol", "6", "0xff", "match", "ip", "dport", str(port), "0xffff"]
    rule = ["tc", "filter", "add", "dev", "eth0", "parent", "ffff:", "protocol", "ip", "prio", "1", "u32", *match]
    run([*enter, *rule, "action", "mirred", "egress", "redirect", "dev", "sink"])


def block_port(spec: Spec, pids: Pids, k: int, port: int, how: Literal["reject", "drop"]) -> None:
    """Do what a firewall on the node does to new connections to one of its ports: refuse them, or say nothing."""
    need_namespaces(spec, "block_port")
    target = ["DROP"] if how == "drop" else ["REJECT", "--reject-with", "tcp-reset"]
    words = [
        find_program("iptables"),
        "-w",
        "-I",
        "INPUT",
        "-i",
        "eth0",
        "-p",
        "tcp",
        "--dport",
        str(port),
        "--syn",
        "-j",
    ]
    run([*enter_words(pids, k, "-n"), *words, *target])


def undrop(spec: Spec, pids: Pids, k: int) -> None:
    """Take back `drop` and `block_port`."""
    need_namespaces(spec, "undrop")
    enter = enter_words(pids, k, "-n")
    for chain in ("INPUT", "OUTPUT"):
        try_run([*enter, "/usr/sbin/iptables", "-w", "-F", chain])
    try_run([*enter, "tc", "qdisc", "del", "dev", "eth0", "ingress"])


def set_rate(spec: Spec, pids: Pids, k: int, rate: str | None) -> None:
    """Make the link of a node slow both ways, e.g. "10mbit"; None: as fast as it goes."""
    need_namespaces(spec, "rate")
    for enter, device in (([], spec.interface(k)), (enter_words(pids, k, "-n"), "eth0")):
        try_run([*enter, find_program("tc"), "qdisc", "del", "dev", device, "root"])
        if rate:
            shape = ["root", "tbf", "rate", rate, "burst", "256k", "latency", "200ms"]
            run([*enter, find_program("tc"), "qdisc", "add", "dev", device, *shape])


def mount_small(spec: Spec, pids: Pids, k: int, path: str, size_mib: float) -> None:
    """Put a small file system of its own over a folder of the node."""
    need_namespaces(spec, "mount_small")
    script = 'mkdir -p "$1" && mount -t tmpfs -o "size=$2,mode=755" tmpfs "$1"'
    run([*enter_words(pids, k), "sh", "-c", script, "sh", path, str(int(size_mib * 1024 * 1024))])


FILL = r"""
[ "$(stat -f -c %T "$1")" = tmpfs ] && [ "$(df -P "$1" | awk 'END { print $2 }')" -lt 1048576 ] || exit 9
cat /dev/zero >"$1/filler" 2>/dev/null
[ "$(df -P "$1" | awk 'END { print $4 }')" -eq 0 ]
"""


def fill(spec: Spec, pids: Pids, k: int, path: str) -> None:
    """Write into a folder until its file system is full; refuse where it is not one of `mount_small`."""
    need_namespaces(spec, "fill")
    run([*enter_words(pids, k), "sh", "-c", FILL, "sh", path])


def unmount(spec: Spec, pids: Pids, k: int, path: str) -> None:
    """Take back `mount_small`."""
    need_namespaces(spec, "unmount")
    run([*enter_words(pids, k), "umount", path])


def find_sshd(spec: Spec, pids: Pids, k: int) -> int:
    """The listening sshd of a node, as this machine counts processes."""
    try:
        inner = (spec.folder(k) / "sshd.pid").read_text().strip()
    except OSError:
        raise ClusterError(f"node {k} has no sshd") from None
    if not spec.namespaces:
        return int(inner)
    for pid in read_children(pids[k][0]):
        status = Path(f"/proc/{pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
        if line.split()[-1] == inner:
            return pid
    raise ClusterError(f"node {k} has no sshd")


def freeze_sshd(spec: Spec, pids: Pids, k: int) -> None:
    """Stop the listener: the kernel still takes connections, no banner ever comes."""
    os.kill(find_sshd(spec, pids, k), signal.SIGSTOP)


def thaw_sshd(spec: Spec, pids: Pids, k: int) -> None:
    """Let the listener go on."""
    os.kill(find_sshd(spec, pids, k), signal.SIGCONT)


def stop_sshd(spec: Spec, pids: Pids, k: int) -> None:
    """End the listener: new connections are refused, sessions live on."""
    pid = find_sshd(spec, pids, k)
    ticks = start_ticks(pid)
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: start_ticks(pid) != ticks, 5, f"sshd of node {k} ends")
    (spec.folder(k) / "sshd.pid").unlink(missing_ok=True)


def start_sshd(spec: Spec, pids: Pids, k: int, options: tuple[str, ...]) -> None:
    """Start the listener, with further options for this start."""
    if not spec.namespaces:
        pids[k] = start_loopback_sshd(spec, k, options)
        spec.save(pids)
        return
    run([*enter_words(pids, k), *sshd_words(spec, k, options)])
    wait_for(lambda: sshd_listens(spec, k), 10, lambda: read_logs(spec, k))
    join_cgroup(spec, k, find_sshd(spec, pids, k))
