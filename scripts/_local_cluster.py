"""The pretend machines of the tests, for a person: brings them up, writes a node list, takes them down."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "tests" / "cluster"))

from cluster import Cluster, ClusterError, open_cluster, start_cluster, why_no_namespaces  # noqa: E402 - path set above

MARK = "# written by scripts/local_cluster; goes away with `scripts/local_cluster down`"
KNOWN_HOSTS = Path("~/.ssh/known_hosts").expanduser()
TAG = f"acl{os.getuid()}"
STATE = Path("/tmp", TAG)  # noqa: S108 - short, because a unix socket's path has 107 bytes; made with mkdir, never reused


def main(words: list[str] | None = None) -> int:
    """Do one of the verbs."""
    parser = argparse.ArgumentParser(prog="scripts/local_cluster", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start N nodes and write a node list")
    up.add_argument("nodes", type=int, metavar="N")
    up.add_argument("--gpus", type=int, default=0, help="GPUs that a stand-in nvidia-smi shows on each node")
    up.add_argument("--list", type=Path, default=PROJECT / "node_ip_list.txt", help="the node list to write")
    up.add_argument("--trust", action="store_true", help=f"add the nodes' host keys to {KNOWN_HOSTS}")
    down = verbs.add_parser("down", help="end every process of the nodes and remove all that was made")
    status = verbs.add_parser("status", help="show the nodes")
    for parser_of_list in (down, status):
        parser_of_list.add_argument("--list", type=Path, default=PROJECT / "node_ip_list.txt")
    args = parser.parse_args(words)
    try:
        if args.verb == "up":
            return bring_up(args.nodes, args.gpus, args.list, trust=args.trust)
        return take_down(args.list) if args.verb == "down" else show()
    except (ClusterError, OSError) as error:
        print(f"local_cluster: {error}", file=sys.stderr)
        return 1


def bring_up(nodes: int, gpus: int, node_list: Path, *, trust: bool) -> int:
    """Start nodes and say how to use them."""
    if nodes < 1:
        raise ClusterError("give a number of nodes from 1")
    if node_list.exists() and not node_list.read_text().startswith(MARK):
        raise ClusterError(f"{node_list} is not ours to overwrite: move it away, or name another file with --list")
    if (STATE / "state.json").exists():
        raise ClusterError("the nodes are up already: scripts/local_cluster status, or down")
    if STATE.exists():
        raise ClusterError(f"{STATE} is in the way and holds no cluster: remove it")
    prefix, base_prefix = find_environment()
    cluster = start_cluster(nodes, gpus=gpus, tag=TAG, prefix=prefix, base_prefix=base_prefix)
    cluster.write_list(node_list, python=cluster.python)
    node_list.write_text(f"{MARK}\n{node_list.read_text()}")
    if trust:
        KNOWN_HOSTS.parent.mkdir(mode=0o700, exist_ok=True)
        with KNOWN_HOSTS.open("a") as known:
            known.write(cluster.known_hosts.read_text())
    if reason := why_no_namespaces():
        print(f"The nodes are sshds on loopback addresses, not machines of their own: {reason}.")
    show()
    launcher = Path(prefix) / "bin" / "aorta-launch"
    program = shorten(launcher) if launcher.exists() else "aorta-launch"
    shown = shorten(node_list)
    keys = "" if trust else " --accept-new-host-keys"
    print(f"Node list: {shown}\n\nTry:\n")
    print(f"  {program} check --nodes {shown}{keys}")
    print(f"  {program} --nodes {shown}{keys} scripts/verify.py")
    print(
        "\nThe list names the key that the nodes accept; `scripts/local_cluster down` takes their host keys out again."
    )
    return 0


def shorten(path: Path) -> str:
    """Write a path as a person below the current folder would."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def find_environment() -> tuple[str, str]:
    """The project's own virtual environment and what it was made from; this Python where there is none."""
    config = PROJECT / ".venv" / "pyvenv.cfg"
    if not config.exists():
        return sys.prefix, sys.base_prefix
    pairs = (line.partition("=") for line in config.read_text().splitlines())
    values = {key.strip(): value.strip() for key, _, value in pairs}
    return str(config.parent), str(Path(values["home"]).parent)


def show(state: Path = STATE) -> int:
    """Print one line a node."""
    if not (state / "state.json").exists():
        print("no nodes are up")
        return 1
    cluster = open_cluster(state)
    for k in cluster.numbers:
        own = dict(cluster.spec.shares).get(k)
        gpus = "" if own is None else f"  GPU {own}"
        place = f"{cluster.address(k)}:{cluster.spec.ssh_port}"
        print(f"{cluster.spec.name(k)}  {place}  {'up' if cluster.alive(k) else 'off'}{gpus}")
    print(f"python on the nodes: {cluster.python}    state: {state}")
    return 0


def take_down(node_list: Path) -> int:
    """Remove everything that `up` has made; what is not there any more is no error."""
    if (STATE / "state.json").exists():
        cluster = open_cluster(STATE)
        forget_host_keys(cluster)
        cluster.down()
    if node_list.exists() and node_list.read_text().startswith(MARK):
        node_list.unlink()
    print("nothing of the nodes is left")
    return 0


def forget_host_keys(cluster: Cluster) -> None:
    """Take the nodes' host keys out of the user's known_hosts: the next nodes at these addresses have others."""
    if not KNOWN_HOSTS.exists() or not cluster.known_hosts.exists():
        return
    ours = {line.split()[2] for line in cluster.known_hosts.read_text().splitlines()}
    lines = KNOWN_HOSTS.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not ours & set(line.split())]
    if kept != lines:
        KNOWN_HOSTS.write_text("".join(kept))
