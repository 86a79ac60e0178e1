"""What a prune would free, and what it did, here and on each node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from orchestrator.light_dataclass import dataclass
from orchestrator.output.table import align_cells
from orchestrator.output.wording import count, render_size, strip_controls
from orchestrator.values import Exit

MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a node said of one run."""

    run_id: str
    found: bool = False
    size: int = 0
    """Bytes on its disk."""
    living: str = ""
    """What lives of it there."""
    removed: bool = False
    """Nothing of it is there any more."""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeShare:
    """What a node holds of the runs that may go."""

    node: str
    looks: tuple[Look, ...] = ()
    asked: int = 0
    """Runs that it could not be asked about."""
    error: str = ""
    """Why it could not be asked."""
    remedy: str = ""

    @property
    def size(self) -> int:
        """Bytes on its disk."""
        return sum(look.size for look in self.looks)


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What becomes of one run."""

    run_id: str
    experiment: str
    size: int = 0
    """Bytes of its experiment directory."""
    kept_here: str = ""
    """Why its experiment directory stays; "gone" when there is none."""
    living: str = ""
    """Where something of it lives, and what: it is left alone."""
    removed: bool = False
    """All of it is gone, also what was remembered of it."""
    left: tuple[str, ...] = ()
    """What could not be removed, and why."""


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """A prune before or after it was done."""

    keep: int
    kept: tuple[str, ...]
    """Finished runs that stay because they are the newest."""
    live: tuple[str, ...]
    """Runs that are not over as far as this machine knows."""
    unreadable: tuple[str, ...]
    uncollected: tuple[str, ...] = ()
    """Finished runs that could go, but their outputs are on the nodes alone."""
    fates: tuple[Fate, ...]
    nodes: tuple[NodeShare, ...]
    nodes_only: bool = False


def prune_exit(pruning: Pruning) -> Exit:
    """Decide the exit code: all that was asked for could be done, or not."""
    broken = any(node.error for node in pruning.nodes) or any(fate.living or fate.left for fate in pruning.fates)
    return Exit.FAILED if broken else Exit.DONE


def render_before(pruning: Pruning) -> Text:
    """Say what would be freed, where, and what is left alone."""
    going = [fate for fate in pruning.fates if not fate.living]
    total = len(pruning.fates) + len(pruning.kept)
    lines = [Text(f"{count(total, 'finished run')}: the newest {pruning.keep} stay, {len(going)} can go")]
    if going and not pruning.nodes_only:
        lines[0].append(f" ({_few([fate.run_id for fate in going])})")
    rows = [] if pruning.nodes_only else [_here_row(going)]
    rows += [_node_row(node) for node in pruning.nodes]
    if pruning.fates:
        lines += [Text("  ").append_text(line) for line in align_cells(rows)] if rows else []
    lines += [
        Text(f"  {fate.run_id} is left alone: it lives on {strip_controls(fate.living)}", "yellow")
        for fate in pruning.fates
        if fate.living
    ]
    if pruning.live:
        lines.append(Text(f"  not over, left alone: {_few(pruning.live)}"))
    lines += [
        Text(f"  {run_id} is left alone: its outputs are not here yet: aorta-launch attach {run_id}", "yellow")
        for run_id in pruning.uncollected
    ]
    if pruning.uncollected:
        lines.append(Text("  (--lose-outputs prunes such runs too)", "dim"))
    lines += [Text(f"  {path}: cannot be read, left alone", "yellow") for path in pruning.unreadable]
    return Text("\n").join(lines)


def _here_row(going: Sequence[Fate]) -> list[Text]:
    folders = sum(1 for fate in going if not fate.kept_here)
    text = Text(f"{folders} experiment director{'y' if folders == 1 else 'ies'}")
    for fate in going:
        if fate.kept_here and fate.kept_here != "gone":
            text.append(f" · {fate.experiment} stays: {fate.kept_here}", "yellow")
    return [Text("here"), Text(render_size(sum(fate.size for fate in going))), text]


def _node_row(node: NodeShare) -> list[Text]:
    if node.error:
        what = (
            f"not reached, {count(node.asked, 'run folder')} there stay{'s' if node.asked == 1 else ''}: {node.error}"
        )
        return [Text(node.node), Text("?"), Text(strip_controls(what), "red")]
    folders = sum(1 for look in node.looks if look.found and not look.living)
    text = Text(count(folders, "run folder"))
    for look in node.looks:
        if look.error:
            text.append(f" · {look.run_id}: {strip_controls(look.error)}", "red")
    return [Text(node.node), Text(render_size(node.size)), text]


def render_after(pruning: Pruning) -> Text:
    """Say what was done, and what was not."""
    freed = sum(look.size for node in pruning.nodes for look in node.looks if look.removed)
    if not pruning.nodes_only:
        freed += sum(fate.size for fate in pruning.fates if not fate.living)
    gone = sum(1 for fate in pruning.fates if fate.removed)
    what = "run folders of" if pruning.nodes_only else "removed"
    text = Text(f"{what} {count(gone, 'run')}{' removed' if pruning.nodes_only else ''}, {render_size(freed)} freed")
    for fate in pruning.fates:
        for left in (*([f"it lives on {fate.living}"] if fate.living else []), *fate.left):
            text.append(f"\n  {fate.run_id} stays: {strip_controls(left)}", "red")
    if any(node.error for node in pruning.nodes):
        text.append(
            "\n  → prune again when they answer; runs of a node that is gone for good are forgotten by removing"
        )
        text.append("\n    their entries: ~/.aorta/launches/RUN.json")
    return text


def _few(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def prune_document(pruning: Pruning, *, done: bool, code: int) -> dict[str, Any]:
    """Build the JSON document of a prune."""
    return {
        "schema": 1,
        "done": done,
        "exit_code": code,
        "keep": pruning.keep,
        "nodes_only": pruning.nodes_only,
        "kept": list(pruning.kept),
        "live": list(pruning.live),
        "unreadable": list(pruning.unreadable),
        "uncollected": list(pruning.uncollected),
        "runs": [
            {
                "run_id": fate.run_id,
                "experiment": fate.experiment,
                "bytes": fate.size,
                "kept_here": fate.kept_here,
                "living": fate.living,
                "removed": fate.removed,
                "left": list(fate.left),
            }
            for fate in pruning.fates
        ],
        "nodes": [
            {
                "node": node.node,
                "bytes": node.size,
                "run_folders": sum(1 for look in node.looks if look.found and not look.living),
                "error": node.error,
                "remedy": node.remedy,
            }
            for node in pruning.nodes
        ],
    }
