"""Level 2: load on every GPU, or on the processors of every node, all at the same time, with the gauges read meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from orchestrator.checks.hardware import usable_gpus
from orchestrator.checks.load_causes import why_spared
from orchestrator.checks.thresholds import threshold
from orchestrator.errors import AortaError
from orchestrator.facts.group import parse_group
from orchestrator.facts.load import Gauges, LoadFacts, MemberFacts
from orchestrator.phases.exercise import LIMIT_S, Crew, Exercise
from orchestrator.phases.worlds import PREPARE_S, trouble_of
from orchestrator.transport import Channel
from orchestrator.transport.answers import read_frame
from orchestrator.transport.fanout import try_all
from orchestrator.typed_json import from_json

MARGIN_S = 60.0
"""Allocating and filling large memory takes its time on a busy node."""
EVERY_S = 1.0
ANSWER_S = 20.0
"""More than a late driver takes."""
Place = tuple[int, int]
"""Node rank and local rank."""
Answers = dict[Place, dict[str, Any]]


def run_load(crew: Crew, tell: Callable[[str], None]) -> LoadFacts:
    """Run everything of level 2; what fails is a value, and nothing is left on the nodes.

    Raises:
        AortaError: a node that cannot start the program at all.
    """
    device = crew.device
    # Processors are measured by one process with all of the session's cores, however a run would divide them.
    crew = replace(crew, alone=device == "cpu")
    spared = find_spared(crew) if device == "cuda" else {}
    if spared and len(spared) == sum(crew.processes(rank) for rank in range(len(crew.nodes))):
        why = "not run: all GPUs are in use by others"
        tell(f"load {why}")
        return LoadFacts(device=device, not_run=why)
    seconds = {
        "compute": threshold(crew.settings, "compute", "seconds"),
        "memory": threshold(crew.settings, "memory-bandwidth", "seconds"),
        "host": threshold(crew.settings, "host-link", "seconds"),
    }
    if device == "cpu":
        seconds.pop("host")
    found: Answers = {}
    read: list[Gauges] = []
    with Exercise(crew, "load", {}) as exercise, Watch(crew) as watch:
        tell("importing torch on every node")
        _ask(exercise, crew, {"op": "prepare", "device": device}, PREPARE_S, spared, found)
        for op, limit_s in seconds.items():
            tell(f"load: {op}, {limit_s:g} s")
            watch.report(op)  # what was seen before is not of this load
            _ask(exercise, crew, {"op": op, "seconds": limit_s}, limit_s + MARGIN_S, spared, found)
            read += watch.report(op)
    members = tuple(_build_member(crew, place, answer) for place, answer in sorted(found.items()))
    return LoadFacts(device=device, members=members, gauges=tuple(read))


def find_spared(crew: Crew) -> dict[Place, str]:
    """Find the GPUs that somebody else uses, and say who: nothing is put on them, whatever the checks may say."""
    found = {}
    for node_rank, (node, facts) in enumerate(zip(crew.nodes, crew.facts, strict=True)):
        gpus = usable_gpus(node, facts)[: crew.processes(node_rank)]
        for local_rank, gpu in enumerate(gpus):
            if why := why_spared(gpu, facts, crew.settings):
                found[node_rank, local_rank] = why
    return found


def _ask(
    exercise: Exercise,
    crew: Crew,
    order: Mapping[str, Any],
    limit_s: float,
    spared: Mapping[Place, str],
    found: Answers,
) -> None:
    orders = {
        node_rank: {**order, "spare": [local for rank, local in spared if rank == node_rank]}
        for node_rank in range(len(crew.nodes))
    }
    for said in exercise.ask(orders, limit_s):
        place = (said.node_rank, said.local_rank)
        member = found.setdefault(place, {"spared": spared.get(place, "")})
        if trouble := trouble_of(said):
            member.setdefault("trouble", trouble)
        else:
            member |= said.answer or {}


def _build_member(crew: Crew, place: Place, answer: Mapping[str, Any]) -> MemberFacts:
    node_rank, local_rank = place
    # CUDA numbers what the session may see; the driver's tools number all.
    gpus = usable_gpus(crew.nodes[node_rank], crew.facts[node_rank])
    index = gpus[local_rank].index if crew.device == "cuda" and local_rank < len(gpus) else None
    told = {"node_rank": node_rank, "local_rank": local_rank, "index": index, **answer}
    return from_json(MemberFacts, told)


class Watch:
    """The gauges of all nodes, read until the end of a with block; what cannot be read is told, and stops nothing."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self._channels: dict[int, Channel] = {}
        self._broken: dict[int, str] = {}

    def __enter__(self) -> Self:
        """Start the gauges of all nodes."""
        request = {"every_s": EVERY_S, "limit_s": LIMIT_S}

        def start(node_rank: int) -> None:
            self._channels[node_rank] = self.crew.links[node_rank].open("gauges", request)

        try:
            self._try(start)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them."""
        self._close()

    def _close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def report(self, load: str) -> list[Gauges]:
        """Tell what was seen since the last report."""

        def read(node_rank: int) -> Gauges:
            name = self.crew.nodes[node_rank].name
            self._channels[node_rank].send({"op": "report"})
            header = read_frame(self._channels[node_rank], name, ANSWER_S).header
            return parse_group(Gauges, {"node_rank": node_rank, "load": load, **header["gauges"]}, name)

        found = self._try(read)
        broken = {rank: Gauges(node_rank=rank, load=load, trouble=why) for rank, why in self._broken.items()}
        return [gauges for _, gauges in sorted({**broken, **found}.items())]

    def _try(self, work: Callable[[int], Any]) -> dict[int, Any]:
        """Do it for all nodes whose gauges still answer."""
        whole = [rank for rank in range(len(self.crew.nodes)) if rank not in self._broken]
        results, errors = try_all(work, whole, self.crew.settings.fanout)
        self._broken |= {whole[place]: _what(error) for place, error in errors.items()}
        return {whole[place]: result for place, result in results.items()}


def _what(error: AortaError) -> str:
    return error.what
