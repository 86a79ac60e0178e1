from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks_alone import STUCK, RankRoom, wait_for

from orchestrator.node import agent, armed, rank_hook

FAILS = "def train():\n    raise ValueError('loss is \\u221e')\ntrain()"


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RankRoom]:
    with RankRoom(tmp_path) as room:
        yield room


def run(room: RankRoom, program: str, *, hook: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", program]
    return subprocess.run(words, env=room.env(hook=hook, **more), capture_output=True, text=True, timeout=60)


def read_error(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text())["message"]
    return found


@pytest.mark.parametrize("words", ["1 2 3", "\u00b2 1 60 3", "7 1 0 3", "7 1 900 3", "1 1 60 3", "a b c d", ""])
def test_a_mark_that_is_none_arms_nobody(tmp_path: Path, words: str) -> None:
    path = Path(armed.rank_path(str(tmp_path), 0, "armed"))
    path.parent.mkdir(parents=True)
    path.write_text(words)
    assert armed.read_mark(str(tmp_path), 0) is None
    path.write_text("7 1 60 3")
    assert armed.read_mark(str(tmp_path), 0) == armed.Mark(7, 1, 60, 3)


def test_what_ends_a_rank_is_written_as_record_writes_it(room: RankRoom, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    before = int(time.time())
    ended = run(room, FAILS, TORCHELASTIC_ERROR_FILE=str(path))
    plain = run(room, FAILS, hook=False)
    assert (ended.returncode, ended.stderr) == (plain.returncode, plain.stderr)
    found = read_error(path)
    assert found["message"] == "ValueError: loss is \u221e"
    extra = found["extraInfo"]
    assert isinstance(extra, dict)
    assert extra["py_callstack"].splitlines()[-1] == "ValueError: loss is \u221e"
    assert ", in train" in extra["py_callstack"]
    assert before <= int(extra["timestamp"]) <= time.time()


def test_what_record_has_written_stays(room: RankRoom, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text("better")
    run(room, FAILS, TORCHELASTIC_ERROR_FILE=str(path))
    assert path.read_text() == "better"
    path.write_text("")
    run(room, FAILS, TORCHELASTIC_ERROR_FILE=str(path))
    assert read_error(path)["message"] == "ValueError: loss is \u221e"


@pytest.mark.parametrize("program", ["raise SystemExit(3)", "raise KeyboardInterrupt", "import os; os._exit(0)"])
def test_an_end_that_is_no_error_writes_none(room: RankRoom, tmp_path: Path, program: str) -> None:
    ended = run(room, program, TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"))
    assert ended.returncode == run(room, program, hook=False).returncode
    assert not (tmp_path / "error.json").exists()


def test_a_hook_of_the_programs_own_is_called_as_well(room: RankRoom, tmp_path: Path) -> None:
    own = "import sys\nlast = sys.excepthook\ndef mine(*told):\n    print('mine'); last(*told)\nsys.excepthook = mine\n"
    ended = run(room, own + FAILS, TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"))
    assert ended.stdout == "mine\n"
    assert (tmp_path / "error.json").exists()


@pytest.mark.parametrize("missing", ["RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"])
def test_no_rank_is_left_alone(room: RankRoom, missing: str) -> None:
    env = {name: value for name, value in room.env().items() if name != missing}
    told = "import sys, os; print(sys.excepthook is sys.__excepthook__, 'AORTA_RANK_HOOK' in os.environ)"
    ended = subprocess.run([sys.executable, "-c", told], env=env, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("True False\n", "")
    assert not (room.folder / "diagnosis" / "stacks").exists()


def test_children_of_a_rank_are_left_alone(room: RankRoom, tmp_path: Path) -> None:
    program = f"""
import os, subprocess, sys
child = subprocess.run([sys.executable, "-c", {FAILS!r}], stderr=subprocess.DEVNULL)
assert child.returncode == 1
if not os.fork():
    sys.stderr = open(os.devnull, "w")
    raise OSError("in a fork")
os.wait()
print(open("/proc/self/stat").read().split()[0])
"""
    path = tmp_path / "error.json"
    ended = run(room, program, TORCHELASTIC_ERROR_FILE=str(path))
    mark = armed.read_mark(str(room.folder), 0)
    assert mark is not None
    assert (ended.stdout, ended.stderr) == (f"{mark.pid}\n", "")
    assert not path.exists()


def test_a_rank_that_replaces_itself_is_armed_anew(room: RankRoom) -> None:
    process = room.start(f"import os, sys\nos.execv(sys.executable, [sys.executable, '-c', {STUCK!r}])")
    command = Path(f"/proc/{process.pid}/cmdline")
    wait_for(lambda: command.read_bytes().split(b"\0")[2:3] == [STUCK.encode()])
    room.wait_armed()


def test_the_sitecustomize_that_it_hides_runs(room: RankRoom, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys\nsys.seen = (__name__, __file__)\nword = 'mine'\n")
    env = rank_hook.put_in_front({**room.env(hook=False), "PYTHONPATH": str(tmp_path / "own")}, str(room.folder))
    told = "import sys, sitecustomize; print(sitecustomize.word, *sys.seen, sitecustomize.__file__)"
    for extra in ({}, {"RANK": ""}):
        ended = subprocess.run(
            [sys.executable, "-c", told], env={**env, **extra}, capture_output=True, text=True, timeout=60
        )
        place = tmp_path / "own" / "sitecustomize.py"
        assert (ended.stdout, ended.stderr) == (f"mine sitecustomize {place} {place}\n", "")


def test_one_that_fails_fails_as_it_would_alone(room: RankRoom, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("raise RuntimeError('mine')\n")
    alone = {**room.env(hook=False), "PYTHONPATH": str(tmp_path / "own")}
    both = rank_hook.put_in_front(alone, str(room.folder))
    words = [sys.executable, "-c", "print('runs')"]
    first, second = (
        subprocess.run(words, env=env, capture_output=True, text=True, timeout=60) for env in (alone, both)
    )
    assert (first.returncode, first.stdout, first.stderr) == (second.returncode, second.stdout, second.stderr)
    assert "RuntimeError: mine" in first.stderr


@pytest.mark.parametrize("harm", ["file", "gone", "rank"])
def test_whatever_goes_wrong_in_it_the_rank_runs(room: RankRoom, harm: str) -> None:
    env = room.env()
    if harm == "file":
        (room.folder / "diagnosis" / "stacks").write_text("in the way")
    if harm == "gone":
        env["PYTHONPATH"] = str(room.folder / "none")
    if harm == "rank":
        env["RANK"] = "first"
    words = [sys.executable, "-c", "import os; print(sum(range(10)))"]
    ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "45\n", "")


def test_a_signal_that_is_somebody_elses_already_stays_so(room: RankRoom, tmp_path: Path) -> None:
    inner = f"import signal\nprint(signal.getsignal(signal.SIGRTMAX - 4) == signal.SIG_IGN)\n{FAILS}"
    env = {**room.env(), "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")}
    outer = f"""
import os, signal, sys
signal.signal(signal.SIGRTMAX - 4, signal.SIG_IGN)
os.execve(sys.executable, [sys.executable, "-c", {inner!r}], {env!r})
"""
    assert run(room, outer, hook=False).stdout == "True\n"
    assert armed.read_mark(str(room.folder), 0) is None
    assert (tmp_path / "error.json").exists()


def test_the_agents_environment_leads_to_it(room: RankRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(room.folder)
    monkeypatch.setenv("PYTHONPATH", "/mine")
    order: dict[str, Any] = {"cleared": [], "env": {}}
    hook = str(room.folder / "hook")
    assert agent.environment_of({**order, "rank_hook": True})["PYTHONPATH"] == f"{hook}:/mine"
    assert agent.environment_of(order)["PYTHONPATH"] == "/mine"
    assert agent.environment_of({**order, "env": {"PYTHONPATH": ""}, "rank_hook": True})["PYTHONPATH"] == hook


def test_it_costs_a_start_next_to_nothing(room: RankRoom) -> None:
    def took_s(env: dict[str, str]) -> float:
        pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "pass"], env)
        used = os.wait4(pid, 0)[2]
        return used.ru_utime + used.ru_stime

    env, plain = {**room.env(), "PYTHONDONTWRITEBYTECODE": ""}, room.env(hook=False)
    took_s(env)
    took = [(took_s(env), took_s(plain)) for _ in range(6)]
    with_it, without = (min(times) for times in zip(*took, strict=True))
    # 1 ms of processor time was measured.
    assert with_it - without < 0.02


def test_it_is_written_from_what_travelled_to_the_node(room: RankRoom) -> None:
    place = room.folder / "program" / "orchestrator" / "node"
    place.mkdir(parents=True)
    (place / "rank_hook_site.py").write_text("travelled = True\n")
    hook = rank_hook.install(str(room.folder))
    assert (Path(hook) / "sitecustomize.py").read_text() == "travelled = True\n"
    (room.folder / "hook" / "sitecustomize.py").unlink()
    (room.folder / "hook").rmdir()
    (room.folder / "hook").write_text("in the way")
    assert rank_hook.put_in_front({"A": "1"}, str(room.folder)) == {"A": "1"}


def test_it_is_readable_for_old_pythons() -> None:
    source = Path(rank_hook.__file__).with_name(rank_hook.SOURCE).read_text()
    ast.parse(source, feature_version=(3, 9))
