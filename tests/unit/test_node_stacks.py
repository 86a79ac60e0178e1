from __future__ import annotations

import json
import os
import signal
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks_alone import STUCK, RankRoom, wait_for

from orchestrator.diagnosis.hang.stacks import parse_stack
from orchestrator.node import armed, processes, pyspy, stacks
from orchestrator.node.wire import Wire

WHEELS = Path(os.environ.get("AORTA_TEST_PYSPY", "/tmp/pyspy"))
"""A folder with py-spy's wheel, or with the program itself."""


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RankRoom]:
    with RankRoom(tmp_path) as room:
        yield room


@pytest.fixture
def without_pyspy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspy, "find_pyspy", lambda *_: "")


@pytest.fixture(scope="session")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """py-spy itself, unpacked."""
    for wheel in WHEELS.glob("py_spy-*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            name = next((name for name in packed.namelist() if name.endswith("/scripts/py-spy")), "")
            if name and os.uname().machine in wheel.name:
                path = Path(packed.extract(name, tmp_path_factory.mktemp("pyspy")))
                path.chmod(0o755)
                return path
    pytest.skip(f"py-spy's wheel is not in {WHEELS}")


def put_in(room: RankRoom, tool: Path) -> None:
    (room.folder / "bin").mkdir()
    (room.folder / "bin" / "py-spy").symlink_to(tool)


def look(room: RankRoom, **order: Any) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = stacks.take_stacks(str(room.folder), {"op": "stacks", **order})["ranks"]
    return answer


def functions(told: dict[str, Any]) -> list[str]:
    stack = parse_stack(told["text"], told["rank"], 0)
    assert stack is not None
    return [frame.function for frame in stack.frames]


@pytest.mark.usefixtures("without_pyspy")
def test_a_rank_that_waits_in_a_lock_tells_it_on_the_signal(room: RankRoom) -> None:
    process = room.start(STUCK)
    room.wait_armed()
    room.wait_here()
    (told,) = look(room)
    assert (told["how"], told["pid"], told["state"]) == ("signal", process.pid, "S")
    assert functions(told)[:2] == ["wait_for_ever", "<module>"]
    assert process.poll() is None


@pytest.mark.usefixtures("without_pyspy")
def test_a_second_look_tells_of_now_alone(room: RankRoom) -> None:
    room.start(STUCK)
    room.wait_armed()
    room.wait_here()
    first, second = look(room)[0]["text"], look(room)[0]["text"]
    assert first.count("wait_for_ever") == second.count("wait_for_ever") == 1


@pytest.mark.usefixtures("without_pyspy")
def test_a_rank_without_the_hook_is_never_signalled(room: RankRoom) -> None:
    process = room.start(STUCK, hook=False)
    (told,) = look(room)
    assert (told["how"], told["why"]) == ("proc", "there is no py-spy; the rank hook is not in it")
    assert told["text"].startswith("Name:")
    assert f"thread {process.pid} " in told["text"]
    assert armed.signal_armed(room.events, str(room.folder)) == {}
    assert process.poll() is None


@pytest.mark.parametrize(
    "undone", ["faulthandler.unregister(signal.SIGRTMAX - 4)", "os.closerange(3, 64)"], ids=["unregistered", "closed"]
)
def test_a_mark_alone_is_not_believed(room: RankRoom, undone: str) -> None:
    # The first would be killed by the signal, the second would write its stack into whatever it has opened since.
    program = f"import faulthandler, os, signal\n{undone}\nprint('ready', flush=True)\nsignal.pause()"
    process = room.start(program)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert armed.read_mark(str(room.folder), 0) is not None
    assert armed.signal_armed(room.events, str(room.folder)) == {}
    assert process.poll() is None


def test_a_mark_of_an_earlier_process_counts_for_nobody(room: RankRoom) -> None:
    first = room.start(STUCK)
    room.wait_armed()
    first.kill()
    first.wait()
    second = room.start(STUCK, hook=False)
    assert armed.signal_armed(room.events[1:], str(room.folder)) == {}
    assert second.poll() is None


def test_the_last_look_asks_without_waiting(room: RankRoom) -> None:
    for rank in range(3):
        room.start(STUCK, rank=rank)
    for rank in range(3):
        room.wait_armed(rank)
    began = time.monotonic()
    starts = armed.signal_armed(room.events, str(room.folder))
    took_s = time.monotonic() - began
    assert starts == {0: 0, 1: 0, 2: 0}
    assert took_s < 0.5
    wait_for(
        lambda: all("most recent call first" in armed.read_stack(str(room.folder), *one) for one in starts.items())
    )


@pytest.mark.usefixtures("without_pyspy")
def test_only_the_ranks_that_are_asked_for_and_run_are_told(room: RankRoom) -> None:
    for rank in range(3):
        room.start(STUCK, rank=rank, hook=False)
    room.started[2].kill()
    room.started[2].wait()
    assert [told["rank"] for told in look(room)] == [0, 1]
    assert [told["rank"] for told in look(room, ranks=[1, 2])] == [1]


@pytest.mark.usefixtures("without_pyspy")
def test_a_stopped_rank_costs_the_others_nothing(room: RankRoom) -> None:
    for rank in range(2):
        room.start(STUCK, rank=rank)
        room.wait_armed(rank)
        room.wait_here(rank)
    assert "wait_for_ever" in functions(look(room, ranks=[1])[0])
    room.started[0].send_signal(signal.SIGSTOP)
    wait_for(lambda: stacks.state_of(room.started[0].pid) == "T")
    stuck, well = look(room)
    assert (stuck["how"], stuck["state"], well["how"]) == ("proc", "T", "signal")
    assert stuck["why"].endswith("it did not answer the signal of the rank hook")


@pytest.mark.usefixtures("without_pyspy")
def test_the_python_below_a_shell_is_the_rank(room: RankRoom) -> None:
    process = room.start("/bin/sh", "-c", f"{sys.executable} -c '{STUCK}'; true")
    room.wait_armed()
    mark = armed.read_mark(str(room.folder), 0)
    assert mark is not None
    assert mark.pid != process.pid == processes.line_of(mark.pid)[1]
    assert pyspy.find_python(process.pid) == mark.pid
    wait_for(lambda: "wait_for_ever" in functions(look(room)[0]))
    os.kill(mark.pid, signal.SIGKILL)


def test_py_spy_needs_no_hook(room: RankRoom, tool: Path) -> None:
    put_in(room, tool)
    process = room.start(STUCK, hook=False)
    wait_for(lambda: "wait_for_ever" in functions(look(room)[0]))
    (told,) = look(room)
    assert (told["how"], told["why"], told["pid"]) == ("py-spy", "", process.pid)
    assert functions(told)[0] == "wait_for_ever"


def test_secrets_of_a_command_line_are_not_in_a_stack(room: RankRoom, tool: Path) -> None:
    put_in(room, tool)
    room.start(sys.executable, "-c", STUCK, "--api-key", "hunter2\nhunter3", "--token=hunter4", hook=False)
    wait_for(lambda: "wait_for_ever" in functions(look(room)[0]))
    (told,) = look(room)
    assert told["how"] == "py-spy"
    assert "hunter" not in told["text"]
    assert "Process" in told["text"].splitlines()[0]


def test_py_spy_gives_native_frames(room: RankRoom, tool: Path) -> None:
    put_in(room, tool)
    room.start(STUCK, hook=False)
    wait_for(lambda: "wait_for_ever" in functions(look(room)[0]))
    (told,) = look(room, native=True)
    assert told["how"] == "py-spy"
    assert any(name in told["text"] for name in ("acquire_lock", "libc.so", "sem_"))


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("#!/bin/sh\necho 'Error: Permission Denied: Try running again' >&2; exit 1\n", "the system keeps py-spy out"),
        ("#!/bin/sh\nexec sleep 60\n", "py-spy gave no answer within"),
        ("#!/bin/sh\necho 'Error: Failed to copy' >&2; exit 3\n", "py-spy ended with 3: Error: Failed to copy"),
    ],
    ids=["forbidden", "hangs", "fails"],
)
def test_where_py_spy_fails_the_hook_answers_and_the_reason_is_told(
    room: RankRoom, monkeypatch: pytest.MonkeyPatch, program: str, why: str
) -> None:
    monkeypatch.setattr(pyspy, "LIMIT_S", 1.0)
    (room.folder / "bin").mkdir()
    script = room.folder / "bin" / "py-spy"
    script.write_text(program)
    script.chmod(0o755)
    monkeypatch.setattr(pyspy, "find_pyspy", lambda *_: str(script))
    room.start(STUCK)
    room.wait_armed()
    (told,) = look(room)
    assert told["how"] == "signal"
    assert told["why"].startswith(why)


def test_py_spy_is_found_beside_the_interpreter_then_on_the_path_then_in_the_run_folder(
    room: RankRoom, tmp_path: Path
) -> None:
    places = [tmp_path / name for name in ("venv", "path")]
    for place in places:
        place.mkdir()
    (places[0] / "python").symlink_to(sys.executable)
    process = room.start(str(places[0] / "python"), "-c", STUCK, hook=False, PATH=f"{places[1]}:/usr/bin:/bin")
    expected = [room.folder / "bin", places[1], places[0]]
    for place in expected:
        place.mkdir(exist_ok=True)
        (place / "py-spy").write_text("#!/bin/sh\n")
        assert pyspy.find_pyspy(str(room.folder), process.pid) != str(place / "py-spy")
        (place / "py-spy").chmod(0o755)
        assert pyspy.find_pyspy(str(room.folder), process.pid) == str(place / "py-spy")


def ask_program(request: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    out, err = os.dup(1), os.dup(2)
    wire = Wire("n")
    try:
        stacks.main(request, wire, {})
    finally:
        os.close(wire.out)
        os.dup2(out, 1)
        os.dup2(err, 2)
    answer: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[1])
    return answer


def test_the_program_answers_as_the_order_does(room: RankRoom, capfd: pytest.CaptureFixture[str]) -> None:
    room.start(STUCK)
    room.wait_armed()
    answer = ask_program({"run_folder": str(room.folder)}, capfd)
    assert [told["rank"] for told in answer["ranks"]] == [0]
    assert answer["machine"] == os.uname().machine
    assert ask_program({"run_folder": str(room.folder / "none")}, capfd) == {"found": False}
