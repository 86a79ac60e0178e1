"""Part f: how long until a run is gone from every node."""

from __future__ import annotations

import itertools
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from .bench import Bench, Contender, Must, Part
from .holding import Emptiness, watch
from .launches import Launch, wait_until
from .nodes import Nodes, open_nodes, pick_port
from .tools import CLUSH_RANK, aorta, clush, torchrun

HERE = Path(__file__).resolve().parent
CASE = "ranks that are deaf to TERM, no grace"
SHELL, CTRL_C = "aorta-launch kill, from another shell", "aorta-launch, Ctrl-C"
COLD, HAND = "aorta-launch kill, its launcher is dead", "clush pkill"
PKILL = "pkill -9 -f '[d]eaf.py'"
_numbers = itertools.count()


def measure(bench: Bench, count: int) -> None:
    """Kill runs of a stand-in for torchrun."""
    with open_nodes(count) as nodes:
        shutil.copy(HERE / "deaf.py", nodes.shared)
        contenders = [
            Contender(tool=SHELL, command="aorta-launch kill RUN --grace 0s", measure=lambda: kill_from_shell(nodes)),
            Contender(
                tool=CTRL_C, command="aorta-launch … --grace 0s …, then Ctrl-C", measure=lambda: press_ctrl_c(nodes)
            ),
            Contender(
                tool=COLD,
                command="kill -9 LAUNCHER; aorta-launch kill RUN --grace 0s",
                measure=lambda: kill_cold(nodes),
            ),
            Contender(tool=HAND, command=f"clush -w … {PKILL}", measure=lambda: kill_by_hand(nodes)),
        ]
        bench.compare("kill", CASE, count, contenders)


def start(nodes: Nodes) -> tuple[Launch, Emptiness]:
    """Start a run, and wait until all of it runs."""
    folder, empty = nodes.shared / f"kill_{next(_numbers)}", Emptiness(nodes)
    folder.mkdir()
    words = ("--no-check", "--no-push", "--workdir", nodes.shared, "--grace", "0s", "deaf.py", folder)
    launch = Launch(nodes, words)
    launch.wait_for_text("running: ")
    launch.wait_for(lambda: len(list(folder.glob("*.up"))) == nodes.count, 120, "every rank is up")
    time.sleep(1)
    return launch, empty


def kill_from_shell(nodes: Nodes) -> Mapping[str, float]:
    """Kill a run that its launcher watches."""
    launch, empty = start(nodes)
    killing = nodes.start(aorta("kill", launch.run_id, "--grace", "0s"))
    moments = watch({"empty_s": empty.is_reached}, 60)
    ran = killing.wait().check()
    launch.wait(143)
    return {"seconds": ran.seconds, "empty_s": moments["empty_s"] - ran.began, "cpu_s": ran.cpu_s}


def press_ctrl_c(nodes: Nodes) -> Mapping[str, float]:
    """Interrupt the launcher as a terminal does."""
    launch, empty = start(nodes)
    begin = time.time()
    launch.running.signal(signal.SIGINT)
    moments = watch({"empty_s": empty.is_reached}, 60)
    ran = launch.wait(130)
    return {"seconds": ran.began + ran.seconds - begin, "empty_s": moments["empty_s"] - begin}


def kill_cold(nodes: Nodes) -> Mapping[str, float]:
    """Kill a run whose launcher is gone."""
    launch, empty = start(nodes)
    run_id = launch.run_id
    launch.running.kill()
    killing = nodes.start(aorta("kill", run_id, "--grace", "0s"))
    moments = watch({"empty_s": empty.is_reached}, 60)
    ran = killing.wait().check()
    return {"seconds": ran.seconds, "empty_s": moments["empty_s"] - ran.began, "cpu_s": ran.cpu_s}


def kill_by_hand(nodes: Nodes) -> Mapping[str, float]:
    """Kill a torchrun that was started by hand."""
    folder, empty = nodes.shared / f"kill_{next(_numbers)}", Emptiness(nodes)
    folder.mkdir()
    started = nodes.start(
        clush(nodes, torchrun(nodes, nodes.fake_python, CLUSH_RANK, ["deaf.py", str(folder)], pick_port()))
    )
    wait_until(lambda: len(list(folder.glob("*.up"))) == nodes.count, 120, "every rank is up")
    time.sleep(1)
    killing = nodes.start(clush(nodes, PKILL))
    moments = watch({"empty_s": empty.is_reached}, 60)
    ran = killing.wait().check()
    started.wait()
    return {"seconds": ran.seconds, "empty_s": moments["empty_s"] - ran.began, "cpu_s": ran.cpu_s}


def build_must(says: str, tool: str) -> tuple[Must, Must]:
    """A must of eight nodes, for the command and for what it is about."""
    return (
        Must(says=says, case=CASE, nodes=8, tool=tool, at_most=3, unit="s"),
        Must(says="… to every node empty", case=CASE, nodes=8, tool=tool, metric="empty_s", at_most=3, unit="s"),
    )


PART = Part(
    word="kill",
    title="Kill of N nodes",
    about=(
        "One rank a node, deaf to TERM, INT and HUP, under a stand-in for torchrun; nobody is given time to end by himself. seconds: until the "
        "command that kills has ended, which for aorta-launch is after its proof that nothing is left; Ctrl-C: until the launcher itself has. empty_s: "
        "until every node's process table is what it was before the run, logins included. clush pkill kills what a clush … torchrun has started."
    ),
    sizes=(2, 8, 32, 64),
    measure=measure,
    musts=(
        *build_must("kill of 8 nodes that a launcher watches, grace 0", SHELL),
        *build_must("Ctrl-C, 8 nodes, grace 0", CTRL_C),
    ),
)
