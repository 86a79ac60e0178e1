"""What one part of the proof found, as JSON: every figure, on what, with which versions, by which commands."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmark.results import render_lines

SCHEMA = 1
Row = dict[str, Any]


class ProofError(RuntimeError):
    """Something could not be measured; nothing is left out in silence."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """One part of one run."""

    part: str
    made: str
    commands: tuple[str, ...]
    """As a person would type them; NODES stands for the node list."""
    machine: dict[str, Any]
    versions: dict[str, str]
    rows: tuple[Row, ...]


def write_results(results: Results, folder: Path) -> Path:
    """Write a file with one line a row, which a diff can show."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{results.part}.json"
    path.write_text(render_lines({"schema": SCHEMA, **asdict(results)}, "rows"))
    return path


def read_results(path: Path) -> Results:
    """Read back what `write_results` wrote."""
    values = json.loads(path.read_text())
    if values.pop("schema") != SCHEMA:
        raise ProofError(f"{path} has another schema")
    values["commands"], values["rows"] = tuple(values["commands"]), tuple(values["rows"])
    return Results(**values)
