"""What a run of the benchmark found, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .bench import Series

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Results:
    """One run: every single figure, on what, with which versions, by which command."""

    made: str
    command: str
    machine: dict[str, str]
    versions: dict[str, str]
    series: tuple[Series, ...]

    @property
    def parts(self) -> list[str]:
        """The words of its parts."""
        return list(dict.fromkeys(series.part for series in self.series))

    def of(self, part: str) -> list[Series]:
        """The series of one part."""
        return [series for series in self.series if series.part == part]

    def find(self, part: str, case: str, nodes: int, tool: str, metric: str) -> Series | None:
        """One series."""
        wanted = (part, case, nodes, tool, metric)
        return next((s for s in self.series if (s.part, s.case, s.nodes, s.tool, s.metric) == wanted), None)


def write_results(results: Results, path: Path) -> None:
    """Write a file with one line a series, which a diff can show."""
    head = {"schema": SCHEMA, **asdict(results)}
    lines = [json.dumps(series) for series in head.pop("series")]
    text = json.dumps(head, indent=1).removesuffix("\n}")
    path.write_text(text + ',\n "series": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n")


def read_results(path: Path) -> Results:
    """Read back what `write_results` wrote."""
    values = json.loads(path.read_text())
    if values.pop("schema") != SCHEMA:
        raise ValueError(f"{path} has another schema")
    series: Sequence[dict[str, object]] = values.pop("series")
    return Results(**values, series=tuple(Series(**{**one, "values": tuple(one["values"])}) for one in series))  # type: ignore[arg-type]
