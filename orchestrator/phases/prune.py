"""Finds what old runs hold, here and on their nodes, and removes it; a run of which anything lives is left whole."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import AortaError
from orchestrator.light_dataclass import dataclass
from orchestrator.node.forget import RefusedError, measure, remove_tree
from orchestrator.output.prune_text import Fate, Look, NodeShare
from orchestrator.phases.connect import close_links, connect_each
from orchestrator.phases.control import take_lock
from orchestrator.phases.known_runs import KnownRun
from orchestrator.phases.remembered import read_record
from orchestrator.plan.paths import launches_folder
from orchestrator.transport import Link
from orchestrator.transport.answers import read_frame
from orchestrator.transport.fanout import nobody, try_each
from orchestrator.values import Node

if TYPE_CHECKING:
    from orchestrator.settings import Settings

RUN_S = 600.0
"""For one run on one node: a million files on a slow disk."""
LOCKED = "another process of aorta-launch on this machine works on it"


@dataclass(frozen=True, kw_only=True)
class Target:
    """One node with all runs that are asked about there: one connection for all of them."""

    node: Node
    settings: Settings
    runs: tuple[tuple[str, int], ...]
    """Run id and node rank."""


def find_targets(runs: Sequence[KnownRun], reach: Callable[[KnownRun], Settings]) -> list[Target]:
    """Find the nodes of some runs, each once for the same way to reach it."""
    found: dict[str, Target] = {}
    for run in runs:
        for node_rank, node in enumerate(run.nodes):
            way = [node.host, node.user, node.port, node.key, node.jump, node.local, run.ssh]
            key = json.dumps(way, sort_keys=True, default=str)
            target = found.setdefault(key, Target(node=node, settings=reach(run), runs=()))
            found[key] = replace(target, runs=(*target.runs, (run.run_id, node_rank)))
    return list(found.values())


class Crew:
    """The nodes of the runs that may go, each asked over its one connection."""

    def __init__(self, targets: Sequence[Target], width: int) -> None:
        self.targets = targets
        self._width = width
        self._links: dict[int, Link] = {}
        self._errors: dict[int, AortaError] = {}

    def connect(self, done: Callable[[int], None] = nobody) -> None:
        """Open a link to every node that can be reached."""
        ways: dict[str, list[int]] = {}
        for place, target in enumerate(self.targets):
            ways.setdefault(repr(target.settings.model_copy(update={"origins": {}})), []).append(place)
        for places in ways.values():
            nodes = [self.targets[place].node for place in places]
            settings = self.targets[places[0]].settings
            links, errors = connect_each(nodes, settings, lambda at, places=places: done(places[at]))  # type: ignore[misc] # mypy knows no default in a lambda
            self._links.update({places[at]: link for at, link in links.items()})
            self._errors.update({places[at]: error for at, error in errors.items()})

    def ask(self, run_ids: Sequence[str], *, remove: bool) -> list[NodeShare]:
        """Let every node look at some runs, or remove them; one answer a target."""

        def ask_one(place: int) -> NodeShare:
            target = self.targets[place]
            wanted = [run for run in target.runs if run[0] in run_ids]
            looks = _ask_node(self._links[place], wanted, remove=remove) if wanted else []
            return NodeShare(node=target.node.name, looks=tuple(looks))

        shares, errors = try_each(ask_one, sorted(self._links), self._width)
        for place, error in errors.items():
            self._errors[place] = error
            self._links.pop(place).close()
        return [shares.get(place) or self._unreached(place, run_ids) for place in range(len(self.targets))]

    def _unreached(self, place: int, run_ids: Sequence[str]) -> NodeShare:
        target, error = self.targets[place], self._errors[place]
        asked = sum(1 for run_id, _ in target.runs if run_id in run_ids)
        return NodeShare(
            node=target.node.name, asked=asked, error=error.what or type(error).__name__, remedy=error.remedy
        )

    def pending(self, run_id: str) -> list[str]:
        """Name the nodes of a run that could not be asked."""
        return [
            target.node.name
            for place, target in enumerate(self.targets)
            if place in self._errors and any(one == run_id for one, _ in target.runs)
        ]

    def close(self) -> None:
        """Close every link."""
        close_links(self._links.values())


def _ask_node(link: Link, runs: Sequence[tuple[str, int]], *, remove: bool) -> list[Look]:
    channel = link.open("forget", {"runs": runs, "remove": remove})
    try:
        return [_parse_look(read_frame(channel, link.node.name, RUN_S).header) for _ in runs]
    finally:
        channel.close()


def _parse_look(header: Mapping[str, Any]) -> Look:
    return Look(
        run_id=str(header["run_id"]),
        found=bool(header["found"]),
        size=int(header["bytes"]),
        living=str(header["living"]),
        removed=bool(header["removed"]),
        error=str(header["fault"]),
    )


def look_here(run: KnownRun) -> Fate:
    """See what a run's experiment directory holds, and whether it is one."""
    folder = Path(run.experiment)
    fate = Fate(run_id=run.run_id, experiment=run.experiment)
    if not os.path.lexists(folder):
        return replace(fate, kept_here="gone")
    if folder.is_symlink() or read_record(folder).get("run_id") != run.run_id:
        return replace(fate, kept_here="it holds no run.json of this run")
    try:
        size, _ = measure(str(folder))
    except (OSError, RefusedError) as error:
        return replace(fate, kept_here=str(error))
    return replace(fate, size=size)


def judge(fates: Sequence[Fate], shares: Sequence[NodeShare]) -> list[Fate]:
    """Note for each run whether anything of it lives on any node, and what could not be removed where."""
    judged = []
    for fate in fates:
        looks = [(share.node, look) for share in shares for look in share.looks if look.run_id == fate.run_id]
        living = next((f"{node}: {look.living}" for node, look in looks if look.living), "")
        left = tuple(f"{node}: {look.error}" for node, look in looks if look.error)
        judged.append(replace(fate, living=fate.living or living, left=(*fate.left, *left)))
    return judged


def remove_here(run: KnownRun, fate: Fate, pending: Sequence[str], *, nodes_only: bool) -> Fate:
    """Remove the experiment directory, and what is remembered of the run unless a node still holds something of it."""
    if fate.living:
        return fate
    left = [*fate.left, *(f"{node} was not reached: its run folder may be there" for node in pending)]
    if nodes_only:
        return replace(fate, left=tuple(left), removed=not left)
    if not fate.kept_here:
        try:
            remove_tree(run.experiment, "run.json")
        except (OSError, RefusedError) as error:
            left.append(f"its experiment directory: {error}")
            fate = replace(fate, size=0)
    if not left:
        try:
            forget_entry(run)
        except OSError as error:
            left.append(f"its entry: {error}")
    return replace(fate, left=tuple(left), removed=not left)


def forget_entry(run: KnownRun) -> None:
    """Remove the run's entry and whatever was kept beside it; the entry last but the lock, that we hold."""
    beside = [path for path in run.entry.parent.iterdir() if path.name.startswith(f"{run.run_id}.")]
    last = [run.entry.name, f"{run.run_id}.lock"]
    for path in sorted(beside, key=lambda path: last.index(path.name) if path.name in last else -1):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(run_ids: Sequence[str]) -> Iterator[set[str]]:
    """Hold the controllers' locks of some runs for the time of a block; give the runs whose lock could be had."""
    held: dict[str, int] = {}
    fresh = [run_id for run_id in run_ids if not (launches_folder(Path.home()) / f"{run_id}.lock").exists()]
    try:
        for run_id in run_ids:
            handle = take_lock(run_id)
            if handle is not None:
                held[run_id] = handle
        yield set(held)
    finally:
        for run_id in set(fresh) & set(held):
            with contextlib.suppress(OSError):
                (launches_folder(Path.home()) / f"{run_id}.lock").unlink()
        for handle in held.values():
            os.close(handle)
