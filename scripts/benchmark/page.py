"""docs/performance.md and its curves: made from the figures in docs/performance/, by scripts/bench --page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from . import PROJECT
from .bench import Part, Series
from .curves import draw_curves
from .judge import Reached, judge_all
from .parts import list_words, read_part
from .results import Results, read_results
from .table import OURS, render_musts, render_part, show
from .timing import BenchError

PAGE = PROJECT / "docs" / "performance.md"
FIGURES = PROJECT / "docs" / "performance"
FURTHER = FIGURES / "more_cores"
"""The same parts on other machines, a folder each that is named by its cores, where they tell something else."""
CURVE_SIZES = 3
"""Fewer sizes make no curve."""
INTRO = """# Performance

What aorta-launch costs, measured side by side with what people use instead, and how that grows with the number of
nodes. This page is made by `scripts/bench --page` from the figures in [performance/](performance), where every single one stands.

How it is measured: every node is a real sshd with network, process and file name spaces of its own, and all of them stand on
one machine, so that what takes processor time on a node takes time from all. In every round each tool does its work once,
in alternating order; a ratio is the median of the ratios of the rounds, a figure is the median with the least and the most
in brackets. A tool that is not there is installed, or the benchmark fails: none is left out.

To repeat it, as root, because nodes need name spaces:

    scripts/bench                              # every part at its own sizes
    scripts/bench check --nodes 2,8 --runs 5   # one part, other sizes

"""


def read_all(folder: Path = FIGURES) -> dict[str, Results]:
    """Part → the results that hold it; a part that was measured in several runs is in one piece here."""
    found: dict[str, Results] = {}
    for path in sorted(folder.glob("*.json")):
        results = read_results(path)
        for part in results.parts:
            own = replace(results, series=tuple(results.of(part)))
            found[part] = merge(found[part], own, path) if part in found else own
    return found


def merge(first: Results, second: Results, path: Path) -> Results:
    """Two runs that measured other sizes of one part, on one machine with the same versions."""
    places = {(series.case, series.nodes) for series in first.series}
    if twice := [series for series in second.series if (series.case, series.nodes) in places]:
        raise BenchError(f"{path}: {twice[0].case!r} at {twice[0].nodes} nodes stands in another file as well")
    if (first.machine, first.versions) != (second.machine, second.versions):
        raise BenchError(f"{path}: measured on another machine or with other versions than the rest of its part")
    return replace(
        first,
        made=f"{first.made} and {second.made}",
        command=f"{first.command}` and `{second.command}",
        series=first.series + second.series,
    )


def read_further() -> list[dict[str, Results]]:
    """What was measured on other machines: for each, part → results."""
    return [read_all(folder) for folder in sorted(FURTHER.iterdir(), key=lambda folder: int(folder.name))]


def build_files(found: dict[str, Results], further: Sequence[dict[str, Results]]) -> dict[str, str]:
    """Every file of the page, by its path below docs/."""
    parts = [read_part(word) for word in list_words() if word in found]
    reached = [one for word in list_words() for one in judge_part(found.get(word), word)]
    sections = [INTRO, "## What it must reach\n", render_musts(reached), "", *list_further(further)]
    files: dict[str, str] = {}
    for part in parts:
        curves = build_curves(found[part.word], part)
        files |= curves
        sections.append(build_section(found[part.word], part, list(curves)))
        sections += [build_further(there[part.word], part) for there in further if part.word in there]
    return {"performance.md": "\n".join(sections), **files}


def list_further(further: Sequence[dict[str, Results]]) -> list[str]:
    """Where the page says what is otherwise on another machine."""
    names = [name_further(results, word) for there in further for word, results in there.items()]
    titles = [f"[{name}](#{name.lower().replace(' ', '-')})" for name in names]
    return [f"What comes out depends on how many cores all nodes share: see {', '.join(titles)}.", ""] if titles else []


def name_further(results: Results, word: str) -> str:
    """The title of a part that was measured on another machine as well."""
    return f"{read_part(word).title} on {results.machine['cores']} cores"


def build_further(results: Results, part: Part) -> str:
    """A part on another machine: what it reaches there, tables, on what."""
    reached = [one for one in judge_part(results, part.word) if one.measured is not None]
    lines = [f"## {name_further(results, part.word)}", "", *([results.note, ""] if results.note else [])]
    lines += [render_musts(reached), "", render_part(results, part.word), say_where(results), ""]
    return "\n".join(lines)


def judge_part(results: Results | None, word: str) -> list[Reached]:
    """The musts of one part; of one that was not measured, each is said to be open."""
    musts = read_part(word).musts
    if results is None:
        return [Reached(part=word, must=must, measured=None) for must in musts]
    return judge_all(results, word, musts)


def build_section(results: Results, part: Part, curves: Sequence[str]) -> str:
    """One part: what is measured, curves, tables, the commands, on what."""
    lines = [f"## {part.title}", "", part.about, ""]
    lines += [f"![{part.title}: curves]({path})\n" for path in curves]
    lines += [*list_growth(results, part), render_part(results, part.word), "Commands:", ""]
    commands = dict.fromkeys((series.tool, hide_count(series)) for series in results.of(part.word))
    lines += [f"- {tool}: `{command}`" for tool, command in commands]
    lines += ["", say_where(results), ""]
    return "\n".join(lines)


def say_where(results: Results) -> str:
    """When, by which command, on what and with which versions."""
    machine = results.machine
    shown = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    return (
        f"Measured {results.made} by `{results.command}` on {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_gib']} GiB, Linux {machine['kernel']}; {shown}."
    )


def hide_count(series: Series) -> str:
    """A command without what differs with the number of nodes alone."""
    words = series.command.split(" ")
    return " ".join("N" if word == str(series.nodes) else word for word in words)


def build_curves(results: Results, part: Part) -> dict[str, str]:
    """A figure for every case that was measured at several sizes."""
    files = {}
    for number, (case, tools) in enumerate(read_curves(results, part).items(), 1):
        ours_first = dict(sorted(tools.items(), key=lambda pair: not pair[0].startswith(OURS)))
        files[f"performance/{part.word}-{number}.svg"] = draw_curves(f"{part.title}: {case}", ours_first)
    return files


def read_curves(results: Results, part: Part) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Case → tool → nodes and seconds, where there are several sizes."""
    cases: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for series in results.of(part.word):
        if series.metric == "seconds":
            cases.setdefault(series.case, {}).setdefault(series.tool, []).append((series.nodes, series.median))
    return {
        case: tools
        for case, tools in cases.items()
        if len({size for p in tools.values() for size, _ in p}) >= CURVE_SIZES
    }


def list_growth(results: Results, part: Part) -> list[str]:
    """What a further node costs, between the least and the most nodes."""
    lines = []
    for case, tools in read_curves(results, part).items():
        costs = {}
        for tool, points in tools.items():
            (few, begin), (many, end) = min(points), max(points)
            costs[tool] = (end - begin) / (many - few) * 1000
        shown = "; ".join(f"{tool} {show(cost)} ms" for tool, cost in costs.items())
        lines += [f"What each further node costs ({case}): {shown}.", ""]
    return lines


def write_page() -> None:
    """Write every file of the page, and take away curves that are none any more."""
    files = build_files(read_all(), read_further())
    for path in FIGURES.glob("*.svg"):
        if f"performance/{path.name}" not in files:
            path.unlink()
    for name, content in files.items():
        path = PAGE.parent / name
        path.write_text(content)
        print(path)
