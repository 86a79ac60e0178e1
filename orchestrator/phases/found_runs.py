"""The runs that the nodes themselves know of: found and stopped without a record on the launch host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from orchestrator.errors import AortaError, UsageError
from orchestrator.light_dataclass import dataclass
from orchestrator.output.wording import count
from orchestrator.phases.connect import close_links, connect_each
from orchestrator.phases.stop import stop_run
from orchestrator.transport.fanout import nobody, try_each
from orchestrator.values import Node, StopReport

if TYPE_CHECKING:
    from orchestrator.settings import Settings

ASK_S = 60.0


@dataclass(frozen=True, kw_only=True)
class FoundRun:
    """One run as the nodes know it."""

    run_id: str
    where: Mapping[int, int]
    """Node rank -> the place in the node list where it was found; ranks of which nothing lives, too."""
    live_ranks: tuple[int, ...]
    """The node ranks of which something lives."""
    state: str
    started: float | None
    """On the clock of a node."""
    missing: tuple[tuple[int, str], ...] = ()
    """Node ranks of the run that none of these nodes has, with their addresses."""

    @property
    def live(self) -> bool:
        """Something of it lives."""
        return bool(self.live_ranks)


@dataclass(frozen=True, kw_only=True)
class Search:
    """What the nodes answered."""

    nodes: Sequence[Node]
    runs: tuple[FoundRun, ...]
    """Oldest first."""
    errors: Mapping[int, AortaError] = field(default_factory=dict)
    """Why a node could not be asked, by its place in the list."""

    @property
    def unasked(self) -> list[StopReport]:
        """One report for each node that could not be asked."""
        return [
            StopReport(node_rank=place, node=self.nodes[place].name, found=False, error=error.what)
            for place, error in sorted(self.errors.items())
        ]


def find_runs(nodes: Sequence[Node], settings: Settings, done: Callable[[int], None] = nobody) -> Search:
    """Ask every node for this user's runs; one that cannot be asked is told, not raised."""
    links, errors = connect_each(nodes, settings, done)
    answers, silent = try_each(lambda place: links[place].call("runs", {}, ASK_S), sorted(links), settings.fanout)
    close_links(links.values())
    return Search(nodes=nodes, runs=merge_answers(answers), errors={**errors, **silent})


def merge_answers(answers: Mapping[int, Mapping[str, Any]]) -> tuple[FoundRun, ...]:
    """Merge what the nodes answered, by their place in the list; two places may be one machine."""
    entries: dict[str, dict[int, tuple[int, Mapping[str, Any]]]] = {}
    used: dict[str, int] = {}
    for place, answer in sorted(answers.items()):
        if answer["machine"] in used:
            continue
        used[answer["machine"]] = place
        for entry in answer["runs"]:
            ranks = entries.setdefault(str(entry["run_id"]), {})
            before = ranks.get(int(entry["node_rank"]))
            if before is None or (entry["live"] and not before[1]["live"]):
                ranks[int(entry["node_rank"])] = (place, entry)
    found = [_merge(run_id, ranks) for run_id, ranks in entries.items()]
    return tuple(sorted(found, key=lambda run: (run.started or 0.0, run.run_id)))


def _merge(run_id: str, ranks: Mapping[int, tuple[int, Mapping[str, Any]]]) -> FoundRun:
    entries = {rank: entry for rank, (_, entry) in ranks.items()}
    live = tuple(sorted(rank for rank, entry in entries.items() if entry["live"]))
    states = [str(entries[rank]["state"]) for rank in live] or [str(entry["state"]) for entry in entries.values()]
    count_of_nodes = max((int(entry["nodes"] or 0) for entry in entries.values()), default=0)
    hosts: Sequence[str] = next((entry["hosts"] for entry in entries.values() if entry["nodes"]), ())
    missing = [rank for rank in range(count_of_nodes) if rank not in entries]
    times = [float(entry["started"]) for entry in entries.values() if entry["started"] is not None]
    return FoundRun(
        run_id=run_id,
        where={rank: ranks[rank][0] for rank in sorted(ranks)},
        live_ranks=live,
        state=", ".join(dict.fromkeys(states)),
        started=min(times, default=None),
        missing=tuple((rank, hosts[rank] if rank < len(hosts) else "") for rank in missing),
    )


def choose_found(search: Search, word: str | None, *, all_runs: bool) -> list[FoundRun]:
    """Find the runs that are meant: by id or a unique prefix of it, all that live, or the only one that does.

    Raises:
        UsageError: several are meant, or none has this name; they are listed.
    """
    live = [run for run in search.runs if run.live]
    if word is None:
        if all_runs or len(live) <= 1:
            return live
        listed = "".join(f"\n    {describe(run, search.nodes)}" for run in live)
        raise UsageError(what=f"{len(live)} runs live on these nodes:{listed}", remedy="name one of them, or --all")
    if not word:
        # kill "$RUN" with nothing in it would mean every run.
        raise UsageError(what="the id of the run is empty", remedy="name the run: aorta-launch kill RUN --nodes FILE")
    for runs in (live, search.runs):
        named = [run for run in runs if run.run_id == word] or [run for run in runs if run.run_id.startswith(word)]
        if len(named) == 1:
            return named
        if named:
            listed = "".join(f"\n    {describe(run, search.nodes)}" for run in named)
            raise UsageError(what=f"{word} is the beginning of {len(named)} runs:{listed}", remedy="write more of it")
    if search.errors:
        return []  # a node that could not be asked may have it
    near = get_close_matches(word, [run.run_id for run in live], n=1)
    raise UsageError(
        what=f"no run {word} is on {count(len(search.nodes), 'node')}" + (f"; did you mean {near[0]}?" if near else ""),
        remedy="is it another user's, or are its nodes not in the list?",
    )


def describe(run: FoundRun, nodes: Sequence[Node]) -> str:
    """Describe a run by one line: its id, where it lives, its state, since when."""
    names = ", ".join(dict.fromkeys(nodes[run.where[rank]].name for rank in run.live_ranks or run.where))
    moment = None if run.started is None else datetime.fromtimestamp(run.started, UTC).astimezone()
    since = f"  since {moment:%Y-%m-%d %H:%M:%S}" if moment else ""
    return f"{run.run_id}  {run.state}  on {names}{since}"


def stop_found(search: Search, run: FoundRun, settings: Settings) -> list[StopReport]:
    """Stop a run where it was found, TERM, grace, KILL, and report also the nodes of which nothing is known."""
    ranks = sorted(run.where)
    reports = stop_run([search.nodes[run.where[rank]] for rank in ranks], settings, run.run_id, ranks)
    return [*reports, *search.unasked, *report_missing(search, run)]


def report_missing(search: Search, run: FoundRun) -> list[StopReport]:
    """Report the nodes of a run that are not in the list, as far as they are not those that could not be asked."""
    if search.errors:
        return []
    what = "it belongs to the run and is not in the node list"
    return [
        StopReport(node_rank=rank, node=host or f"node rank {rank}", found=False, error=what)
        for rank, host in run.missing
    ]
