"""Checks whether the trackers that a script uses will let it in."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.project import NO_SCRIPT
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, ok, skip, unknown, warn
from orchestrator.facts import Facts
from orchestrator.light_dataclass import dataclass
from orchestrator.settings import Settings
from orchestrator.values import Node

Nodes = Sequence[Node]
AllFacts = Sequence[Facts]


@dataclass(frozen=True)
class Tracker:
    """A service that wants a login."""

    login: str
    """What follows the interpreter's path to log in."""
    key: str
    """The variable that logs in as well."""


TRACKERS: Mapping[str, Tracker] = {
    "wandb": Tracker("-m wandb login", "WANDB_API_KEY"),
    "comet_ml": Tracker("-c 'import comet_ml; comet_ml.login()'", "COMET_API_KEY"),
    "neptune": Tracker("", "NEPTUNE_API_TOKEN"),
}
HUB = ("huggingface_hub", "transformers", "datasets")


def compare_trackers(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """Every node is logged in to the trackers that the script uses."""
    del settings
    return [_judge(node, fact, facts) for node, fact in zip(nodes, facts, strict=True)]


def _judge(node: Node, fact: Facts, facts: AllFacts) -> Seen:
    project = fact.project
    if project.script == "":
        return skip(NO_SCRIPT)
    if project.logins is None or project.script is None:
        return unknown(fact.why_unknown("project") or fact.why_unknown("project.script") or "the node did not say")
    told: list[str] = []
    for name, tracker in TRACKERS.items():
        if name not in (project.modules or {}) and name not in project.perhaps:
            continue
        if name in project.logins:
            told.append(f"{name} by {project.logins[name]}")
        elif _is_meant(name, fact, facts):
            others = [there for there in facts if name in (there.project.logins or {})]
            elsewhere = f", {len(others)} of {len(facts)} nodes are" if others else ""
            return warn(f"{name} is not logged in{elsewhere}", _how_to_log_in(node, fact, tracker))
        else:
            told.append(f"{name} is not logged in, and imported only on demand")
    if any(name in (project.modules or {}) or name in project.perhaps for name in HUB):
        told.append(f"huggingface by {project.logins.get('huggingface_hub', 'no token: public files only')}")
    return ok("; ".join(told)) if told else skip(f"{project.script} uses none that needs a login")


def _is_meant(name: str, fact: Facts, facts: AllFacts) -> bool:
    """Tell whether the script will speak to it: what is imported on demand may never be, unless somebody prepared it."""
    if name in (fact.project.modules or {}):
        return True
    prefix = f"{name.partition('_')[0].upper()}_"
    prepared = any(name in (there.project.logins or {}) for there in facts)
    return prepared or any(variable.startswith(prefix) for variable in fact.project.given)


def _how_to_log_in(node: Node, fact: Facts, tracker: Tracker) -> str:
    key = f"--env {tracker.key} gives the ranks this machine's key"
    if not tracker.login or not fact.python:
        return key
    return f"{on_node(node, f'{shlex.quote(fact.python)} {tracker.login}', terminal=True)}; or {key}"


CHECKS = (
    Check(
        name="trackers",
        looks_at="logins to wandb, comet and neptune where the script imports them; never the keys themselves",
        why="the tracker asks for a key where nobody can answer, and its rank ends",
        warns="a node is not logged in, and no key is given to the run",
        across=compare_trackers,
    ),
)
