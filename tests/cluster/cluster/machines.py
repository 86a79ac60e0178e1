"""A cluster as tests hold it: nodes to look at, to break and to run the launcher on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from . import faults, life
from .launcher import Completed, Launcher, launcher_words, write_node_list
from .processes import Process, read_process_table
from .programs import NeedsNamespaces, find_program, start_ticks, wait_for
from .spec import Spec, read_state, reserve_state, why_no_namespaces


class Cluster:
    """Nodes 1 to N, and the launch host, which is this machine with a HOME of its own."""

    def __init__(self, spec: Spec, pids: life.Pids, guard: subprocess.Popen[bytes] | None) -> None:
        self.spec, self._pids, self._guard = spec, pids, guard
        self._launchers: list[Launcher] = []
        self.python = spec.python
        self.fake_python = spec.fake_python
        self.launch_home = spec.launch_home
        self.identity = spec.identity
        self.known_hosts = spec.known_hosts
        self.numbers = spec.numbers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def down(self) -> None:
        """Take everything down; nothing of it is left on the machine."""
        for launcher in self._launchers:
            launcher.kill()
        life.down(self.spec.root)
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()

    def address(self, k: int) -> str:
        """Address of node k."""
        return self.spec.address(k)

    def home(self, k: int) -> Path:
        """HOME of node k, as seen from the launch host."""
        return self.spec.home_folder(k)

    def folder(self, k: int) -> Path:
        """The files that make node k: gpus.csv, sshd_config, sshd.log."""
        return self.spec.folder(k)

    def pid(self, k: int) -> int:
        """First process of node k, as the launch host counts."""
        return self._pids[k][0]

    @property
    def pids(self) -> life.Pids:
        """What the nodes are to this machine."""
        return self._pids

    def alive(self, k: int) -> bool:
        """Node k has not been powered off."""
        return start_ticks(self._pids[k][0]) == self._pids[k][1]

    def exec(self, k: int, words: Sequence[str], *, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a command inside node k without SSH."""
        environ = {
            "HOME": self.spec.home_on_node(k),
            "PATH": f"{self.folder(k)}/bin:{life.NODE_PATH}",
            "LC_ALL": "C.UTF-8",
        }
        enter = faults.enter_words(self._pids, k) if self.spec.namespaces else []
        script = ["sh", "-c", 'cd "$HOME" && exec "$@"', "sh"]
        return subprocess.run([*enter, *script, *words], env=environ, text=True, capture_output=True, timeout=timeout_s)

    def ssh_words(self, k: int) -> list[str]:
        """The words of an OpenSSH client that reaches node k; the command follows."""
        options = [
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            "LogLevel=ERROR",
        ]
        options += [f"UserKnownHostsFile={self.known_hosts}", "ConnectTimeout=5", "KexAlgorithms=curve25519-sha256"]
        words = [find_program("ssh"), "-F", "none", "-p", str(self.spec.ssh_port), "-i", str(self.identity)]
        return [*words, *(word for option in options for word in ("-o", option)), f"{self.spec.user}@{self.address(k)}"]

    def ssh(self, k: int, command: str, *, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a shell command on node k over SSH."""
        return subprocess.run(
            [*self.ssh_words(k), command], text=True, capture_output=True, timeout=timeout_s, stdin=subprocess.DEVNULL
        )

    def process_table(self, k: int) -> frozenset[Process]:
        """The processes of node k but those that are the node itself: equal before and after means empty."""
        return read_process_table(self.spec, self._pids, k)

    def process_tables(self) -> dict[int, frozenset[Process]]:
        """The process tables of all nodes."""
        return {k: self.process_table(k) for k in self.numbers}

    def wait_process_table(self, k: int, before: frozenset[Process], deadline_s: float) -> None:
        """Wait until node k runs exactly what it ran before."""
        wait_for(
            lambda: self.process_table(k) == before,
            deadline_s,
            lambda: (
                f"node {k} empty; new: {sorted(self.process_table(k) - before)}, gone: {sorted(before - self.process_table(k))}"
            ),
        )

    def wait_process_tables(self, before: Mapping[int, frozenset[Process]], deadline_s: float) -> None:
        """Wait until every node runs exactly what it ran before."""
        wait_for(
            lambda: all(self.process_table(k) == table for k, table in before.items()),
            deadline_s,
            lambda: (
                f"nodes empty; new: { {k: sorted(self.process_table(k) - table) for k, table in before.items()} }, "
                f"gone: { {k: sorted(table - self.process_table(k)) for k, table in before.items()} }"
            ),
        )

    def link(self, k: int, state: Literal["up", "down"]) -> None:
        """Pull or plug node k's cable."""
        faults.set_link(self.spec, k, state)

    def drop(self, k: int, port: int | None = None) -> None:
        """Let packets to and from node k (a port of it) vanish, those of open connections too."""
        faults.drop(self.spec, self._pids, k, port)

    def block_port(self, k: int, port: int, how: Literal["reject", "drop"] = "reject") -> None:
        """Put a firewall before a port of node k: new connections are refused, or get no answer."""
        faults.block_port(self.spec, self._pids, k, port, how)

    def undrop(self, k: int) -> None:
        """Take back `drop` and `block_port`."""
        faults.undrop(self.spec, self._pids, k)

    def rate(self, k: int, rate: str | None) -> None:
        """Make node k's link slow both ways ("10mbit"), or as before (None)."""
        faults.set_rate(self.spec, self._pids, k, rate)

    def mount_small(self, k: int, path: str, size_mib: float) -> None:
        """Put a file system of a few MiB over a folder of node k."""
        faults.mount_small(self.spec, self._pids, k, path, size_mib)

    def fill(self, k: int, path: str) -> None:
        """Fill up a folder on which `mount_small` was called."""
        faults.fill(self.spec, self._pids, k, path)

    def unmount(self, k: int, path: str) -> None:
        """Take back `mount_small`."""
        faults.unmount(self.spec, self._pids, k, path)

    def freeze_sshd(self, k: int) -> None:
        """Make node k take TCP connections and say nothing."""
        faults.freeze_sshd(self.spec, self._pids, k)

    def thaw_sshd(self, k: int) -> None:
        """Take back `freeze_sshd`."""
        faults.thaw_sshd(self.spec, self._pids, k)

    def stop_sshd(self, k: int) -> None:
        """Make node k refuse new connections; open ones live on."""
        faults.stop_sshd(self.spec, self._pids, k)

    def start_sshd(self, k: int, *options: str) -> None:
        """Start node k's sshd, with further options for this start ("MaxStartups=1")."""
        faults.start_sshd(self.spec, self._pids, k, options)

    def restart_sshd(self, k: int, *options: str) -> None:
        """Stop and start node k's sshd."""
        self.stop_sshd(k)
        self.start_sshd(k, *options)

    def kill_node(self, k: int) -> None:
        """Power node k off."""
        life.kill_node(self.spec, self._pids, k)

    def kill_process(self, k: int, pid: int, number: int = 9) -> None:
        """Signal a process of node k by the pid that the node knows."""
        if self.spec.namespaces:
            self.exec(k, ["sh", "-c", f"kill -{number} {pid}"]).check_returncode()
        else:
            os.kill(pid, number)

    def write_list(
        self,
        path: Path,
        extra: Mapping[int, str] | None = None,
        *,
        python: str | None = None,
        nodes: Sequence[int] | None = None,
    ) -> Path:
        """Write a node list; python: by default the stand-in for torch, "" for none; extra: words for the line of a node."""
        chosen = self.fake_python if python is None else python
        return write_node_list(self.spec, path, extra, chosen, list(nodes or self.numbers))

    def start_launcher(
        self, args: Sequence[str], *, cwd: Path, env: Mapping[str, str | None] | None = None
    ) -> Launcher:
        """Start aorta-launch on the launch host and go on."""
        launcher = Launcher(self.spec, launcher_words(args), cwd, env)
        self._launchers.append(launcher)
        return launcher

    def run_launcher(
        self, args: Sequence[str], *, cwd: Path, env: Mapping[str, str | None] | None = None, timeout_s: float = 60
    ) -> Completed:
        """Run aorta-launch on the launch host to its end."""
        return self.start_launcher(args, cwd=cwd, env=env).wait(timeout_s)

    def run_on_launch_host(
        self, words: Sequence[str], *, cwd: Path, env: Mapping[str, str | None] | None = None, timeout_s: float = 60
    ) -> Completed:
        """Run any program where and as the launcher would run."""
        launcher = Launcher(self.spec, words, cwd, env)
        self._launchers.append(launcher)
        return launcher.wait(timeout_s)


def start_cluster(
    nodes: int,
    *,
    gpus: int = 0,
    shares: Mapping[int, str] | None = None,
    shared_home: Sequence[int] = (),
    shared: Mapping[str, Sequence[int]] | None = None,
    cpus: Mapping[int, float] | None = None,
    sshd_options: Sequence[str] = (),
    namespaces: bool | None = None,
    tag: str | None = None,
    prefix: str = sys.prefix,
    base_prefix: str = sys.base_prefix,
) -> Cluster:
    """Bring N nodes up.

    Args:
        nodes: how many
        gpus: how many each node's stand-in nvidia-smi shows; 0: there is none
        shares: node → the real GPUs of this machine that it has, by their numbers: "0,1"
        shared_home: nodes that have one HOME folder
        shared: path → the nodes that share the folder; with 0 among them it is the launch host's own folder of that path
        cpus: node → cores, or a part of one
        sshd_options: lines of every sshd_config; they win
        namespaces: None: where they are permitted
        tag: names the state folder below /tmp, and lets it outlive this process
        prefix: the Python environment that nodes get to see
        base_prefix: what that environment was made from
    """
    if namespaces is None:
        namespaces = not why_no_namespaces()
    if not namespaces and (shared or cpus or shares):
        raise NeedsNamespaces("folders shared by path and shares of processor or GPUs need namespaces")
    octet, state = reserve_state(tag)
    guard = None if tag else start_guard(state)
    spec = Spec(
        nodes=nodes,
        octet=octet,
        state=str(state),
        namespaces=namespaces,
        prefix=prefix,
        base_prefix=base_prefix,
        gpus=gpus,
        shares=tuple((shares or {}).items()),
        shared_home=tuple(shared_home),
        shared=tuple((path, tuple(group)) for path, group in (shared or {}).items()),
        cpus=tuple((cpus or {}).items()),
        sshd_options=tuple(sshd_options),
    )
    try:
        cluster = Cluster(spec, life.up(spec), guard)
        # A first look at the process table must not catch a node in its last step of coming up.
        cluster.wait_process_tables(dict.fromkeys(spec.numbers, frozenset()), 10)
    except BaseException:
        Cluster(spec, {}, guard).down()
        raise
    return cluster


def start_guard(state: Path) -> subprocess.Popen[bytes]:
    """Start the process that takes the cluster down when this one is gone."""
    return subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.guard", str(state)],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def open_cluster(state: Path) -> Cluster:
    """Take hold of a cluster that another process has brought up."""
    return Cluster(*read_state(state), None)
