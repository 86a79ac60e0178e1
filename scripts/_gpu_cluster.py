"""Several nodes out of one machine: each with an sshd, a network and a HOME of its own, and its share of the GPUs."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from _local_cluster import find_environment, forget_host_keys, shorten, show
from cluster import (  # found by the path that _local_cluster sets
    Cluster,
    ClusterError,
    ask_smi,
    find_smi,
    open_cluster,
    start_cluster,
    start_guard,
    why_no_namespaces,
)

STATE = Path("/tmp", os.environ.get("AORTA_GPU_CLUSTER") or "agpu")  # noqa: S108 - short, because a unix socket's path has 107 bytes; made with mkdir, never reused
"""Where the nodes lie, by another name when tests of two checkouts run at once."""
NODE_LIST = STATE / "nodes.txt"
PROGRAM = "scripts/gpu_cluster"
MOST = 200
LOOK_S = 1
ENDS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def main(words: list[str] | None = None) -> int:
    """Bring the nodes up and stay until they are to go, or do what was asked of nodes that are up."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("nodes", nargs="?", type=int, metavar="N", help="how many nodes; Ctrl-C takes them down again")
    parser.add_argument("--gpus-per-node", type=int, metavar="G", help="GPUs of each; as many as there are for all")
    parser.add_argument(
        "--share", action="store_true", help="with fewer GPUs than nodes: several nodes have the same one"
    )
    parser.add_argument("--python", type=Path, help="the interpreter with PyTorch that the nodes get to see")
    parser.add_argument("--detach", action="store_true", help="leave the nodes up and give the shell back")
    parser.add_argument(
        "--down", action="store_true", help="end every process of the nodes and remove all that was made"
    )
    args = parser.parse_args(words)
    if args.down == (args.nodes is not None):
        parser.error("give a number of nodes, or --down")
    # However it is told to end: what was half made is taken down again.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        if args.down:
            return take_down()
        cluster = bring_up(args.nodes, args.gpus_per_node, args.python, share=args.share)
        tell(cluster, detached=args.detach)
        return 0 if args.detach else stay(cluster)
    except (ClusterError, OSError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def bring_up(nodes: int, per_node: int | None, python: Path | None, *, share: bool) -> Cluster:
    """Start the nodes."""
    if not 1 <= nodes <= MOST:
        raise ClusterError(f"give a number of nodes from 1 to {MOST}")
    if os.geteuid():
        raise ClusterError("nodes with networks of their own need root: sudo scripts/gpu_cluster …")
    for program, package in (("sshd", "openssh-server"), ("ssh-keygen", "openssh-client"), ("ip", "iproute2")):
        if not (shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin:/usr/local/sbin")):
            raise ClusterError(f"{program} is not installed: apt-get install {package}")
    if reason := why_no_namespaces():
        raise ClusterError(reason)
    if (STATE / "state.json").exists():
        raise ClusterError(f"the nodes are up already, see {NODE_LIST}; {PROGRAM} --down takes them down")
    if STATE.exists():
        raise ClusterError(f"{STATE} is in the way and holds no nodes: remove it")
    numbers = read_gpus()
    shares = share_out(numbers, nodes, per_node, share=share) if numbers else {}
    if not numbers and per_node:
        raise ClusterError("nvidia-smi tells of no GPU here; without --gpus-per-node the nodes have processors alone")
    prefix, base_prefix = read_environment(python) if python else find_environment()
    cluster = start_cluster(nodes, shares=shares, tag=STATE.name, prefix=prefix, base_prefix=base_prefix)
    cluster.write_list(NODE_LIST, python=cluster.python)
    return cluster


def read_gpus() -> list[int]:
    """The numbers of this machine's GPUs; none where there is no driver."""
    rows = ask_smi("index")
    if not all(index.isdigit() for (index, *_) in rows):
        raise ClusterError(f"{find_smi()} ended with 0: {' '.join(index for (index, *_) in rows)[:300]}")
    return [int(index) for (index, *_) in rows]


def share_out(numbers: Sequence[int], nodes: int, per_node: int | None, *, share: bool) -> dict[int, str]:
    """Node → its GPUs; equal shares, in the order of their numbers."""
    each = per_node or max(1, len(numbers) // nodes)
    if each < 1 or each > len(numbers):
        raise ClusterError(f"--gpus-per-node is from 1 to {len(numbers)} here")
    if nodes * each > len(numbers) and not share:
        raise ClusterError(
            f"{nodes} nodes with {each} GPU each need {nodes * each}, and there are {len(numbers)}: "
            "take fewer nodes, or --share lets several nodes have the same GPU"
        )
    shares = {}
    for k in range(1, nodes + 1):
        own = [numbers[((k - 1) * each + place) % len(numbers)] for place in range(each)]
        shares[k] = ",".join(str(number) for number in own)
    return shares


def read_environment(python: Path) -> tuple[str, str]:
    """Ask an interpreter which environment it is, and what that was made from."""
    words = [str(python), "-c", "import sys; print(sys.prefix); print(sys.base_prefix)"]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise ClusterError(f"{python} ended with {done.returncode}: {done.stderr.strip()[:300]}")
    prefix, base_prefix = done.stdout.splitlines()
    return prefix, base_prefix


def tell(cluster: Cluster, *, detached: bool) -> None:
    """Say what is there, how to use it and how to end it."""
    show(STATE)
    if not cluster.spec.shares:
        print("No GPU here: the nodes have processors alone.")
    launcher = Path(cluster.spec.prefix) / "bin" / "aorta-launch"
    program = shorten(launcher) if launcher.exists() else "aorta-launch"
    print(f"Node list: {NODE_LIST}\n\nTry{'' if detached else ' in another shell'}:\n")
    print(f"  {program} check --nodes {NODE_LIST} --accept-new-host-keys")
    print(f"  {program} --nodes {NODE_LIST} --accept-new-host-keys --config config/two_nodes.yaml\n")
    end = f"{PROGRAM} --down"
    print(
        f"{end} takes the nodes down." if detached else f"Ctrl-C takes the nodes down, and so does {end}.", flush=True
    )


def stay(cluster: Cluster) -> int:
    """Wait for Ctrl-C or for `--down` of another shell; a guard takes the nodes down should this process be killed."""
    held = Cluster(cluster.spec, cluster.pids, start_guard(STATE))
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    number = None
    while number is None and (STATE / "state.json").exists():
        seen = signal.sigtimedwait(ENDS, LOOK_S)
        number = None if seen is None else seen.si_signo
    if number is not None:
        forget_host_keys(held)
    held.down()
    print("nothing of the nodes is left", flush=True)
    return 0 if number in (None, signal.SIGINT) else 128 + number


def take_down() -> int:
    """Remove everything that was made; what is not there any more is no error."""
    if (STATE / "state.json").exists():
        cluster = open_cluster(STATE)
        forget_host_keys(cluster)
        cluster.down()
    print("nothing of the nodes is left")
    return 0
