from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.node import processes, ranks

A_RANK = {**os.environ, "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("python", ["new", "without pidfd"])
def test_a_signal_reaches_that_very_process_whatever_this_python_lacks(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    if python != "new":
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.delattr("_signal.pidfd_send_signal")
    found = processes.read_process(sleeper.pid)
    assert found is not None
    assert not processes.send_signal(found._replace(ticks=found.ticks + 1), signal.SIGTERM)
    assert processes.send_signal(found, signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        processes.open_handle(sleeper.pid)


KEEPS_STATUS = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (6, 15)
"""Whether this kernel tells how a process ended after its parent has asked."""


@pytest.mark.parametrize(
    ("words", "ending"),
    [
        (["sh", "-c", "exit 7"], {"code": 7, "signal": None}),
        (["sh", "-c", "kill -9 $$"], {"code": None, "signal": signal.SIGKILL}),
    ],
)
@pytest.mark.parametrize("reaped", [False, True])
def test_how_a_rank_ended_is_known_also_when_its_agent_was_faster_than_we(
    words: list[str], ending: dict[str, int | None], *, reaped: bool
) -> None:
    watch = ranks.RankWatch()
    with subprocess.Popen(
        ["sh", "-c", "read go; exec " + shlex.join(words)], stdin=subprocess.PIPE, env=A_RANK
    ) as child:
        deadline = time.monotonic() + 10
        while not watch.find([child.pid]):
            assert time.monotonic() < deadline
        (handle,) = watch.handles
        assert child.stdin is not None
        child.stdin.close()
        if reaped:
            child.wait(10)
        assert processes.wait_end(handle, 10)
        event = watch.ended(handle)
    assert event["rank"] == 3
    unknown = {"code": None, "signal": None}
    assert {name: event[name] for name in unknown} == (ending if KEEPS_STATUS or not reaped else unknown)


def test_a_child_with_nonsense_for_a_rank_is_no_rank() -> None:
    env = {"RANK": "first", "LOCAL_RANK": "x", "WORLD_SIZE": ""}
    words = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        watch = ranks.RankWatch()
        assert watch.find(processes.children(os.getpid())) == []
        assert watch.seen == 0
        child.kill()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["t.py", "--api-key=abc", "--tokenizer", "gpt2"], "t.py --api-key=*** --tokenizer gpt2"),
        (["t.py", "--hf-token", "abc", "--lr", "1"], "t.py --hf-token *** --lr 1"),
        (["env", "WANDB_API_KEY=abc", "A=b"], "env WANDB_API_KEY=*** A=b"),
        (
            ["curl", "-H", "Authorization: Bearer abc", "https://me:abc@h/x"],
            "curl -H Authorization: Bearer *** https://***@h/x",
        ),
    ],
)
def test_commands_are_shown_and_saved_without_what_may_be_a_secret(words: list[str], shown: str) -> None:
    assert processes.hide_secrets(words) == shown


def test_an_end_is_the_end_of_all_threads() -> None:
    # The leader is a zombie in /proc as soon as it has ended, and cannot be waited for before the others have.
    code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(1.0,)).start(); ctypes.CDLL(None).syscall(60, 0)"
    started = subprocess.Popen([sys.executable, "-c", code])
    handle = processes.open_handle(started.pid)
    end = time.monotonic() + 10
    while (found := processes.read_process(started.pid)) is not None and found.state != "Z":
        assert time.monotonic() < end
        time.sleep(0.005)
    assert started.poll() is None
    assert not processes.wait_end(handle, 0.0)
    assert processes.wait_end(handle, 10.0)
    assert started.poll() == 0
    os.close(handle)


def test_ranks_are_looked_for_once_their_folder_changes_or_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ranks.FOLDER).mkdir()
    os.utime(tmp_path / ranks.FOLDER, ns=(1, 1))
    watch = ranks.RankWatch()
    assert watch.may_be_there(100.0)
    assert not watch.may_be_there(100.0 + ranks.BLIND_S / 2)
    assert watch.may_be_there(100.0 + ranks.BLIND_S)
    (tmp_path / ranks.FOLDER / "run.a1_x").mkdir()
    assert watch.may_be_there(100.0 + 1.1 * ranks.BLIND_S)
