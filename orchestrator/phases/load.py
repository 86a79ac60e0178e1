"""Level 2: load on every GPU, or on the processors of every node, all at the same time, with the gauges read meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.checks.hardware import usable_gpus
from orchestrator.checks.thresholds import threshold
from orchestrator.errors import AortaError
from orchestrator.facts.group import parse_group
from orchestrator.facts.load import Gauges, LoadFacts, MemberFacts
from orchestrator.phases.collectives import PREPARE_S, trouble_of
from orchestrator.phases.exercise import LIMIT_S, Crew, Exercise
from orchestrator.transport import Channel
from orchestrator.transport.answers import read_frame
from orchestrator.transport.fanout import fan_out, try_all

MARGIN_S = 60.0
"""Allocating and filling large memory takes its time on a busy node."""
EVERY_S = 1.0
ANSWER_S = 15.0


def run_load(crew: Crew, tell: Callable[[str], None]) -> LoadFacts:
    """Run everything of level 2; what fails is a value, and nothing is left on the nodes.

    Raises:
        AortaError: a node that cannot start the program at all.
    """
    on_gpus = all(fact.gpus and (fact.torch_cuda or fact.torch_hip) for fact in crew.facts)
    device = "cuda" if on_gpus else "cpu"
    seconds = {
        "compute": threshold(crew.settings, "compute", "seconds"),
        "memory": threshold(crew.settings, "memory-bandwidth", "seconds"),
        "host": threshold(crew.settings, "host-link", "seconds"),
    }
    found: dict[tuple[int, int], dict[str, Any]] = {}
    with Exercise(crew, "load", {}) as exercise:
        tell("importing torch on every node")
        _ask(exercise, crew, {"op": "prepare", "device": device}, PREPARE_S, found)
        gauges = _open_gauges(crew)
        try:
            for op, limit_s in seconds.items():
                if op == "host" and device == "cpu":
                    continue
                tell(f"load: {op}, {limit_s:g} s")
                _ask(exercise, crew, {"op": op, "seconds": limit_s}, limit_s + MARGIN_S, found)
        finally:
            read = _read_gauges(crew, gauges)
    members = tuple(_build_member(crew, place, answer) for place, answer in sorted(found.items()))
    return LoadFacts(device=device, members=members, gauges=read)


def _ask(
    exercise: Exercise,
    crew: Crew,
    order: Mapping[str, Any],
    limit_s: float,
    found: dict[tuple[int, int], dict[str, Any]],
) -> None:
    for said in exercise.ask(dict.fromkeys(range(len(crew.nodes)), order), limit_s):
        member = found.setdefault((said.node_rank, said.local_rank), {})
        if trouble := trouble_of(said):
            member.setdefault("trouble", trouble)
        else:
            member |= said.answer or {}


def _build_member(crew: Crew, place: tuple[int, int], answer: Mapping[str, Any]) -> MemberFacts:
    node_rank, local_rank = place
    # CUDA numbers what the session may see; the driver's tools number all.
    gpus = usable_gpus(crew.nodes[node_rank], crew.facts[node_rank])
    index = gpus[local_rank].index if local_rank < len(gpus) else None
    told = {"node_rank": node_rank, "local_rank": local_rank, "index": index, **answer}
    return MemberFacts.model_validate_json(json.dumps(told))


def _open_gauges(crew: Crew) -> list[Channel]:
    request = {"every_s": EVERY_S, "limit_s": LIMIT_S}
    return fan_out(lambda link: link.open("gauges", request), crew.links, crew.settings.fanout)


def _read_gauges(crew: Crew, channels: list[Channel]) -> tuple[Gauges, ...]:
    def read(node_rank: int) -> Gauges:
        channel = channels[node_rank]
        try:
            channel.send({"op": "stop"})
            header = read_frame(channel, crew.nodes[node_rank].name, ANSWER_S).header
        finally:
            channel.close()
        return parse_group(Gauges, {"node_rank": node_rank, **header["gauges"]}, crew.nodes[node_rank].name)

    results, errors = try_all(read, range(len(channels)), crew.settings.fanout)
    broken = {rank: Gauges(node_rank=rank, trouble=_what(error)) for rank, error in errors.items()}
    return tuple(gauges for _, gauges in sorted({**results, **broken}.items()))


def _what(error: AortaError) -> str:
    return error.what
