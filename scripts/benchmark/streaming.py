"""Part d: what ranks write comes to the launch host: whole, soon, and at what cost."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .arrivals import LOOK_S, STAMP, Arrivals
from .bench import Bench, Contender, Must, Part
from .flood import BLOCK, LINE
from .launches import Launch, wait_until
from .nodes import Nodes, open_nodes
from .timing import Running
from .tools import CLUSH_RANK, clush
from .usage import read_tree_cpu_s, read_tree_peak_mib

HERE = Path(__file__).resolve().parent
FLOOD, BURST = "10,000 lines/s from every node", "one node, 200 MB at once"
OURS = "aorta-launch"
LINES_PER_S, FLOOD_S = 10_000, 10
BURST_LINES = 200_000_000 // len(LINE) // 1000 * 1000
_numbers = itertools.count()


@dataclass(frozen=True)
class Water:
    """What every rank writes."""

    lines: int
    lines_per_s: int

    def words(self, folder: Path) -> list[str]:
        """The script with its words."""
        return ["flood.py", str(folder), str(self.lines), str(self.lines_per_s)]


@dataclass(frozen=True)
class Stream:
    """A command that brings what ranks write, and the files in which it will be: complete at these sizes."""

    running: Running
    files: Sequence[Path]
    sizes: Sequence[int]
    screen: Path | None = None
    """Where its stdout goes, if a rank's lines are there too."""
    stamps: int = 0
    """Lines there that tell the time."""
    exact: bool = True
    """Each file is one rank's, byte for byte."""


Start = Callable[[Path, Water], Stream]


def measure(bench: Bench, count: int) -> None:
    """One node at full speed, or many at ten thousand lines a second each."""
    with open_nodes(count) as nodes:
        shutil.copy(HERE / "flood.py", nodes.shared)
        if count == 1:
            water = Water(BURST_LINES, 0)
            found = [
                build(nodes, OURS, "aorta-launch --nodes nodes.txt … burst.py", start_ours, water),
                build(nodes, "ssh", "ssh node 'python3 burst.py …' > file", start_ssh, water),
            ]
            bench.compare("streaming", BURST, count, found)
            return
        water = Water(LINES_PER_S * FLOOD_S, LINES_PER_S)
        typed = f"clush -S -f {count} -w … 'RANK={CLUSH_RANK} python3 flood.py …' > file"
        found = [
            build(nodes, OURS, "aorta-launch --nodes nodes.txt … flood.py", start_ours, water),
            build(nodes, "clush", typed, start_clush, water),
        ]
        bench.compare("streaming", FLOOD, count, found)


def build(
    nodes: Nodes, tool: str, command: str, start: Callable[[Nodes, Path, Water], Stream], water: Water
) -> Contender:
    """A contender that lets the water in once all ranks are up, and out when all of it is here."""

    def run() -> Mapping[str, float]:
        folder = nodes.shared / f"flood_{next(_numbers)}"
        folder.mkdir()
        stream = start(nodes, folder, water)
        wait_until(lambda: len(list(folder.glob("*.up"))) == nodes.count, 120, "every rank is up")
        figures = let_flow(stream, folder)
        (folder / "done").touch()
        stream.running.wait().check()
        return figures

    return Contender(tool=tool, command=command, measure=run)


def let_flow(stream: Stream, folder: Path) -> dict[str, float]:
    """Let the ranks write, and look at what comes."""
    pid, screens = stream.running.pid, [stream.screen] if stream.screen else []
    with Arrivals([*stream.files, *screens]) as arrivals:
        cpu_s = read_tree_cpu_s(pid)
        (folder / "go").touch()
        ended = arrivals.wait_for([*stream.sizes, *(0 for _ in screens)], 180)
        cpu_s = read_tree_cpu_s(pid) - cpu_s
        peak_mib = read_tree_peak_mib(pid)
        wait_until(lambda: all(count_stamps(path) >= stream.stamps for path in screens), 60, "the screen has it too")
        time.sleep(2 * LOOK_S)
    told = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(list(folder.glob("*.up"))))]
    began = min(each["began"] for each in told)
    figures = {
        "seconds": ended - began,
        "rank_s": max(each["ended"] - each["began"] for each in told),
        "core_percent": 100 * cpu_s / (ended - began),
        "peak_mib": peak_mib,
    }
    figures |= name_lags("", [lag for path in stream.files for lag in arrivals.read_lags(path)])
    if stream.exact:
        figures["unequal_files"] = count_unequal(stream.files, told)
    for screen in screens:
        figures |= name_lags("screen_", arrivals.read_lags(screen))
    return figures


def count_stamps(path: Path) -> int:
    """The lines of a file that tell the time."""
    return len(STAMP.findall(path.read_bytes()))


def name_lags(begin: str, lags: Sequence[float]) -> dict[str, float]:
    """What is told of lags."""
    return {f"{begin}lag_s": statistics.median(lags), f"{begin}lag_most_s": max(lags)}


def count_unequal(files: Sequence[Path], told: Sequence[Mapping[str, object]]) -> int:
    """The files that do not hold what their rank says that it wrote."""
    return sum(
        hashlib.sha256(path.read_bytes()).hexdigest() != each["sha256"] for path, each in zip(files, told, strict=True)
    )


def start_ours(nodes: Nodes, folder: Path, water: Water) -> Stream:
    """A launch; rank 0 is on its screen."""
    launch = Launch(nodes, ("--no-check", "--no-push", "--workdir", nodes.shared, *water.words(folder)))
    files = [launch.experiment / "logs" / f"rank_{rank:04d}.out" for rank in range(nodes.count)]
    size = water.lines * len(LINE)
    screen = Path(f"/proc/{launch.running.pid}/fd/1")
    return Stream(launch.running, files, [size] * nodes.count, screen, water.lines // BLOCK)


def start_clush(nodes: Nodes, folder: Path, water: Water) -> Stream:
    """Everything in one file, every line with its node before it."""
    script = " ".join(water.words(folder))
    words = clush(nodes, f"cd {nodes.shared} && RANK={CLUSH_RANK} exec {nodes.fake_python} {script}")
    size = sum(water.lines * (len(LINE) + len(f"{address}: ")) for address in nodes.addresses)
    return start_into_file(nodes, folder, words, size, exact=False)


def start_ssh(nodes: Nodes, folder: Path, water: Water) -> Stream:
    """One node's lines, as they are."""
    script = " ".join(water.words(folder))
    words = ["ssh", nodes.addresses[0], f"cd {nodes.shared} && RANK=0 exec {nodes.fake_python} {script}"]
    return start_into_file(nodes, folder, words, water.lines * len(LINE), exact=True)


def start_into_file(nodes: Nodes, folder: Path, words: Sequence[str], size: int, *, exact: bool) -> Stream:
    """Start a command with its stdout in a file."""
    path = folder / "stdout"
    running = nodes.start(["sh", "-c", 'exec "$@" >"$0"', path, *words])
    return Stream(running, [path], [size], exact=exact)


def build_must(says: str, metric: str, at_most: float, unit: str) -> Must:
    """A must of 32 nodes."""
    return Must(says=says, case=FLOOD, nodes=32, tool=OURS, metric=metric, at_most=at_most, unit=unit)


PART = Part(
    word="streaming",
    title="What ranks write, on the launch host",
    about=(
        f"Every rank writes {LINES_PER_S:,} lines of {len(LINE)} bytes a second for {FLOOD_S} s, or one rank 200 MB as fast as it can. seconds: from the "
        "first byte written to the last one on the launch host's disk; rank_s: how long the slowest rank was busy with it, which is longer "
        "where it has to wait for whoever reads. unequal_files: files on the launch host whose SHA-256 is not that of what the rank wrote. "
        "lag_s (median) and lag_most_s: from the moment in which a line was written to that in which it stood in the file, screen_ the same for "
        "rank 0 on stdout. core_percent and peak_mib are the launch host's, with all children."
    ),
    sizes=(1, 8, 32),
    measure=measure,
    musts=(
        build_must("32 nodes with 10,000 lines/s each: files that are not equal", "unequal_files", 0, "files"),
        build_must("… one core of the launch host", "core_percent", 60, "%"),
        build_must("… peak memory there", "peak_mib", 150, "MiB"),
    ),
)
