"""The keys that are pressed before a live view, and what is meant by them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Keys:
    """The signals that came, in the order in which they came."""

    def __init__(self) -> None:
        self.pressed: list[int] = []

    def take(self, number: int, frame: object) -> None:
        """Be the signal handler."""
        del frame
        self.pressed.append(number)


@contextmanager
def caught_keys() -> Iterator[Keys]:
    """Collect SIGINT, SIGTERM and SIGHUP for the time of a block."""
    keys = Keys()
    before = {number: signal.signal(number, keys.take) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield keys
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ask_choice(run_id: str) -> str:
    """Ask what Ctrl-C was meant for; whoever presses it once more, or closes the terminal, leaves."""
    interrupted = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while True:
            sys.stderr.write(f"\n{run_id}: [s]top it on every node, [d]etach and let it run, or [g]o on watching? ")
            sys.stderr.flush()
            answer = sys.stdin.readline()
            word = answer.strip().lower()[:1]
            if not answer:
                return "d"
            if word in ("s", "d", "g"):
                return word
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return "d"
    finally:
        signal.signal(signal.SIGINT, interrupted)
