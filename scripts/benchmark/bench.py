"""What a part of the benchmark is, and how its contenders are measured in pairs."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .timing import BenchError

MANY = 32
"""From so many nodes on a round is long, and what is cold costs next to nothing of it: no warm-up."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A tool that does the work of one case, once each time `measure` is called."""

    tool: str
    """As the table names it; aorta-launch's own begins with `aorta-launch`."""
    command: str
    """As typed, for the reader."""
    measure: Callable[[], Mapping[str, float]]
    """Do it once; give metric → figure. The metric `seconds` is the time that users wait; others carry their unit:
    cpu_s, peak_mib, lost_bytes, core_percent."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Every figure of one metric of one tool; the same place in two series of a case is the same round."""

    part: str
    case: str
    nodes: int
    tool: str
    metric: str
    command: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """What is told of them."""
        return statistics.median(self.values)


@dataclass(frozen=True, kw_only=True)
class Must:
    """What has to be reached, as a ratio to another tool or to another number of nodes, or as a figure."""

    says: str
    case: str
    nodes: int
    tool: str
    at_most: float
    metric: str = "seconds"
    against: str = ""
    """The tool of the same case and rounds that is divided by."""
    against_nodes: int = 0
    """The number of nodes whose figure of the same tool is divided by."""
    unit: str = ""
    """Of a figure that is no ratio."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the benchmark; its module has it as PART."""

    word: str
    """Names it on the command line and in the results."""
    title: str
    about: str
    """What is measured and how: sentences for the page."""
    sizes: tuple[int, ...]
    """Numbers of nodes when none are asked for."""
    measure: Callable[[Bench, int], None]
    """Bring so many nodes up, and call `Bench.compare` for every case."""
    musts: tuple[Must, ...] = ()


@dataclass
class Bench:
    """One run of the benchmark: how often, and what was found."""

    runs: int = 5
    series: list[Series] = field(default_factory=list)

    def compare(
        self,
        part: str,
        case: str,
        nodes: int,
        contenders: Sequence[Contender],
        *,
        runs: int = 0,
        warm_up: bool = False,
    ) -> None:
        """Let every contender do its work once a round, in alternating order.

        Args:
            part: the part's word
            case: what is done, e.g. "nothing changed"
            nodes: on how many nodes
            contenders: who does it
            runs: rounds; 0: as the command line says
            warm_up: one round more before those that count, so that nobody pays for cold files
        """
        found: dict[tuple[str, str], list[float]] = {}
        names = [contender.tool for contender in contenders]
        if len(set(names)) < len(names):
            raise BenchError(f"{part}, {case}: two contenders have one name: {names}")
        first = -1 if warm_up else 0
        for number in range(first, runs or self.runs):
            ordered = contenders if number % 2 == 0 else contenders[::-1]
            for contender in ordered:
                begin = time.monotonic()
                figures = contender.measure()
                say_round(part, case, nodes, number, contender.tool, figures, time.monotonic() - begin)
                for metric, value in figures.items() if number >= 0 else ():
                    found.setdefault((contender.tool, metric), []).append(value)
        self._keep(part, case, nodes, contenders, found)

    def _keep(
        self,
        part: str,
        case: str,
        nodes: int,
        contenders: Sequence[Contender],
        found: Mapping[tuple[str, str], list[float]],
    ) -> None:
        commands = {contender.tool: contender.command for contender in contenders}
        for (tool, metric), values in found.items():
            self.series.append(
                Series(
                    part=part,
                    case=case,
                    nodes=nodes,
                    tool=tool,
                    metric=metric,
                    command=commands[tool],
                    values=tuple(round(value, 4) for value in values),
                )
            )


def say_round(
    part: str, case: str, nodes: int, number: int, tool: str, figures: Mapping[str, float], wall_s: float
) -> None:
    """Tell the person who waits what was just found."""
    when = "warm-up" if number < 0 else f"round {number + 1}"
    shown = " ".join(f"{metric}={value:.3f}" for metric, value in figures.items())
    print(f"bench: {part} · {case} · {nodes} nodes · {when} · {tool}: {shown} ({wall_s:.1f} s)", file=sys.stderr)
