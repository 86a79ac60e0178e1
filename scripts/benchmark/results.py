"""What a run of the benchmark found, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
    note: str = ""
    """What a reader has to know of this very run."""

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
    path.write_text(render_lines({"schema": SCHEMA, **asdict(results)}, "series"))


def render_lines(document: Mapping[str, Any], key: str) -> str:
    """Write a document as JSON; what stands under the key comes last, with one line for each."""
    head = {name: value for name, value in document.items() if name != key}
    text = json.dumps(head, indent=1).removesuffix("\n}")
    lines = [json.dumps(one) for one in document[key]]
    return f'{text},\n "{key}": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


def read_results(path: Path) -> Results:
    """Read back what `write_results` wrote."""
    values = json.loads(path.read_text())
    if values.pop("schema") != SCHEMA:
        raise ValueError(f"{path} has another schema")
    series: Sequence[dict[str, object]] = values.pop("series")
    return Results(**values, series=tuple(Series(**{**one, "values": tuple(one["values"])}) for one in series))  # type: ignore[arg-type]
