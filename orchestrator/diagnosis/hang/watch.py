"""Notices that a run makes no progress: told of output, steps and activity, it says what is due; it has no clock."""

from __future__ import annotations

from typing import Literal

from orchestrator.diagnosis.hang.activity import Activity
from orchestrator.light_dataclass import dataclass

Action = Literal["warn", "stop", "off"]
Due = Literal["nothing", "look", "gather", "over"]

AHEAD_S = 5.0
"""So long before the time is up the first look is taken, so that the report is not late."""
LOOKS = 2
"""In which nobody works, one after the other: a pause between two pieces of work is shorter."""
BETWEEN_S = 1.0
MOVES = 3
"""A step has moved so often: it is a counter, and one that stands tells more than lines that come."""
AGAIN_S = (5.0, 60.0)
"""After a look at work the next one follows in a tenth of the time, within these."""
UNHEARD_S = 10.0
"""After the last doubt about a node its logs have come."""
JUMP_S = 30.0
"""Nobody asked for so long: it was we who stood still (a laptop asleep, a suspended process)."""
ECHO_S = 5.0
"""What libraries write because they were looked at is no progress."""
SETTLE_S = 3.0
"""After its first sign a run that goes on has to go on for so long; one that fails says much at once."""


@dataclass(frozen=True, kw_only=True)
class HangRules:
    """When silence is a hang, and what comes of it."""

    after_s: float
    grace_s: float
    action: Action


@dataclass(frozen=True, kw_only=True)
class TakenOver:
    """What is known of a run whose controller is gone, on the clock of the new one."""

    silent_since: float
    """Its last byte here."""
    running_since: float | None
    """All ranks had been seen; None: they had not."""
    stepped: bool
    """It has told a step."""


class HangWatch:
    """The state of one run's progress; mutable, owned by whoever watches it."""

    def __init__(self, rules: HangRules, now: float, *, taken: TakenOver | None = None) -> None:
        """Begin now, or with what is known of a run that is taken over."""
        self.rules = rules
        self._output = now if taken is None else min(now, taken.silent_since)
        self._files = self._output
        self._moved = self._output
        self._steps: dict[int, int] = {}
        self._moves = 0
        self._stepped = taken is not None and taken.stepped
        self._running = None if taken is None else taken.running_since
        self._asked = now
        self._next_look = now
        # What a run that is taken over wrote meanwhile has yet to come.
        self._away = now - (UNHEARD_S if taken is None else 0.0)
        self._stood = 0
        self._reported: float | None = None
        self._sign: float | None = None

    @property
    def since(self) -> float:
        """The last sign of progress."""
        told = self._moved if self._moves >= MOVES else self._output
        return max(told, self._files, self._running or told)

    @property
    def hangs(self) -> bool:
        """A hang was reported that is not over."""
        return self._reported is not None

    def note_output(self, now: float) -> None:
        """A rank has written something."""
        self._output = max(self._output, now)

    def note_step(self, now: float, rank: int, step: int) -> None:
        """A rank has told its step."""
        self._stepped = True
        known = self._steps.get(rank)
        self._steps[rank] = step
        if known is not None and known != step:
            self._moves += 1
            self._moved = max(self._moved, now)
        elif known is None:
            self._moved = max(self._moved, now)

    def note_away(self, now: float) -> None:
        """A node does not answer: what it wrote may lie there unread."""
        self._away = now

    def due(self, now: float, *, runs: bool) -> Due:
        """Say what is to be done; `runs`: all ranks were seen and nobody has stopped the run."""
        if now - self._asked > JUMP_S:
            self._output = self._files = self._moved = now
            self._stood = 0
        self._asked = now
        if not runs:
            return "nothing"
        if self._running is None:
            self._running = now
        if self._reported is not None:
            return "over" if self._goes_on(now, self._reported) else "nothing"
        if self.rules.action == "off" or now - self._away < UNHEARD_S or now < self._next_look:
            return "nothing"
        silent_s = now - self.since
        judged = self._stepped or now - self._running >= self.rules.grace_s
        if not judged or silent_s < self.rules.after_s - min(AHEAD_S, self.rules.after_s / 2):
            self._stood = 0
            return "nothing"
        if self._stood < LOOKS:
            return "look"
        return "gather" if silent_s >= self.rules.after_s else "nothing"

    def note_activity(self, now: float, activity: Activity | None) -> None:
        """Take in what a look has shown; None: nobody answered."""
        low, high = AGAIN_S
        again_s = min(high, max(low, self.rules.after_s / 10))
        if activity is not None and activity.outputs_age_s is not None:
            self._files = max(self._files, now - activity.outputs_age_s)
        if activity is None or not activity.stands:
            self._stood, self._next_look = 0, now + again_s
            return
        self._stood += 1
        self._next_look = now + (BETWEEN_S if self._stood < LOOKS else 0.0)

    def note_moving(self, now: float) -> None:
        """Their stacks have moved meanwhile: slow, and no hang."""
        self._stood, self._next_look = 0, now + AGAIN_S[1]

    def note_report(self, now: float) -> None:
        """The hang was reported: nothing more is due until the run goes on."""
        self._reported, self._sign = now, None

    def note_over(self, now: float) -> None:
        """The run goes on: another silence is another hang."""
        self._reported, self._sign, self._stood = None, None, 0
        self._next_look = now

    def _goes_on(self, now: float, reported: float) -> bool:
        sign = self._moved if self._moves >= MOVES else self._output
        if sign <= reported + ECHO_S:
            return False
        if self._sign is None:
            self._sign = now
        return now - self._sign >= SETTLE_S
