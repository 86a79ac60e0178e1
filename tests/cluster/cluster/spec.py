"""What a cluster is made of, and where its files lie: one frozen value, kept as JSON in the state folder."""

from __future__ import annotations

import json
import os
import pwd
import random
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from .programs import ClusterError, find_program

PROJECT = Path(__file__).resolve().parents[3]
LOOPBACK_PORT = 2222


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One cluster before anything of it is started."""

    nodes: int
    octet: int
    """Second octet of its addresses; taken by one cluster at a time on a machine."""
    state: str
    namespaces: bool
    project: str = str(PROJECT)
    """The folder that no node may see."""
    prefix: str = sys.prefix
    """The Python environment that nodes see at `python`."""
    base_prefix: str = sys.base_prefix
    gpus: int = 0
    gpu_model: str = "NVIDIA H100 80GB HBM3"
    shares: tuple[tuple[int, str], ...] = ()
    """Nodes that have some of this machine's real GPUs, by their numbers: "0,1"."""
    shared_home: tuple[int, ...] = ()
    """Nodes with one HOME folder."""
    shared: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Folders that some nodes share; node 0 is the launch host, whose own folder of that path it then is."""
    cpus: tuple[tuple[int, float], ...] = ()
    """Nodes that are held to some cores or to a part of one."""
    sshd_options: tuple[str, ...] = ()
    home: str = field(default_factory=lambda: pwd.getpwuid(os.getuid()).pw_dir)
    """Where this user's HOME is on a node with namespaces: the usual place, with a folder of the node's own in it."""
    user: str = field(default_factory=lambda: pwd.getpwuid(os.getuid()).pw_name)

    @property
    def numbers(self) -> range:
        """The nodes, from 1."""
        return range(1, self.nodes + 1)

    @property
    def root(self) -> Path:
        """The state folder."""
        return Path(self.state)

    @property
    def tag(self) -> str:
        """Begins the names of its interfaces and control groups."""
        return self.root.name

    @property
    def launch_home(self) -> Path:
        """HOME of the launch host in tests."""
        return self.root / "launch"

    @property
    def identity(self) -> Path:
        """The key that every node accepts."""
        return self.launch_home / ".ssh" / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The launch host's known_hosts; it has every node's key."""
        return self.launch_home / ".ssh" / "known_hosts"

    @property
    def launch_address(self) -> str:
        """Where nodes reach the launch host."""
        return f"10.{self.octet}.255.254" if self.namespaces else "127.0.0.1"

    @property
    def python(self) -> str:
        """The Python of the tests, with the real torch, by a path that is good on nodes."""
        prefix = self.root / "venv" if self.namespaces and self.prefix != self.base_prefix else Path(self.prefix)
        return str(prefix / "bin" / "python3")

    @property
    def fake_python(self) -> str:
        """A Python whose torch is the stand-in for torchrun."""
        return str(self.root / "fake" / "bin" / "python3")

    @property
    def ssh_port(self) -> int:
        """Where every node's sshd listens."""
        return 22 if self.namespaces else LOOPBACK_PORT

    def address(self, k: int) -> str:
        """Address of node k."""
        return f"{10 if self.namespaces else 127}.{self.octet}.{k >> 8}.{k & 255}"

    def name(self, k: int) -> str:
        """Host name of node k."""
        return f"node{k}"

    def folder(self, k: int) -> Path:
        """The files that make node k."""
        return self.root / f"n{k}"

    def home_folder(self, k: int) -> Path:
        """What node k has as HOME, as seen from the launch host."""
        group = min(self.shared_home) if k in self.shared_home else k
        return self.root / "homes" / str(group)

    def home_on_node(self, k: int) -> str:
        """HOME by the path that node k knows."""
        return self.home if self.namespaces else str(self.home_folder(k))

    def interface(self, k: int) -> str:
        """The end of node k's cable that is plugged into the bridge."""
        return f"{self.tag}-v{k}"

    def save(self, pids: dict[int, tuple[int, int, int]]) -> None:
        """Keep what is needed to take the cluster down from another process."""
        temporary = self.root / "state.json.new"
        temporary.write_text(json.dumps({"spec": asdict(self), "pids": pids}, indent=1))
        temporary.replace(self.root / "state.json")


def read_state(state: Path) -> tuple[Spec, dict[int, tuple[int, int, int]]]:
    """Read back what `Spec.save` wrote."""
    saved = json.loads((state / "state.json").read_text())
    values = saved["spec"]
    for key in ("shared_home", "sshd_options"):
        values[key] = tuple(values[key])
    values["cpus"] = tuple((k, part) for k, part in values["cpus"])
    values["shares"] = tuple((k, own) for k, own in values["shares"])
    values["shared"] = tuple((path, tuple(nodes)) for path, nodes in values["shared"])
    return Spec(**values), {int(k): (value[0], value[1], value[2]) for k, value in saved["pids"].items()}


@cache
def why_no_namespaces() -> str:
    """Say why nodes cannot have namespaces of their own here; empty when they can."""
    if os.environ.get("AORTA_TEST_LOOPBACK"):
        return "AORTA_TEST_LOOPBACK is set"
    if os.geteuid() != 0:
        return "network namespaces need root"
    script = "mount --make-rprivate / && mount -t proc proc /proc && ip link add aorta-try type bridge"
    try:
        words = [find_program("unshare"), "-muinp", "--fork", "sh", "-c", script]
    except ClusterError as error:
        return str(error)
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return "" if done.returncode == 0 else f"namespaces are not permitted here: {done.stderr.strip()}"


def reserve_state(tag: str | None = None) -> tuple[int, Path]:
    """Take a state folder and the addresses that go with it; making the folder is the lock."""
    taken = Path("/proc/net/fib_trie").read_text() if Path("/proc/net/fib_trie").exists() else ""
    octets = list(range(64, 250))
    random.shuffle(octets)
    for octet in octets:
        if f" 10.{octet}." in taken:
            continue
        state = Path("/tmp", tag or f"ac{octet}")
        try:
            state.mkdir(mode=0o755)
        except FileExistsError:
            if tag:
                raise ClusterError(f"{state} is there already: take that cluster down first") from None
            continue
        return octet, state
    raise ClusterError(
        "every net from 10.64 to 10.249 is taken; look for /tmp/ac* of clusters that were not taken down"
    )
