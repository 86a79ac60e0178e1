"""The guard of a run with nodes that are made up: what it asks, what it saves, what it tells."""

from __future__ import annotations

import base64
import json
import os
import queue
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from runs import Story, build_plan

from orchestrator.diagnosis.decider import Decider
from orchestrator.diagnosis.events import Event
from orchestrator.diagnosis.hang import watch as hang_watch
from orchestrator.diagnosis.hang.watch import HangWatch
from orchestrator.node import clock
from orchestrator.phases import answers, stacks
from orchestrator.phases.hang import dumps, report
from orchestrator.phases.hang import guard as guard_module
from orchestrator.phases.hang.guard import HangGuard, fold_hangs, recall
from orchestrator.phases.hang.pulse import Pulse, is_own_log
from orchestrator.phases.reader import NodeReader
from orchestrator.plan.paths import ExperimentPaths
from orchestrator.settings import Settings
from orchestrator.values import NodePlan

DATA = Path(__file__).parents[1] / "data"
PLAN = build_plan(2, 2)


def wait_for(there: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 10
    while not there():
        assert time.monotonic() < end, what
        time.sleep(0.01)


class FakeReader:
    """Stands in for the reader of a node that answers at once, and remembers what it was asked."""

    def __init__(self, node: NodePlan, *, cores: float = 0.0, silent: bool = False, moves: Sequence[int] = ()) -> None:
        self.node = node
        self.cores = cores
        self.silent = silent
        self.moves = moves
        self.suspect = False
        self.asked: list[Mapping[str, Any]] = []

    def is_alive(self) -> bool:
        return True

    def ask_ahead(self, order: Mapping[str, Any]) -> queue.SimpleQueue[Mapping[str, Any]]:
        self.asked.append(order)
        answer: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        if not self.silent:
            answer.put({"t": "answer", "op": order["op"], **self.answer(order)})
        return answer

    def answer(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        if order["op"] == "activity":
            return {"ranks": [{"rank": rank, "cpu_cores": self.cores} for rank in self.node.ranks], "gpus": []}
        if order["op"] == "stacks":
            wanted = [rank for rank in self.node.ranks if rank in order.get("ranks", self.node.ranks)]
            return {"ranks": [self.stack(rank) for rank in wanted]}
        if order["op"] == "flight":
            files = [(rank, DATA / "flight" / f"asleep_rank{rank}.json") for rank in self.node.ranks]
            return {
                "ranks": [
                    {"rank": rank, "data": base64.b64encode(zlib.compress(file.read_bytes()))} for rank, file in files
                ]
            }
        if order["op"] == "ras":
            return {"text": "", "why": "nobody listens"}
        return {"memory": {"total_mib": 1}}

    def stack(self, rank: int) -> Mapping[str, Any]:
        text = (DATA / "stacks" / f"asleep_pyspy_rank{rank}.txt").read_text()
        if rank in self.moves:
            text = text.replace("(hang.py:", f"(hang.py:{len(self.asked)}")
        sleeps = {"state": "S", "wchan": "hrtimer_nanosleep" if rank == 2 else "futex_do_wait"}
        return {
            "rank": rank,
            "local_rank": rank % 2,
            "pid": 70 + rank,
            "how": "py-spy",
            "text": text,
            "why": "",
            **sleeps,
        }


class FakeRecord:
    def __init__(self, root: Path) -> None:
        self.paths = ExperimentPaths(root)
        self.document: dict[str, Any] = {}
        self.paths.logs.mkdir(parents=True)

    def write(self, **fields: Any) -> None:
        self.document.update(fields)


def build_readers(**known: Any) -> list[NodeReader]:
    return cast("list[NodeReader]", [FakeReader(node, **known) for node in PLAN.nodes])


def begin(guard: HangGuard, readers: list[NodeReader], events: queue.SimpleQueue[Event]) -> Decider:
    """Guard an attempt from its start on, and let its ranks come."""
    decider = Decider(PLAN, started=clock.now(), join_limit_s=60)
    decider.history.heard.update(node.node_rank for node in PLAN.nodes)
    guard.begin(decider, readers, events)
    for node in PLAN.nodes:
        for rank in node.ranks:
            data = {"rank": rank, "world_size": PLAN.world_size}
            decider.take(Event(kind="rank", time=clock.now(), node_rank=node.node_rank, data=data))
    return decider


def build_guard(tmp_path: Path, action: str) -> tuple[HangGuard, FakeRecord]:
    record = FakeRecord(tmp_path)
    settings = SimpleNamespace(hang_after_s=0.4, hang_grace_s=0.4, hang_action=action, py_spy=None)
    return HangGuard(cast("Settings", settings), cast("Any", record), lambda *_: None), record


@pytest.fixture
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "TICK_S", 0.01)
    monkeypatch.setattr(guard_module, "AGAIN_S", 0.05)
    monkeypatch.setattr(hang_watch, "BETWEEN_S", 0.0)
    monkeypatch.setattr(hang_watch, "ECHO_S", 0.1)
    monkeypatch.setattr(hang_watch, "SETTLE_S", 0.1)
    monkeypatch.setattr(report, "REST_S", 0.5)


@pytest.mark.usefixtures("_hurry")
def test_a_run_that_stands_is_told_once_with_the_odd_rank_and_that_it_goes_on(tmp_path: Path) -> None:
    guard, record = build_guard(tmp_path, "warn")
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    readers = build_readers()
    guard.show(0, 0, "out", b"step 1\n")
    begin(guard, readers, events)
    event = events.get(timeout=10)
    assert (event.kind, event.data["family"], event.data["ranks"]) == ("hang", "HANG", [2])
    assert event.data["rule"] == "flight recorder"
    assert event.data["where"] == "hang.py:3 in fetch_remote_shard"
    first, *rest = event.data["words"].splitlines()
    assert first.startswith("HANG since ")
    assert (
        "3 ranks wait in all_reduce (hang.py:11, sequence 4); rank 2 (node 1 node1 10.0.0.2, local rank 0) never came"
        in first
    )
    assert rest[0] == "  where          hang.py:3 in fetch_remote_shard"
    folder = record.paths.diagnosis / "hang_1"
    assert "wchan=hrtimer_nanosleep" in (folder / "stacks" / "rank_0002.txt").read_text()
    assert (folder / "flight" / "rank_0003.json").read_bytes() == (DATA / "flight" / "asleep_rank3.json").read_bytes()
    assert json.loads((folder / "report.json").read_text())["odd"]["ranks"] == [2]
    assert {one["file"] for one in event.data["evidence"]} == {
        "diagnosis/hang_1/report.txt",
        "diagnosis/hang_1/stacks/rank_0002.txt",
        "diagnosis/hang_1/flight/rank_0002.json",
    }
    guard.keep(event)
    wait_for((folder / "native" / "rank_0002.txt").exists, "the native stacks are kept, the last one too")
    assert sorted(path.name for path in (folder / "native").iterdir()) == ["rank_0000.txt", "rank_0002.txt"]
    assert (folder / "ras_1.txt").read_text() == "nothing: nobody listens\n"
    assert json.loads((folder / "node_0.json").read_text()) == {"memory": {"total_mib": 1}}

    def writes() -> bool:
        guard.show(0, 0, "out", b"step 2\n")
        return not events.empty()

    wait_for(writes, "it goes on")
    event = events.get()
    assert event.kind == "hang_over"
    assert event.data["words"].startswith("it goes on again, after ")
    guard.keep(event)
    guard.end()
    (kept,) = record.document["hangs"]
    assert (kept["number"], kept["ranks"], "words" in kept) == (1, [2], False)
    assert kept["over"] >= kept["since"]


@pytest.mark.usefixtures("_hurry")
def test_before_a_stop_everything_is_saved(tmp_path: Path) -> None:
    guard, record = build_guard(tmp_path, "stop")
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    decider = begin(guard, build_readers(), events)
    event = events.get(timeout=10)
    assert (record.paths.diagnosis / "hang_1" / "node_1.json").exists()
    (order,) = decider.take(event)
    assert order.stop == (0, 1)
    assert order.say.endswith("stopping every node, because of the hang")
    assert decider.history.stop_cause == "hang"
    guard.end()


@pytest.mark.usefixtures("_hurry")
def test_a_run_in_which_somebody_moves_on_is_told_and_not_stopped(tmp_path: Path) -> None:
    guard, _ = build_guard(tmp_path, "stop")
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    decider = begin(guard, build_readers(moves=[2]), events)
    event = events.get(timeout=10)
    assert event.data["action"] == "warn"
    assert decider.take(event)[0].stop == ()
    assert decider.history.stop_cause is None
    guard.end()


@pytest.mark.usefixtures("_hurry")
def test_a_run_in_which_all_move_on_is_slow_and_no_hang(tmp_path: Path) -> None:
    guard, record = build_guard(tmp_path, "warn")
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    readers = build_readers(moves=range(4))
    begin(guard, readers, events)
    asked = cast("Any", readers[0]).asked
    wait_for(lambda: [one["op"] for one in asked].count("stacks") == 2, "their stacks are looked at twice")
    guard.end()
    assert events.empty()
    assert not record.paths.diagnosis.exists()


def test_a_node_that_has_fallen_silent_is_not_waited_for_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "SUSPECT_S", 0.2)
    speaks, silent = FakeReader(PLAN.nodes[0]), FakeReader(PLAN.nodes[1], silent=True)
    silent.suspect = True
    began = time.monotonic()
    told = stacks.gather_stacks(cast("list[NodeReader]", [speaks, silent]), native=False)
    assert 0.2 <= time.monotonic() - began < 5
    assert [node.get("error", "") for node in told["nodes"]] == ["", "no answer"]


def test_where_nobody_is_odd_the_verdict_sends_nobody_to_one_stack() -> None:
    story = Story(2, 2)
    story.all_run()
    data: dict[str, Any] = {
        "number": 1,
        "action": "stop",
        "since": 2.0,
        "words": "HANG",
        "family": "HANG",
        "rule": "stacks",
    }
    data |= {"ranks": [], "confidence": "likely", "cause": "all 4 ranks are asleep", "where": "", "evidence": []}
    story.tell("hang", at=9.0, **data)
    verdict = story.verdict()
    assert (verdict.cause, verdict.first_failure, verdict.confidence) == ("all 4 ranks are asleep", None, "likely")
    assert verdict.remedy.startswith("compare the stacks in diagnosis/")


def test_a_recorder_of_an_earlier_moment_tells_nothing_of_this_one() -> None:
    data = base64.b64encode(zlib.compress(b'{"entries": []}')).decode()
    ranks = [{"rank": 0, "data": data}, {"rank": 1, "data": data, "age_s": 90.0}, {"rank": 2, "data": data, "age_s": 5}]
    torn = {"rank": 3, "data": base64.b64encode(b"x").decode()}
    assert sorted(dumps.take_dumps({0: {"ranks": [*ranks, torn]}}, 60.0)) == [0, 2]


@pytest.mark.usefixtures("_hurry")
@pytest.mark.parametrize("known", [{"cores": 1.0}, {"silent": True}])
def test_who_works_or_does_not_answer_is_left_alone(
    tmp_path: Path, known: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "ANSWER_S", 0.1)
    monkeypatch.setattr(guard_module, "WINDOW_S", 0.1)
    guard, _ = build_guard(tmp_path, "warn")
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    readers = build_readers(**known)
    begin(guard, readers, events)
    wait_for(lambda: bool(cast("Any", readers[0]).asked), "it is looked at")
    wait_for(lambda: cast("Any", readers[1]).asked[-1]["op"] == "activity", "all are")
    guard.end()
    assert events.empty()
    assert {one["op"] for one in cast("Any", readers[0]).asked} == {"activity"}


@pytest.mark.usefixtures("_hurry")
def test_a_hang_that_was_told_before_a_take_over_is_told_no_more_but_its_end_is(tmp_path: Path) -> None:
    known, _ = build_guard(tmp_path / "a", "warn")
    decider = begin(known, build_readers(silent=True), queue.SimpleQueue())
    known.end()
    guard, record = build_guard(tmp_path / "b", "warn")
    record.document["hangs"] = [{"number": 1, "since": clock.now() - 60, "action": "warn"}]
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    readers = build_readers()
    guard.begin(decider, readers, events)

    def writes() -> bool:
        guard.show(0, 0, "out", b"step 2\n")
        return not events.empty()

    wait_for(writes, "it goes on")
    event = events.get()
    assert (event.kind, cast("Any", readers[0]).asked) == ("hang_over", [])
    assert event.data["words"].startswith("it goes on again, after 1m")
    guard.end()


def test_whoever_takes_over_does_not_tell_a_hang_again(tmp_path: Path) -> None:
    told = [{"number": 1, "since": 5.0, "action": "warn"}]
    over = fold_hangs(told, Event(kind="hang_over", time=9.0, data={}))
    assert over == [{**told[0], "over": 9.0}]
    again = Event(kind="hang", time=9.0, data={"number": 1, "words": ""})
    assert fold_hangs(told, again) == told
    record = FakeRecord(tmp_path)
    (record.paths.logs / "rank_0000.out").write_bytes(b"step 3\n")
    (record.paths.logs / "rank_0001.out").write_bytes(b"")
    now = clock.now()
    os.utime(record.paths.logs / "rank_0000.out", (now - 500, now - 500))
    known = recall(record.paths, now - 900)
    assert known.stepped
    assert known.running_since is not None
    assert 399 < known.silent_since - known.running_since < 401


DUMPS = (
    b"[rank0]:[E1128 13:56:37.440146631 ProcessGroupNCCL.cpp:1628] [PG ID 0 Rank 0] ProcessGroupNCCL preparing to dump"
    b" debug info. Include stack trace: 1\n"
)


@pytest.mark.parametrize(
    ("data", "own"),
    [
        (DUMPS, True),
        (DUMPS + DUMPS, True),
        (b"node1:4487:4500 [0] NCCL INFO comm 0x1 rank 0 nranks 2\n", True),
        (b"[W1127 22:50:11.861362727 socket.cpp:207] [c10d] The hostname cannot be retrieved. err=-3\n", True),
        (DUMPS + b"loss 0.3\n", False),
        (b"W1127 22:50:24.585000 6864 torch/_dynamo/convert_frame.py:753] recompiling\n", False),
        (b"", False),
    ],
)
def test_what_the_machinery_logs_is_no_progress(data: bytes, own: bool) -> None:  # noqa: FBT001
    assert is_own_log(data) is own
    told: list[float] = []
    pulse = Pulse(lambda *_: None)
    pulse.show(0, 0, "err", data or b"x")
    pulse.tell(cast("HangWatch", SimpleNamespace(note_output=told.append, note_step=told.append)))
    assert bool(told) is not own


def test_the_pulse_reads_whole_lines_alone() -> None:
    seen: list[bytes] = []
    pulse = Pulse(lambda *words: seen.append(words[3]))
    told: list[tuple[int, int]] = []

    class Listener:
        def note_output(self, now: float) -> None:
            assert now > 0

        def note_step(self, now: float, rank: int, step: int) -> None:
            assert now > 0
            told.append((rank, step))

    listener = cast("HangWatch", Listener())
    for data in (b"step 4\nstep 1", b"2\nloss", b" 0.5\n"):
        pulse.show(0, 0, "out", data)
        pulse.tell(listener)
    pulse.show(0, 1, "err", b"10%|#  | 1/10 [\r20%|## | 2/10 [\r")
    pulse.show(0, None, "err", b"step 99\n")
    pulse.tell(listener)
    assert told == [(0, 4), (0, 12), (3, 2)]
    assert b"".join(seen).startswith(b"step 4\nstep 12\nloss 0.5\n")
