"""Part c: how long until every node has the code."""

from __future__ import annotations

import itertools
import os
import random
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence

from .bench import Bench, Contender, Must, Part
from .disks import give_disks
from .launches import Launch
from .nodes import Nodes, open_nodes
from .timing import BenchError
from .tools import CURVE

FOLDERS, FILES_EACH = 100, 30
LEAST_BYTES, MOST_BYTES = 1_000, 33_000
FIRST, SAME, ONE = "first time", "nothing changed", "one file changed"
OURS, LOOP, CURVE_LOOP = "aorta-launch, its push", "rsync loop", "rsync loop, curve25519"
PLACE = "/mnt/code"
"""On each node, a disk of its own."""
PLACE_MIB = 300


class Code:
    """A project of 50 MB in 3,000 files, and its copies."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.changed = nodes.project / "folder_050" / "file_15.bin"
        self._places = give_disks(nodes, PLACE, PLACE_MIB)
        for place in self._places:
            (place / "none").mkdir()
        self._chance = random.Random(7)  # noqa: S311 - bytes that do not compress
        self._numbers, self._turns = itertools.count(), itertools.count()
        for number in range(FOLDERS):
            folder = nodes.project / f"folder_{number:03d}"
            folder.mkdir()
            for each in range(FILES_EACH):
                size = self._chance.randrange(LEAST_BYTES, MOST_BYTES)
                (folder / f"file_{each:02d}.bin").write_bytes(self._chance.randbytes(size))

    def change(self) -> None:
        """Write other bytes into one file, a few more of them: at the same size rsync would miss what changed within one second."""
        self.changed.write_bytes(self._chance.randbytes(MOST_BYTES + next(self._numbers)))

    def turn(self) -> int:
        """Now this way round, now that."""
        return 1 if next(self._turns) % 2 else -1

    def forget(self, name: str) -> None:
        """Remove a contender's copies."""
        for place in self._places:
            shutil.rmtree(place / name, ignore_errors=True)

    def check_copies(self, name: str) -> None:
        """Go on only when every node has the code."""
        wanted = self.changed.read_bytes()
        for path in [place / name for place in self._places]:
            files = sum(len(names) for _, _, names in os.walk(path))
            if files < FOLDERS * FILES_EACH:
                raise BenchError(f"{files} files of the code in {path}")
            if (path / self.changed.parent.name / self.changed.name).read_bytes() != wanted:
                raise BenchError(f"not the code in {path}")


def measure(bench: Bench, count: int) -> None:
    """Push to nodes that have nothing, that have all, and that lack a change."""
    with open_nodes(count) as nodes:
        code = Code(nodes)
        bench.compare("push", FIRST, count, list_contenders(code, code.forget), warm_up=True)
        bench.compare("push", SAME, count, list_contenders(code, lambda _: None), warm_up=True)
        bench.compare("push", ONE, count, list_contenders(code, lambda _: code.change()), warm_up=True)


def list_contenders(code: Code, prepare: Callable[[str], None]) -> list[Contender]:
    """Launches with and without a push, and the loops; `prepare` gets the name of a contender's copies."""
    return [
        Contender(
            tool=OURS,
            command=f"aorta-launch {shlex.join(build_words('ours'))}, less the same with --no-push",
            measure=lambda: run_ours(code, prepare),
        ),
        build_loop(code, LOOP, f"rsync -a --delete ./ $n:{PLACE}/loop/", prepare),
        build_loop(code, CURVE_LOOP, f"rsync -a --delete -e 'ssh -o {CURVE}' ./ $n:{PLACE}/loop/", prepare),
    ]


def build_words(copies: str) -> list[str]:
    """A launch of a command that does nothing."""
    return ["--no-check", "--workdir", f"{PLACE}/{copies}", "--agent", "command", "--command", "true"]


def run_ours(code: Code, prepare: Callable[[str], None]) -> Mapping[str, float]:
    """Launch with and without a push, alternating which is first: what lies between the two is what a user waits for."""
    prepare("ours")
    kinds = [("push", build_words("ours")), ("no push", [*build_words("none"), "--no-push"])]
    waited = {kind: wait_for_code(code, words) for kind, words in kinds[:: code.turn()]}
    code.check_copies("ours")
    return {"seconds": waited["push"] - waited["no push"], "from_command_s": waited["push"]}


def wait_for_code(code: Code, words: Sequence[str]) -> float:
    """Launch, and give the time from the command until the code was where it runs, by run.json."""
    launch = Launch(code.nodes, words)
    ran = launch.wait()
    return launch.read_timings()["pushed"] - ran.began


def build_loop(code: Code, tool: str, typed: str, prepare: Callable[[str], None]) -> Contender:
    """Everybody's loop: one rsync a node, all at once."""
    loop = f"for n in {' '.join(code.nodes.addresses)}; do {typed} & done"
    script = f"{loop}; failed=0; for p in $(jobs -p); do wait $p || failed=1; done; exit $failed"
    copies = typed.removesuffix("/").rpartition("/")[2]

    def run() -> Mapping[str, float]:
        prepare(copies)
        ran = code.nodes.run(["bash", "-c", script]).check()
        code.check_copies(copies)
        return {"seconds": ran.seconds, "from_command_s": ran.seconds, "cpu_s": ran.cpu_s}

    return Contender(tool=tool, command=f"for n in …; do {typed} & done; wait", measure=run)


def build_must(says: str, case: str, at_most: float) -> Must:
    """A must of 32 nodes."""
    return Must(says=says, case=case, nodes=32, tool=OURS, against=LOOP, at_most=at_most)


PART = Part(
    word="push",
    title="Push of 50 MB in 3,000 files",
    about=(
        "A launch pushes over the links that it opens anyway, and already while it looks at the nodes; so of aorta-launch counts how much later the "
        "code is there, by run.json, than in the same launch with --no-push. from_command_s counts from the command on, logins included. The loop is one "
        "`rsync -a` a node, all at once, over ssh as installed, and with curve25519 forced. A launch proves by hash that all copies are equal; the loop "
        "proves nothing. Every node has a disk of its own in memory."
    ),
    sizes=(2, 8, 32),
    measure=measure,
    musts=(
        build_must("unchanged push at 32 nodes against an rsync loop that finds nothing to do", SAME, 0.5),
        build_must("first push at 32 nodes against that loop", FIRST, 1.2),
        build_must("push of one changed file at 32 nodes against that loop", ONE, 1.2),
    ),
)
