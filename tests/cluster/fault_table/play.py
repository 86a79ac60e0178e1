"""Makes one fault happen, and asserts what its row says and what every row promises."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from cluster import Cluster, Completed, start_cluster
from scenes import row_param

from .case import Case
from .row import Fault, Logs, Others
from .scripts import wanted_bytes

EMPTY_S = 15.0


def parametrize(faults: Sequence[Fault]) -> pytest.MarkDecorator:
    """One test a row, under the id that the page names."""
    params = [row_param(fault, fault.id, fault.marks, long=fault.long, torch=fault.real_torch) for fault in faults]
    return pytest.mark.parametrize("fault", params)


def play(fault: Fault, nodes3: Callable[[], Cluster], tmp_path: Path) -> None:
    """Play one row from the launch to the empty nodes."""
    begin = time.monotonic()
    with ExitStack() as undo:
        cluster = undo.enter_context(start_cluster(len(fault.nodes))) if fault.fresh else nodes3()
        case = Case(fault, cluster, tmp_path, undo)
        undo.callback(end_run, case)
        fault.before(case)
        case.start()
        fault.inject(case)
        done = fault.ending(case)
        print(done.stderr)
        check_said(case, done)
        check_verdict(case, done)
        check_others(case)
        check_logs(case)
        fault.also(case)
        case.end_foreign()
        for k in fault.nodes:
            if cluster.alive(k):
                cluster.wait_process_table(k, case.scene.before[k], EMPTY_S)
    print(f"{fault.id}: {time.monotonic() - begin:.1f} s")


def end_run(case: Case) -> None:
    """Leave nothing behind when a row fails half way: the nodes belong to other rows too."""
    case.launcher.kill()
    if not case.fault.fresh and any(
        case.scene.cluster.process_table(k) != case.scene.before[k] for k in case.fault.nodes
    ):
        case.scene.verb("kill", "--all", "--yes", "--grace", "0s")
    case.end_foreign()


def check_said(case: Case, done: Completed) -> None:
    """The words of the row stood on the screen, and nothing of our own inside."""
    said = case.launcher.stderr + done.stderr + done.stdout
    places = {f"node{k}": case.cluster.address(k) for k in case.fault.nodes}
    for words in case.fault.says:
        assert words.format(**places) in said, f"{words!r} was not said: {done}"
    for words in ("orchestrator/", "internal error", *case.fault.never):
        assert words.format(**places) not in said, f"{words!r} was said: {done}"


def check_verdict(case: Case, done: Completed) -> None:
    """Exit code, state and first failure are those of the row."""
    fault = case.fault
    assert done.exit_code == fault.exit_code, done
    if not fault.state:
        assert case.scene.runs() == [], "a run was begun"
        return
    verdict = case.scene.verdict()
    assert verdict["state"] == fault.state, done
    assert verdict["survivors"] == []
    first = verdict["first_failure"]
    if fault.first is None:
        assert first is None, first
        return
    assert (first["node_rank"], first["rank"]) == (fault.first.node_rank, fault.first.rank), first
    assert fault.first.error in (first["error"] or verdict["cause"]), first


def check_others(case: Case) -> None:
    """The nodes that were not struck did what the row says."""
    if case.fault.others is Others.STOPPED:
        struck = case.fault.first.node_rank if case.fault.first else None
        others = [rank for k in case.fault.nodes if case.node_rank(k) != struck for rank in case.ranks_of(k)]
        assert set(others) <= set(case.scene.verdict()["stopped"])
    elif case.fault.others is Others.GO_ON:
        assert case.scene.verdict()["state"] == "succeeded"
        assert case.scene.verdict()["stopped"] == []


def check_logs(case: Case) -> None:
    """What the launch host has is what each rank wrote, and what each rank wrote is what it had to write."""
    logs = case.fault.logs
    if logs is Logs.NONE:
        return
    for rank in case.ranks:
        here = case.host_out(rank).read_bytes()
        assert here, f"nothing of rank {rank} came"
        assert here == wanted_bytes(rank, len(here)), f"rank {rank}: a line is lost, doubled or spoilt"
        for stream, suffix in (("stdout", "out"), ("stderr", "err")):
            here = read_bytes(case.host_out(rank).with_suffix(f".{suffix}"))
            there = read_bytes(case.node_file(rank, stream))
            if logs is Logs.HERE_ALONE and not case.run_folder(2).exists() and rank in case.ranks_of(2):
                continue
            assert there.startswith(here), f"rank {rank}: {stream} differs from the node's own file"
            if logs is not Logs.BEGINNING:
                assert len(here) == len(there), f"rank {rank}: {len(there) - len(here)} bytes of {stream} are missing"


def read_bytes(path: Path) -> bytes:
    """Read a file that is not there where nothing was written."""
    return path.read_bytes() if path.exists() else b""
