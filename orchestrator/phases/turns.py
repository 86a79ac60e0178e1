"""Takes turns with other launches at the code folders: waits for those who fill them, refuses to change what is used."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import AortaError, PushError, bundle
from orchestrator.light_dataclass import dataclass
from orchestrator.phases.workdir import Filling, Keeper, Question, Workdir, beating
from orchestrator.plan.paths import launches_folder
from orchestrator.transport import Link
from orchestrator.transport.fanout import fan_out, try_all

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 60.0
"""For other launches that fill a folder, or look at it."""
PAUSE_S = (0.1, 0.4)
"""By chance: two launches that took half of the nodes each must not meet again and again."""

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The folders as they were found, and those that are this launch's alone to be filled."""

    found: list[Workdir]
    behind: list[int]


@contextmanager
def open_keepers(links: Sequence[Link], question: Question, width: int) -> Iterator[list[Keeper]]:
    """Start the program that keeps the folder on every node, and end it afterwards.

    Raises:
        AortaError: a node on which it does not start.
    """
    with ExitStack() as undo:
        numbered = list(enumerate(links))
        keepers, errors = try_all(lambda item: Keeper(item[1], item[0], question), numbered, width)
        for keeper in keepers.values():
            undo.callback(keeper.close)
        if errors:
            raise bundle([errors[place] for place in sorted(errors)])
        everyone = [keepers[place] for place in range(len(links))]
        undo.enter_context(beating(everyone))
        yield everyone


def wait_turn(
    keepers: Sequence[Keeper], judge: Callable[[Sequence[Workdir]], list[int]], width: int, tell: Tell
) -> Turn:
    """Look until no other launch is at work on a folder and those that must be filled are ours alone.

    `judge` refuses what it must and gives the places that must be filled.

    Raises:
        PushError: a live run uses what would be changed, or others do not come to an end.
        AortaError: see `judge`.
    """
    end = time.monotonic() + WAIT_S
    told = False
    while True:
        found = look(keepers, width)
        refuse_taken(found)
        fillings: list[Filling] = []
        busy = {place.node: place.busy for place in found if place.busy is not None}
        if not busy:
            behind = judge(found)
            # Nodes may share a folder: none of them may still look when another asks for it.
            fan_out(lambda place: keepers[place].leave(), behind, width)
            fillings = fan_out(lambda place: keepers[place].fill(), behind, width)
            refuse_used([found[place] for place in behind], fillings)
            if all(filling.ours for filling in fillings):
                return Turn(found=found, behind=behind)
            asked = zip(behind, fillings, strict=True)
            busy = {keepers[place].node: filling.busy for place, filling in asked if filling.busy is not None}
        if time.monotonic() > end:
            raise too_long(found, busy)
        fan_out(Keeper.leave, keepers, width)
        if busy and not told:
            tell(f"waiting: {say_busy(busy)}")
            told = True
        time.sleep(random.uniform(*PAUSE_S) if busy else 0)  # noqa: S311 - no secret


def look(keepers: Sequence[Keeper], width: int) -> list[Workdir]:
    """Look at the folder of every node; of the two that go by the project's name it is the same one on all."""
    found = fan_out(Keeper.look, keepers, width)
    first = [place for place, workdir in enumerate(found) if not workdir.other]
    as_it_is = not found[0].state  # where nothing is pushed, each node has what it has
    if as_it_is or not first or len(first) == len(found) or any(workdir.busy is not None for workdir in found):
        return found
    moved = dict(zip(first, fan_out(lambda place: keepers[place].look(move=True), first, width), strict=True))
    return [moved.get(place, workdir) for place, workdir in enumerate(found)]


def refuse_taken(found: Sequence[Workdir]) -> None:
    """Refuse a run id that a run on a node has already.

    Raises:
        PushError: somebody else began in the same second, with the same four characters.
    """
    names = [place.node for place in found if place.taken]
    if names:
        raise PushError(
            what="a run of this very id is there already", where=", ".join(names), remedy="launch again: ids are new"
        )


def refuse_used(places: Sequence[Workdir], fillings: Sequence[Filling]) -> None:
    """Refuse to change code under a live run.

    Raises:
        PushError: a folder is used by one.
        Several: by more than one.
    """
    used: dict[tuple[str, str], list[str]] = {}
    for place, filling in zip(places, fillings, strict=True):
        for run_id in filling.holders:
            used.setdefault((run_id, place.path), []).append(place.node)
    errors: list[AortaError] = []
    for (run_id, path), names in used.items():
        known = (launches_folder(Path.home()) / f"{run_id}.json").exists()
        kill = f"aorta-launch kill {run_id}" + ("" if known else " --nodes FILE")
        errors.append(
            PushError(
                what=f"{path} is used by the live run {run_id}, and the code here is another by now",
                where=", ".join(names),
                remedy=f"kill it: {kill}, or bring the code to another folder: --workdir {path}-2",
            )
        )
    if errors:
        raise bundle(errors)


def too_long(found: Sequence[Workdir], busy: Mapping[str, str | None]) -> PushError:
    """Build the error for others that do not come to an end."""
    return PushError(
        what=f"{found[0].path} is not free after {WAIT_S:g} s: {say_busy(busy)}",
        where=", ".join(busy),
        remedy=f"launch again when that is over, or bring the code to another folder: --workdir {found[0].path}-2",
    )


def say_busy(busy: Mapping[str, str | None]) -> str:
    """Say who is at work on the folder."""
    ids = sorted({run_id for run_id in busy.values() if run_id})
    return f"the launch {', '.join(ids)} brings its code there" if ids else "another launch is at work there"
