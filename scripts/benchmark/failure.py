"""Part e: from a rank's exception to the verdict on the screen, and to every node empty."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from .bench import Bench, Contender, Must, Part
from .holding import Emptiness, watch
from .launches import Launch, wait_until
from .nodes import Nodes, open_nodes, pick_port
from .timing import BenchError, Running
from .tools import CLUSH_RANK, clush, torchrun

HERE = Path(__file__).resolve().parent
GLOO, ALONE = "ranks in collectives (gloo)", "ranks that wait for nobody"
WAYS = {GLOO: "gloo", ALONE: "alone"}
OURS, HAND = "aorta-launch", "clush … torchrun"
FAILURE_GRACE_S = 2.0
"""aorta-launch's own, where nobody has set another."""
GIVEN_UP_S = 30.0
"""The agents of a torchrun by hand are not waited for longer; ours neither."""
_numbers = itertools.count()


def measure(bench: Bench, count: int) -> None:
    """Let one rank raise, under PyTorch's own torchrun."""
    with open_nodes(count) as nodes:
        shutil.copy(HERE / "breaking.py", nodes.shared)
        for case, way in WAYS.items():
            bench.compare("failure", case, count, [build_ours(nodes, way), build_by_hand(nodes, way)])


def build_ours(nodes: Nodes, way: str) -> Contender:
    """A launch: its verdict counts."""

    def run() -> Mapping[str, float]:
        folder, empty = open_folder(nodes), Emptiness(nodes)
        words = ("--no-check", "--no-push", "--workdir", nodes.shared, "breaking.py", folder, way)
        launch = Launch(nodes, words, real=True)
        raised = let_raise(nodes, folder, launch.running, lambda: "running: " in launch.running.stderr)
        moments = watch(
            {
                "verdict_s": lambda: "FAILED after" in launch.running.stderr,
                "agents_gone_s": lambda: empty.is_free_of("torch.distributed.run"),
                "seconds": empty.is_reached,
            },
            GIVEN_UP_S,
        )
        launch.wait(1)
        return {name: moment - raised for name, moment in moments.items()}

    command = "aorta-launch --nodes nodes.txt --no-check --no-push --workdir … breaking.py …"
    return Contender(tool=OURS, command=command, measure=run)


def build_by_hand(nodes: Nodes, way: str) -> Contender:
    """A torchrun alone: its traceback counts, and who ends because of it."""

    def run() -> Mapping[str, float]:
        folder, empty = open_folder(nodes), Emptiness(nodes)
        script = ["breaking.py", str(folder), way]
        running = nodes.start(clush(nodes, torchrun(nodes, nodes.python, CLUSH_RANK, script, pick_port())))
        raised = let_raise(nodes, folder, running, lambda: True)
        said = watch({"traceback_s": lambda: "LookupError" in running.stdout + running.stderr}, GIVEN_UP_S)
        try:
            gone = watch({"agents_gone_s": lambda: empty.is_free_of("torch.distributed.run")}, GIVEN_UP_S)
        except BenchError:
            gone = {"agents_gone_s": raised + GIVEN_UP_S}
        running.kill()
        empty.clear()
        return {name: moment - raised for name, moment in {**said, **gone, "seconds": gone["agents_gone_s"]}.items()}

    return Contender(
        tool=HAND, command=f"clush -S -w … 'python -m torch.distributed.run … breaking.py {way}'", measure=run
    )


def open_folder(nodes: Nodes) -> Path:
    """Where ranks say that they are up, and that one has raised."""
    folder = nodes.shared / f"failure_{next(_numbers)}"
    folder.mkdir()
    return folder


def let_raise(nodes: Nodes, folder: Path, running: Running, is_running: Callable[[], bool]) -> float:
    """Wait for all ranks, let one of them raise, and give the moment."""
    try:
        wait_until(lambda: len(list(folder.glob("*.up"))) == nodes.count and is_running(), 150, "every rank is up")
    except BenchError as error:
        raise BenchError(f"{error}\n{running.stdout[-2000:]}\n{running.stderr[-2000:]}") from None
    (folder / "go").touch()
    wait_until(lambda: (folder / "raised").exists() and (folder / "raised").stat().st_size > 0, 20, "a rank raises")
    return float((folder / "raised").read_text())


def build_musts(case: str) -> tuple[Must, ...]:
    """What has to be reached at eight nodes."""
    return (
        Must(
            says=f"exception to verdict, 8 nodes, {case}",
            case=case,
            nodes=8,
            tool=OURS,
            metric="verdict_s",
            at_most=3,
            unit="s",
        ),
        Must(
            says="… to every node empty",
            case=case,
            nodes=8,
            tool=OURS,
            at_most=FAILURE_GRACE_S + 3,
            unit="s",
        ),
    )


PART = Part(
    word="failure",
    title="From a rank's exception to the verdict, and to nodes that are empty",
    about=(
        "PyTorch's torchrun, one rank a node; the rank in the middle writes down the time and raises. seconds: until every node's process table is what it "
        "was before, logins included; by hand until no torchrun is left on any node. verdict_s: until the verdict stands on the screen, traceback_s: until the "
        "exception's name does, by hand, where nobody says whose it was or stops the others. agents_gone_s: until no torchrun is left on any node. "
        f"By hand the agents are waited for {GIVEN_UP_S:g} s and then killed, so {GIVEN_UP_S:g} means longer; ranks that wait for nobody would go on "
        f"to their end there. The grace after a failure is aorta-launch's own, {FAILURE_GRACE_S:g} s."
    ),
    sizes=(2, 8),
    measure=measure,
    musts=(*build_musts(GLOO), *build_musts(ALONE)),
)
