"""Stories of runs that hang and of runs that only look like it, told second by second with a clock that is made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from clocks import Clock

from orchestrator.diagnosis.hang.activity import Activity, fold_activity
from orchestrator.diagnosis.hang.watch import Action, HangRules, HangWatch, TakenOver

IDLE = Activity(idle=(0, 1))
BUSY = Activity(busy=(0,), idle=(1,))

Look = Callable[[float], Activity | None]


class Story:
    """A run of two ranks: writes, steps, looks, and what the watch makes of it."""

    def __init__(self, *, action: Action = "warn", taken: TakenOver | None = None) -> None:
        self.clock = Clock(0.0)
        self.watch = HangWatch(HangRules(after_s=600, grace_s=900, action=action), 0.0, taken=taken)
        self.told: list[tuple[str, float]] = []
        self.looks = 0
        self.step = 0

    def steps(self, seconds: int, every: int = 10) -> Story:
        """Train: a line with a step every few seconds."""

        def write() -> None:
            if self.clock.now % every == 0:
                self.step += 1
                self.watch.note_output(self.clock.now)
                self.watch.note_step(self.clock.now, 0, self.step)

        return self.pass_time(seconds, BUSY, write)

    def chatter(self, seconds: int, look: Activity) -> Story:
        """Write lines that tell no new step."""

        def write() -> None:
            if self.clock.now % 20 == 0:
                self.watch.note_output(self.clock.now)

        return self.pass_time(seconds, look, write)

    def pass_time(self, seconds: int, look: Activity | None, write: Callable[[], None] = lambda: None) -> Story:
        """Let time pass; who looks sees this."""
        for _ in range(seconds):
            self.clock.now += 1
            write()
            due = self.watch.due(self.clock.now, runs=True)
            if due == "look":
                self.looks += 1
                self.watch.note_activity(self.clock.now, look)
            elif due == "gather":
                self.told.append(("hang", self.clock.now))
                self.watch.note_report(self.clock.now)
            elif due == "over":
                self.told.append(("over", self.clock.now))
                self.watch.note_over(self.clock.now)
        return self


def test_silence_of_a_run_that_has_stepped_is_a_hang_once_it_lasts() -> None:
    story = Story().steps(100)
    assert story.looks == 0, "while it goes on nobody is asked"
    story.pass_time(3000, IDLE)
    assert story.told == [("hang", 700)]
    assert story.watch.since == 100
    assert story.looks == 2


def test_it_goes_on_again_and_hangs_again() -> None:
    story = Story().steps(100).pass_time(900, IDLE).steps(200).pass_time(700, IDLE)
    assert [word for word, _ in story.told] == ["hang", "over", "hang"]
    assert 1000 < story.told[1][1] <= 1020
    assert story.told[2][1] == 1800


@pytest.mark.parametrize(
    ("name", "tell"),
    [
        ("evaluates for an hour without a word, rank 0 alone", lambda story: story.steps(100).pass_time(3600, BUSY)),
        ("writes a checkpoint for an hour", lambda story: story.steps(100).pass_time(3600, Activity(idle=(0, 1), outputs_age_s=4.0))),
        ("compiles before its first step, children busy", lambda story: story.pass_time(3600, BUSY)),
        ("waits for data before its first step", lambda story: story.pass_time(890, IDLE)),
        ("nobody answers who could be asked", lambda story: story.steps(100).pass_time(3600, None)),
        ("only now and then a line, at long steps", lambda story: story.steps(3600, every=590)),
        ("prints while it evaluates", lambda story: story.steps(100).chatter(3600, BUSY)),
        ("tells of no steps at all and prints", lambda story: story.chatter(3600, IDLE)),
    ],
)  # fmt: skip
def test_no_false_alarm_while_a_run(name: str, tell: Callable[[Story], Story]) -> None:
    assert tell(Story()).told == [], name


def test_a_run_that_never_steps_is_judged_after_the_grace() -> None:
    story = Story().pass_time(2000, IDLE)
    assert len(story.told) == 1
    assert 900 <= story.told[0][1] <= 905


def test_lines_without_a_step_are_no_progress_where_steps_were_told() -> None:
    story = Story().steps(100).chatter(1000, IDLE)
    assert story.told == [("hang", 700)]


def test_a_pause_between_two_pieces_of_work_is_no_hang() -> None:
    story = Story().steps(100)
    for _ in range(20):
        story.pass_time(590, BUSY).watch.note_activity(story.clock.now, IDLE)
        story.watch.note_activity(story.clock.now, BUSY)
    assert story.told == []


def test_files_that_were_written_a_while_ago_postpone_the_judgement() -> None:
    story = Story().steps(100).pass_time(600, Activity(idle=(0, 1), outputs_age_s=200.0))
    assert story.told == []
    story.pass_time(700, Activity(idle=(0, 1), outputs_age_s=900.0))
    (told,) = story.told
    assert 1090 <= told[1] <= 1110


def test_we_who_slept_judge_nobody() -> None:
    story = Story().steps(100)
    story.clock.now += 5000
    story.pass_time(500, IDLE)
    assert story.told == []
    story.pass_time(200, IDLE)
    assert len(story.told) == 1


def test_a_node_that_is_silent_is_not_judged() -> None:
    story = Story().steps(100).pass_time(560, BUSY)
    for _ in range(100):
        story.watch.note_away(story.clock.now)
        story.pass_time(1, IDLE)
    assert story.told == []


def test_what_a_library_writes_because_it_was_looked_at_is_no_progress() -> None:
    story = Story(taken=TakenOver(silent_since=0.0, running_since=0.0, stepped=True)).pass_time(601, IDLE)
    assert story.watch.hangs
    story.watch.note_output(story.clock.now + 2)
    story.pass_time(60, IDLE)
    assert len(story.told) == 1


def test_whoever_takes_over_counts_from_the_last_byte() -> None:
    known = TakenOver(silent_since=-400.0, running_since=-900.0, stepped=True)
    story = Story(taken=known).pass_time(300, IDLE)
    assert story.told == [("hang", 200)]
    assert story.watch.since == -400
    long_ago = TakenOver(silent_since=-4000.0, running_since=-5000.0, stepped=True)
    assert Story(taken=long_ago).pass_time(30, IDLE).told == [("hang", 12)], "what it wrote meanwhile comes first"
    assert Story(taken=long_ago).steps(30).pass_time(300, IDLE).told == []
    early = TakenOver(silent_since=-400.0, running_since=None, stepped=False)
    assert Story(taken=early).pass_time(890, IDLE).told == [], "its grace begins once its ranks are there"


def test_off_means_that_nobody_is_asked() -> None:
    story = Story(action="off").steps(100).pass_time(5000, IDLE)
    assert (story.told, story.looks) == ([], 0)


def cpu(*cores: float, **more: Any) -> dict[str, Any]:
    return {"ranks": [{"rank": rank, "cpu_cores": one} for rank, one in enumerate(cores)], "gpus": [], **more}


def gpu(percent: int, power: float | None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "util_percent": percent, "power_w": power, "power_limit_w": 700}


def test_who_works_by_processor_files_and_gpus() -> None:
    assert fold_activity([cpu(0.01, 0.02)]).stands
    assert fold_activity([cpu(0.01, 1.0)]).busy == (1,)
    upload = {"ranks": [{"rank": 0, "cpu_cores": 0.03, "io_mib_s": 2.0}, {"rank": 1, "cpu_cores": 0.0}]}
    assert fold_activity([upload]).busy == (0,)
    wired = {"ranks": [{"rank": 0, "cpu_cores": 0.03, "io_mib_s": 0.0, "net_mib_s": 2.0}]}
    assert fold_activity([wired]).busy == (0,), "no byte of a socket shows as read or written"
    assert fold_activity([cpu(0.0, outputs_age_s=50.0), cpu(0.0, outputs_age_s=7.5)]).outputs_age_s == 7.5
    assert not fold_activity([]).stands, "nothing is known of anybody"
    assert not fold_activity([{"ranks": [{"rank": 0, "cpu_cores": None}]}]).stands


def test_gpus_that_spin_do_no_work_and_those_that_compute_do() -> None:
    spins = fold_activity([cpu(1.1, 1.0, gpus=[gpu(100, 120, 0), gpu(100, 118, 1)])])
    assert spins.stands
    assert spins.spins
    odd = fold_activity([cpu(1.1, 0.0, gpus=[gpu(100, 120, 0), gpu(0, 70, 1)])])
    assert odd.stands
    computes = fold_activity([cpu(1.1, 1.0, gpus=[gpu(100, 650, 0), gpu(100, 118, 1)])])
    assert computes.busy == (0,)
    assert fold_activity([cpu(0.0, gpus=[gpu(40, 110)])]).busy == (0,), "light work is work"
    assert fold_activity([cpu(1.0, gpus=[gpu(100, None)])]).busy == (0,), "power unknown: no alarm"
    assert fold_activity([cpu(16.0, gpus=[gpu(100, 120)])]).busy == (0,), "its loaders work"


def test_fewer_ranks_than_gpus() -> None:
    waiting = [gpu(100, 120, index) for index in range(4)]
    idle = [gpu(0, 70, index) for index in range(4, 8)]
    assert fold_activity([cpu(1.0, 1.1, 1.0, 1.0, gpus=[*waiting, *idle])]).stands
    assert fold_activity([cpu(1.0, 1.1, 0.0, 1.0, gpus=[*waiting[:3], *idle, gpu(0, 70, 3)])]).stands
    assert fold_activity([cpu(1.0, 1.1, 1.0, 1.0, gpus=[*waiting[:3], *idle])]).busy, "one polls for no GPU"
    assert fold_activity([cpu(0.0, 4.0, gpus=[*waiting, *idle])]).busy == (1,)
