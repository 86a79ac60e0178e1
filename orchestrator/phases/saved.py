"""Keeps what the nodes answered in a folder, and reads it back: a report becomes a test."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from orchestrator.errors import UsageError
from orchestrator.facts import Facts, Survey, parse_facts
from orchestrator.facts.group import parse_group
from orchestrator.phases.preflight import NodeAnswer
from orchestrator.values import Node

SCHEMA = 1
SURVEY = "survey.json"
NODES = "node_[0-9][0-9][0-9][0-9].json"
"""Whatever else lies in the folder is not ours to remove."""
_NODE: TypeAdapter[Node] = TypeAdapter(Node)


def write_answers(folder: Path, nodes: Sequence[Node], answers: Sequence[NodeAnswer], survey: Survey) -> None:
    """Write one file a node and one for what was measured between them.

    Raises:
        UsageError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(NODES):
            old.unlink()
        for node_rank, (node, answer) in enumerate(zip(nodes, answers, strict=True)):
            # Variables of the node list may hold secrets, and no check looks at them.
            line = {key: value for key, value in asdict(node).items() if key != "env"}
            document = {"schema": SCHEMA, "node_rank": node_rank, "node": line, "clock": answer.clock}
            _write(folder / f"node_{node_rank:04d}.json", {**document, "took_s": answer.took_s, "answer": answer.raw})
        _write(folder / SURVEY, {"schema": SCHEMA, **survey.model_dump(mode="json")})
    except OSError as error:
        raise UsageError(
            f"the facts cannot be written: {error.strerror}", where=str(folder), remedy="name another folder"
        ) from None


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read_answers(folder: Path) -> tuple[tuple[Node, ...], list[Facts], Survey]:
    """Read them back; nobody is contacted.

    Raises:
        UsageError: there are none, or a file is not what write_answers wrote.
    """
    paths = sorted(folder.glob(NODES))
    if not paths:
        raise UsageError("there are no saved facts", where=str(folder), remedy="write some: check --save-facts DIR")
    nodes, facts = [], []
    for node_rank, path in enumerate(paths):
        document = _read(path)
        try:
            offset, error_s = document["clock"]
            nodes.append(_NODE.validate_json(json.dumps(document["node"])))
            known = parse_facts(node_rank, document["answer"], (float(offset), float(error_s)), str(path))
            facts.append(replace(known, answer_s=float(document["took_s"])))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _odd(path, f"{type(error).__name__}: {error}") from None
    survey = folder / SURVEY
    return tuple(nodes), facts, parse_group(Survey, _read(survey), str(survey)) if survey.exists() else Survey()


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _odd(path, error.strerror or str(error)) from None
    except ValueError as error:
        raise _odd(path, f"no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise _odd(path, f"not of schema {SCHEMA}")
    return document


def _odd(path: Path, what: str) -> UsageError:
    return UsageError(f"saved facts cannot be read: {what}", where=str(path), remedy="save them anew: --save-facts DIR")
