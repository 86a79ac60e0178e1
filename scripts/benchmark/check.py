"""Part a: how long until every node is known to be fit, against logins that ask nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .bench import MANY, Bench, Contender, Must, Part
from .nodes import Nodes, open_nodes
from .tools import CURVE, aorta, bare_paramiko, clush, pdsh, pdsh_environ

CASE = "all of level 0"
OURS, FLOOR, CLUSH = "aorta-launch check", "bare paramiko", "clush"
STARTS = "paramiko, two Pythons"
"""What no check can do without that is written in Python and asks the interpreter of the run."""


def measure(bench: Bench, count: int) -> None:
    """Check nodes that nothing has ever been sent to, as to everyone else."""
    with open_nodes(count) as nodes:
        node_list = nodes.write_list("nodes.txt")
        bench.compare("check", CASE, count, list_contenders(nodes, node_list), warm_up=count < MANY)


def list_contenders(nodes: Nodes, node_list: Path) -> list[Contender]:
    """A check, and `true` by everything else."""
    count, curve = nodes.count, pdsh_environ(curve=True)
    return [
        build(
            nodes,
            OURS,
            "aorta-launch check --nodes nodes.txt",
            aorta("check", "--nodes", node_list, "--fanout", str(count)),
        ),
        build(nodes, FLOOR, "one thread a node: connect, log in, exec_command('true')", bare_paramiko(nodes)),
        build(
            nodes,
            STARTS,
            "the same with `python3 -I -S -c pass` and the run's interpreter with `-c pass`",
            bare_paramiko(nodes, f"python3 -I -S -c pass && {nodes.fake_python} -c pass"),
        ),
        build(nodes, CLUSH, f"clush -S -f {count} -w … true", clush(nodes, "true")),
        build(
            nodes,
            "clush, curve25519",
            f"clush -S -f {count} -o '-o {CURVE}' -w … true",
            clush(nodes, "true", curve=True),
        ),
        build(nodes, "pdsh", f"pdsh -S -R ssh -f {count} -w … true", pdsh(nodes, "true")),
        build(
            nodes, "pdsh, curve25519", f"the same with PDSH_SSH_ARGS_APPEND='-o {CURVE}'", pdsh(nodes, "true"), curve
        ),
    ]


def build(
    nodes: Nodes, tool: str, command: str, words: Sequence[str], env: Mapping[str, str | None] | None = None
) -> Contender:
    """A command that is run to its good end."""

    def run() -> dict[str, float]:
        ran = nodes.run(words, env=env).check()
        return {"seconds": ran.seconds, "cpu_s": ran.cpu_s, "peak_mib": ran.peak_mib}

    return Contender(tool=tool, command=command, measure=run)


PART = Part(
    word="check",
    title="check of N nodes",
    about=(
        "`aorta-launch check` asks every node for all facts of level 0 and judges them, over one login a node; the others log in "
        "and run `true`, or a Python and the run's interpreter that do nothing, which is the least for whoever asks them. All nodes share this one machine's cores, so processor time on the nodes is time to wait here; "
        "on machines of their own it is not. The kernel log, which all of them share, is read and not judged. cpu_s and peak_mib are the launch host's alone."
    ),
    sizes=(2, 8, 32, 64, 128, 256),
    measure=measure,
    musts=(
        Must(
            says="check of 64 nodes against a bare paramiko `true`",
            case=CASE,
            nodes=64,
            tool=OURS,
            against=FLOOR,
            at_most=2,
        ),
        Must(
            says="check of 64 nodes against clush as installed",
            case=CASE,
            nodes=64,
            tool=OURS,
            against=CLUSH,
            at_most=1,
        ),
        Must(
            says="check of 256 nodes against check of 64", case=CASE, nodes=256, tool=OURS, against_nodes=64, at_most=4
        ),
    ),
)
