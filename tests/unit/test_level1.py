"""The rounds of level 1, on nodes that are played: what is tried after what, and what is told of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import pytest

from orchestrator.checks.catalogue import CATALOGUE
from orchestrator.checks.seen import Seen
from orchestrator.facts import Facts, Survey
from orchestrator.facts.collectives import CollectivesFacts
from orchestrator.phases import collectives, ways
from orchestrator.phases.addresses import Place
from orchestrator.phases.exercise import Crew, Order, Said
from orchestrator.phases.worlds import plain
from orchestrator.settings import Settings
from orchestrator.values import Node

SILENT = "no answer in time"
Group = frozenset[int]


class Played:
    """Answers as the processes of the nodes would; `closed` tells whether a group of nodes cannot form a world."""

    def __init__(self, crew: Crew, program: str, words: Mapping[str, Any]) -> None:
        del program, words
        self.crew = crew
        self.closed: Callable[[Group, int], bool] = lambda _, __: False
        self.broken: Callable[[str, int, int], str] = lambda _, __, ___: ""
        self.asked: list[tuple[str, list[int]]] = []
        self.restarted: list[int] = []
        self.pending: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def restart(self, node_ranks: list[int]) -> None:
        self.restarted += node_ranks
        self.pending -= set(node_ranks)

    def stuck(self) -> list[int]:
        return sorted(self.pending)

    def ask(self, orders: Mapping[int, Order], timeout_s: float, after_trouble_s: float | None = None) -> list[Said]:
        del after_trouble_s
        op = next((order["op"] for order in orders.values()), "")
        self.asked.append((op, sorted(orders)))
        return [
            self.answer(node, local, order, orders, timeout_s)
            for node, order in orders.items()
            for local in range(self.crew.processes(node))
            if order.get("only") in (None, local)
        ]

    def answer(self, node: int, local: int, order: Order, orders: Mapping[int, Order], timeout_s: float) -> Said:
        if trouble := self.broken(order["op"], node, local):
            if trouble == SILENT:
                self.pending.add(node)
            return Said(node_rank=node, local_rank=local, trouble=trouble)
        answer: dict[str, Any] = {}
        if order["op"] == "host":
            answer = {"port": 1000 + node}
        if order["op"] == "join":
            group = frozenset(other for other, its in orders.items() if its["port"] == order["port"])
            if self.closed(group, int(timeout_s)):
                answer = {"error": "DistStoreError: wait timeout after 8000ms, keys: /world1/0"}
        if order["op"] == "reduce":
            answer = {"rows": [{"bytes": 1 << 24, "seconds": 0.1, "number": 1}], "transport": ""}
        if order["op"] == "pair":
            answer = {"latency_ms": 0.1, "bytes": 1 << 24, "seconds": 0.01}
        if order["op"] == "prepare":
            answer = {"import_s": 1.0, "devices": 0, "gloo": True, "nccl": False}
        return Said(node_rank=node, local_rank=local, answer=answer)


Run = Callable[..., tuple[CollectivesFacts, Played]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def level1(
        number: int, slots: int | None = None, kind: type[Played] = Played, **plays: Any
    ) -> tuple[CollectivesFacts, Played]:
        played: list[Played] = []

        def play(*words: Any) -> Played:
            played.append(kind(*words))
            for name, value in plays.items():
                setattr(played[0], name, value)
            return played[0]

        monkeypatch.setattr(collectives, "Exercise", play)
        return collectives.run_collectives(crew_of(number, slots), lambda _: None), played[0]

    return level1


def crew_of(number: int, slots: int | None = None) -> Crew:
    nodes = [Node(name=f"n{rank}", host=f"10.0.0.{rank}", slots=slots) for rank in range(number)]
    return Crew(
        links=[],
        nodes=nodes,
        facts=[Facts(node_rank=rank, python="/usr/bin/python3") for rank in range(number)],
        places=[Place(f"10.0.0.{rank}", "eth0") for rank in range(number)],
        settings=Settings(),
    )


def judged(found: CollectivesFacts, number: int, name: str) -> dict[int | None, Seen]:
    crew = crew_of(number)
    (check,) = [check for check in CATALOGUE if check.name == name]
    return dict(check.judge(crew.nodes, crew.facts, Survey(collectives=found), crew.settings))


def test_nodes_that_are_well_form_one_world_and_all_pairs_are_measured_in_it(run: Run) -> None:
    found, played = run(4)
    assert found.world is not None
    assert (found.world.formed, found.world.size, len(found.pairs)) == (True, 4, 6)
    assert [op for op, _ in played.asked] == ["prepare", "host", "join", "sums", "reduce", "pair", "pair", "pair"]


def test_all_nodes_are_tried_alone_at_the_same_time(run: Run) -> None:
    found, played = run(5, slots=2)
    assert [(world.node_rank, world.size, world.formed) for world in found.alone] == [
        (rank, 2, True) for rank in range(5)
    ]
    assert next(nodes for op, nodes in played.asked if op == "join") == [0, 1, 2, 3, 4]


def test_the_process_that_ended_is_the_trouble_of_its_node_not_one_that_waited_for_it(run: Run) -> None:
    def broken(op: str, node: int, local: int) -> str:
        if (op, node) != ("join", 1):
            return ""
        return "killed by signal 9" if local == 1 else SILENT

    found, _ = run(2, slots=2, broken=broken)
    assert found.alone[1].troubles == ((1, "killed by signal 9"),)


def test_a_world_that_needs_more_time_gets_it_once_all_pairs_are_well(run: Run) -> None:
    found, _ = run(4, closed=lambda group, limit_s: len(group) == 4 and limit_s < 20)
    assert found.world is not None
    assert found.world.formed
    assert len(found.pairs) == 6
    seen = judged(found, 4, "world")
    assert {one.status for one in seen.values()} == {"warn"}
    assert seen[0].detail == "only at the second try, with more time; first: the others did not come within 8 s"


def test_a_fault_that_exists_only_above_some_size_is_told_with_that_size(run: Run) -> None:
    found, _ = run(12, closed=lambda group, _: len(group) > 5)
    assert found.largest == 5
    assert "the first 5 nodes do, 6 do not" in judged(found, 12, "world")[0].detail
    assert judged(found, 12, "links")[None].status == "ok"


def test_a_closed_pair_of_many_nodes_is_found_although_it_meets_late(run: Run) -> None:
    found, _ = run(40, closed=lambda group, _: {7, 12} <= group)
    assert list(judged(found, 40, "links")) == [7]
    assert "no collectives with n12: " in judged(found, 40, "links")[7].detail


def test_slow_pairs_are_no_reason_to_look_no_further_for_the_closed_one(run: Run) -> None:
    class Slow(Played):
        def answer(self, node: int, local: int, order: Order, orders: Mapping[int, Order], timeout_s: float) -> Said:
            said = super().answer(node, local, order, orders, timeout_s)
            if order["op"] == "pair" and node == 3:
                return dataclasses.replace(said, answer={**(said.answer or {}), "seconds": 0.5})
            return said

    found, _ = run(40, kind=Slow, closed=lambda group, _: {7, 12} <= group)
    seen = judged(found, 40, "links")
    assert "sends 33.6 MB/s" in seen[3].detail
    assert "no collectives with n12: " in seen[7].detail


def test_a_busy_moment_makes_no_slow_link(run: Run) -> None:
    class Busy(Played):
        def answer(self, node: int, local: int, order: Order, orders: Mapping[int, Order], timeout_s: float) -> Said:
            said = super().answer(node, local, order, orders, timeout_s)
            if order["op"] == "pair" and sum(op == "pair" for op, _ in self.asked) == 1:
                return dataclasses.replace(said, answer={**(said.answer or {}), "seconds": 0.5})
            return said

    found, _ = run(4, kind=Busy)
    assert judged(found, 4, "links")[None].detail == "6 pairs, the slowest 1678 of 1678 MB/s"


def test_a_busy_moment_closes_no_way(run: Run) -> None:
    found, _ = run(4, closed=lambda group, limit_s: len(group) > 3 or ({0, 2} <= group and limit_s < 15))
    assert not any(pair.trouble for pair in found.pairs)


def test_a_closed_pair_that_time_does_not_suffice_for_is_found_by_the_node_that_spoils_the_world(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "SEARCH_S", 0)
    found, _ = run(40, closed=lambda group, _: {7, 12} <= group)
    assert found.largest is None
    assert "no collectives with n12: " in judged(found, 40, "links")[7].detail


def test_the_nodes_that_hang_are_paired_first_among_many(run: Run) -> None:
    def broken(op: str, node: int, _: int) -> str:
        return SILENT if (op, node in (30, 61), len(played_joins)) == ("join", True, 0) else ""

    played_joins: list[int] = []

    def closed(group: Group, _: int) -> bool:
        if len(group) == 2:
            played_joins.append(1)
        return {30, 61} <= group

    found, played = run(64, closed=closed, broken=broken)
    assert list(judged(found, 64, "links")) == [30]
    assert [30, 61] in [nodes for op, nodes in played.asked if op == "join"]
    assert len(played.asked) < 30


@pytest.mark.parametrize("number", [2, 3, 8, 9])
def test_where_every_way_is_closed_the_end_is_soon(run: Run, number: int) -> None:
    found, _ = run(number, closed=lambda group, _: len(group) > 1)
    assert all(pair.trouble for pair in found.pairs)
    assert {one.status for one in judged(found, number, "links").values()} == {"fail"}
    assert found.largest is None


def test_a_node_that_hangs_with_one_peer_is_started_anew_for_the_next(run: Run) -> None:
    class HangsWithTwo(Played):
        def answer(self, node: int, local: int, order: Order, orders: Mapping[int, Order], timeout_s: float) -> Said:
            port = order.get("port")
            group = {other for other, its in orders.items() if its.get("port") == port}
            together = order["op"] == "join" and {0, 2} <= group
            if node == 0 and (together or node in self.pending):
                self.pending.add(0)
                return Said(node_rank=0, local_rank=local, trouble=SILENT)
            return super().answer(node, local, order, orders, timeout_s)

    found, played = run(4, kind=HangsWithTwo)
    assert [(pair.first, pair.second) for pair in found.pairs if pair.trouble] == [(0, 2)]
    assert set(played.restarted) == {0}


def test_a_pair_that_fails_inside_the_world_is_tried_again_outside_of_it(run: Run) -> None:
    failed: list[int] = []

    def broken(op: str, node: int, _: int) -> str:
        if op == "pair" and node == 1 and not failed:
            failed.append(node)
            return "killed by signal 6: NCCL"
        return ""

    found, _ = run(4, broken=broken)
    assert failed
    assert len(found.pairs) == 6
    assert not any(pair.trouble for pair in found.pairs)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "RuntimeError: [/__w/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation",
            "RuntimeError: Timed out waiting 8 s for recv operation",
        ),
        ("DistStoreError: wait timeout after 5000ms, keys: /pair4/0//cpu//0/1", "the others did not come within 5 s"),
        (
            "DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage",
            "DistBackendError: NCCL: invalid usage",
        ),
    ],
)
def test_what_libraries_say_is_told_without_their_source(said: str, told: str) -> None:
    assert plain(said) == told
