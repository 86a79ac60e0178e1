from __future__ import annotations

import io
import os

import pytest

from orchestrator.errors import ConfigError
from orchestrator.output.console import Talk, build_console
from orchestrator.output.wording import render_duration


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(0.04, "0.0s"), (3.21, "3.2s"), (59.9, "59s"), (62.4, "1m 02s"), (3720, "1h 02m"), (90_000, "1d 01h")],
)
def test_durations_have_two_units(duration_s: float, text: str) -> None:
    assert render_duration(duration_s) == text


def test_talk_goes_to_stderr_and_results_to_stdout() -> None:
    err, out = io.StringIO(), io.StringIO()

    def talk(verbosity: int, *, as_json: bool = False) -> Talk:
        consoles = {"err": build_console(err, "never", {}), "out": build_console(out, "never", {})}
        return Talk(**consoles, verbosity=verbosity, as_json=as_json)

    talk(-1).say("not heard")
    talk(0).detail("not heard")
    talk(-1).warn("careful")
    talk(1).detail("more")
    talk(0).show("result")
    talk(0, as_json=True).show("no text beside JSON")
    talk(0, as_json=True).document({"a": "ž"})
    talk(0, as_json=True).error(ConfigError("odd", "x", "do"))
    assert err.getvalue() == "warning: careful\nmore\nerror: x: odd\n  → do\n"
    assert out.getvalue().startswith('result\n{\n  "a": "\\u017e"\n}\n{')


def test_a_lost_reader_of_the_talk_does_not_end_the_program() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        talk = Talk(
            err=build_console(gone, "never", {}),
            out=build_console(io.StringIO(), "never", {}),
            verbosity=0,
            as_json=False,
        )
        talk.say("nobody hears this")
        talk.say("nor this")
