"""Keeps what the nodes answered in a folder, and reads it back: a report becomes a test."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from orchestrator.errors import NodeError, UsageError
from orchestrator.facts import Facts, Survey, parse_facts
from orchestrator.facts.group import parse_group
from orchestrator.phases.preflight import NodeAnswer
from orchestrator.settings import Settings
from orchestrator.typed_json import OddValueError, from_json, to_json
from orchestrator.values import Node

SCHEMA = 1
SURVEY = "survey.json"
NODES = "node_[0-9][0-9][0-9][0-9].json"
"""Whatever else lies in the folder is not ours to remove."""


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
        _write(folder / SURVEY, {"schema": SCHEMA, **to_json(survey)})
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
            offset, error_s = (_number(value) for value in document["clock"])
            nodes.append(from_json(Node, document["node"]))
            known = parse_facts(node_rank, document["answer"], (offset, error_s), str(path))
            facts.append(replace(known, answer_s=_number(document["took_s"])))
        except OddValueError as error:
            raise _odd(path, f"node.{error}") from None
        except NodeError as error:
            raise _odd(path, error.what) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _odd(path, f"{type(error).__name__}: {error}") from None
        if document.get("node_rank") != node_rank:
            # What was measured between the nodes is told by their ranks.
            raise _odd(path, f"node {node_rank} is missing")
    return tuple(nodes), facts, _read_survey(folder / SURVEY, len(nodes))


def refuse_unmeasured(survey: Survey, settings: Settings) -> None:
    """Refuse to judge what the folder does not hold, and to keep what is kept already.

    Raises:
        UsageError: a level is asked for that was not measured, or the facts are to be saved again.
    """
    folder = str(settings.from_facts)
    if settings.save_facts is not None:
        raise UsageError("--from-facts and --save-facts exclude each other", "command line", "leave one out")
    measured = 2 if survey.load is not None else 1 if survey.collectives is not None else 0
    if settings.check_level > measured:
        raise UsageError(
            f"the saved facts are of level {measured}",
            where=folder,
            remedy=f"leave --level out, or save them anew: check --level {settings.check_level} --save-facts {folder}",
        )


def _read_survey(path: Path, node_count: int) -> Survey:
    if not path.exists():
        raise _odd(path, "it is missing")
    try:
        survey = parse_group(Survey, _read(path), str(path))
    except NodeError as error:
        raise _odd(path, error.what) from None
    if max(_ranks_of(survey), default=-1) >= node_count or min(_ranks_of(survey), default=0) < 0:
        raise _odd(path, f"it tells of other nodes than the {node_count} of the folder")
    if survey.reach is not None and survey.reach.attempts and len(survey.reach.attempts) != node_count:
        raise _odd(path, f"it tells of {len(survey.reach.attempts)} nodes, and the folder has {node_count}")
    return survey


def _ranks_of(survey: Survey) -> list[int]:
    ranks = [rank for way in (survey.mesh.ways if survey.mesh else ()) for rank in (way.source, way.target)]
    if survey.collectives is not None:
        ranks += [rank for pair in survey.collectives.pairs for rank in (pair.first, pair.second)]
        ranks += [process.node_rank for process in survey.collectives.processes]
    if survey.load is not None:
        ranks += [member.node_rank for member in survey.load.members]
        ranks += [gauges.node_rank for gauges in survey.load.gauges]
    return ranks


def _number(raw: Any) -> float:
    if not math.isfinite(number := float(raw)):
        raise ValueError(f"{raw} is no number")
    return number


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _odd(path, error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:
        raise _odd(path, f"no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise _odd(path, f"not of schema {SCHEMA}")
    return document


def _odd(path: Path, what: str) -> UsageError:
    return UsageError(f"saved facts cannot be read: {what}", where=str(path), remedy="save them anew: --save-facts DIR")
