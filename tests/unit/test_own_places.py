"""Whose code a place in a traceback is."""

from __future__ import annotations

from orchestrator.diagnosis.logs.tracebacks import parse_failure


def test_the_place_is_in_the_script_not_in_the_library_that_came_with_the_run() -> None:
    library = "/home/a/.aorta/runs/r/0/library/orchestrator/distributed"
    lines = ["Traceback (most recent call last):", '  File "/w/train.py", line 33, in <module>', "    gather(x)"]
    lines += [f'  File "{library}/collectives.py", line 113, in gather', "    with collective():"]
    lines += ["orchestrator.distributed.errors.DistributedError: rank 1 did not come"]
    failure = parse_failure("\n".join(lines))
    assert failure is not None
    assert failure.where == "/w/train.py:33 in <module>"
