"""The runs that this launch host remembers: which of them may be alive, and which one a word means."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError
from orchestrator.light_dataclass import dataclass
from orchestrator.plan.paths import launches_folder
from orchestrator.values import Node

if TYPE_CHECKING:
    from orchestrator.settings import Settings


@dataclass(frozen=True, kw_only=True)
class KnownRun:
    """One run as this launch host remembers it."""

    run_id: str
    entry: Path
    experiment: str
    live: bool
    """It was not seen to its end from here."""
    nodes: tuple[Node, ...]
    ssh: dict[str, Any]
    control: dict[str, Any] = field(default_factory=dict)
    """Settings of its launch by which another process can take it over."""


def read_known_runs(home: Path) -> list[KnownRun]:
    """Read every entry, oldest first; one that cannot be read is left out."""
    runs = [run for entry in launches_folder(home).glob("*.json") if (run := read_entry(entry)) is not None]
    return sorted(runs, key=lambda run: (_age_key(run.entry), run.run_id))


def _age_key(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def read_entry(entry: Path) -> KnownRun | None:
    """Read one entry, whatever somebody or a full disk made of it; None when it is none."""
    try:
        document = json.loads(entry.read_text("utf-8"))
        # The id leads to files here and on the nodes: it has to be the one that the entry is named by.
        if document["run_id"] != entry.stem or not isinstance(document["experiment"], str):
            return None
        return KnownRun(
            run_id=entry.stem,
            entry=entry,
            experiment=document["experiment"],
            live=bool(document["live"]),
            nodes=tuple(_parse_node(node) for node in document["nodes"]),
            ssh=dict(document["ssh"]),
            control=dict(document.get("control") or {}),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def reach_settings(settings: Settings, known: KnownRun, keys: Mapping[str, Any] | None = None) -> Settings:
    """Reach the nodes as the run's own launch did, but for what this call says itself.

    `keys` are settings of the run itself: of these only a flag of this call wins, no variable and no config of its shell.
    """
    origins = settings.origins
    kept = {key: value for key, value in known.ssh.items() if origins.get(key, "default") == "default"}
    own = {key: value for key, value in (keys or {}).items() if not origins.get(key, "default").startswith("flag ")}
    return settings.model_copy(update={**kept, **own})


def _parse_node(document: dict[str, Any]) -> Node:
    known = {one.name for one in fields(Node)}
    values = {name: value for name, value in document.items() if name in known}
    values["gpus"] = tuple(values.get("gpus", ()))
    values["env"] = ()
    return Node(**values)


def choose_run(runs: Sequence[KnownRun], word: str | None, verb: str) -> KnownRun:
    """Find the one run that is meant: by id or a unique prefix of it, or the only live one.

    Raises:
        UsageError: none or several are meant; they are listed.
    """
    return choose_runs(runs, word, all_runs=False, verb=verb)[0]


def choose_runs(runs: Sequence[KnownRun], word: str | None, *, all_runs: bool, verb: str = "kill") -> list[KnownRun]:
    """Find the runs that are meant: by id or a unique prefix of it, all live ones, or the only live one.

    Raises:
        UsageError: none or several are meant; they are listed.
    """
    live = [run for run in runs if run.live]
    if all_runs:
        return live
    if word is None:
        if len(live) == 1:
            return live
        if not live:
            latest = f"; the latest one was {runs[-1].run_id}" if runs else ""
            raise UsageError(
                what=f"no run is live, as far as this machine knows{latest}",
                remedy=f"name the run: aorta-launch {verb} RUN",
            )
        listed = "".join(f"\n    {run.run_id}  {len(run.nodes)} nodes  {run.experiment}" for run in live)
        rest = ", or --all" if verb == "kill" else ""
        raise UsageError(what=f"{len(live)} runs are live:{listed}", remedy=f"name one of them{rest}")
    if not word:
        # kill "$RUN" with nothing in it would mean every run.
        raise UsageError(what="the id of the run is empty", remedy=f"name the run: aorta-launch {verb} RUN")
    found = [run for run in runs if run.run_id == word] or [run for run in runs if run.run_id.startswith(word)]
    if len(found) == 1:
        return found
    if found:
        listed = "".join(f"\n    {run.run_id}" for run in found)
        raise UsageError(what=f"{word} is the beginning of {len(found)} runs:{listed}", remedy="write more of the id")
    entry = launches_folder(Path.home()) / f"{word}.json"
    if "/" not in word and os.path.lexists(entry):
        raise UsageError(
            what=f"what is remembered of {word} cannot be read",
            where=str(entry),
            remedy=f"aorta-launch kill {word} --nodes FILE asks the nodes themselves",
        )
    near = get_close_matches(word, [run.run_id for run in runs], n=1)
    raise UsageError(
        what=f"no run {word} is known here" + (f"; did you mean {near[0]}?" if near else ""),
        remedy="runs are remembered on the machine and for the user that launched them",
    )
