"""How often a launch waits for the way to a node: what a slow way adds, divided by a round trip of it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from .bench import Bench, Contender, Must, Part
from .nodes import Nodes, open_nodes
from .start import HERE, read_first_lines
from .tools import aorta

DELAY_S = 0.25
"""One way; so long that what two cores do meanwhile does not blur the count."""
LOGIN, LAUNCH = "bare paramiko login", "aorta-launch with check and push of an unchanged tree"
CASE = "round trips"
GO = 0.5
"""The way of the word to go: it comes once every node is ready, and nobody waits for an answer to it."""


def measure(bench: Bench, count: int) -> None:
    """Count the round trips of a bare login, and of a launch from its login to the first line of the script."""
    with open_nodes(count) as nodes:
        shutil.copy(HERE / "first_line.py", nodes.project)
        node_list = nodes.write_list("nodes.txt")
        logins: list[float] = []

        def log_in() -> Mapping[str, float]:
            logins.append(count_trips(nodes, lambda: run_login(nodes)))
            return {"round_trips": logins[-1]}

        def launch() -> Mapping[str, float]:
            whole = count_trips(nodes, lambda: run_launch(nodes, node_list))
            return {"round_trips": whole, "after_login": whole - logins[-1] - GO}

        run_launch(nodes, node_list)
        contenders = [
            Contender(tool=LOGIN, command="paramiko, one thread a node, connect", measure=log_in),
            Contender(tool=LAUNCH, command="aorta-launch --nodes nodes.txt first_line.py …", measure=launch),
        ]
        log_in()
        bench.compare("trips", CASE, count, contenders)


def count_trips(nodes: Nodes, work: Callable[[], float]) -> float:
    """Do the work on a quick way and on a slow one, and divide the difference by a round trip."""
    lie_way(nodes, 0.0)
    quick_s = work()
    lie_way(nodes, DELAY_S)
    slow_s = work()
    lie_way(nodes, None)
    return (slow_s - quick_s) / (2 * DELAY_S)


def lie_way(nodes: Nodes, delay_s: float | None) -> None:
    """Put a slow way before every node, as the launch host's ssh_config has it; None: none at all."""
    config = nodes.cluster.launch_home / ".ssh" / "config"
    config.unlink(missing_ok=True)
    if delay_s is not None:
        command = f"{sys.executable} {HERE / 'slow_way.py'} {delay_s} %h %p"
        config.write_text(f"Host *\n  ProxyCommand {command}\n")


def run_login(nodes: Nodes) -> float:
    """Log in by paramiko alone; gives the seconds that it took."""
    spec = nodes.cluster.spec
    config = nodes.cluster.launch_home / ".ssh" / "config"
    words = [sys.executable, "-I", str(HERE / "bare_login.py"), str(spec.identity), str(config), nodes.hosts, spec.user]
    return nodes.run(words).check().seconds


def run_launch(nodes: Nodes, node_list: Path) -> float:
    """Launch, and give the seconds to the first line of the script on all ranks."""
    folder = nodes.shared / "first"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    ran = nodes.run(aorta("--nodes", node_list, "first_line.py", str(folder))).check()
    return read_first_lines(folder, nodes.count) - ran.began


PART = Part(
    word="trips",
    title="Round trips",
    about=(
        f"A way that takes {DELAY_S * 1000:.0f} ms in each direction is laid between the launch host and every node, and what "
        "it adds is divided by one round trip. after_login counts those from the login to the first line of the script: the check, "
        "the push of a tree that is there already, and the start, less the half that the word to go takes, which nobody waits "
        "for. Whole ones are four: a channel, a program in it, its answers, the start; the rest is what two cores do meanwhile."
    ),
    sizes=(2,),
    measure=measure,
    musts=(
        Must(
            says="round trips from the login to the first line, with check and push of an unchanged tree",
            case=CASE,
            nodes=2,
            tool=LAUNCH,
            metric="after_login",
            at_most=4.25,
            unit="round trips",
        ),
    ),
)
