"""A command as the agent of a node, under the real supervisor: where its output goes, which ranks are seen, what ends it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from live_node import SLEEP, LiveNode
from ranks_alone import wait_for

from orchestrator.node import report, runfolder

SHELL = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
TAKES = """
import signal, time
def told(number, _):
    print("got", number, flush=True)
signal.signal(signal.SIGUSR1, told)
signal.signal(signal.SIGTERM, lambda *_: exit(0))
print("step 3 of 9", flush=True)
while True:
    time.sleep(60)
"""


def command(*argv: str, **more: Any) -> dict[str, Any]:
    return {"argv": list(argv), "is_command": True, "agent": "command", "first_rank": 2, "world_size": 4, **more}


def test_a_command_without_ranks_stands_for_the_first_of_its_node(tmp_path: Path) -> None:
    words = command(sys.executable, "-u", "-c", TAKES)
    with LiveNode(tmp_path, "", "", **words) as node:
        node.send("go")
        agent = node.wait(lambda: node.event("agent"))
        assert agent["stands_for"] == 2
        (out,) = node.wait(lambda: list(node.folder.glob("ranks/*_command/attempt_0/0/stdout.log")))
        node.wait(lambda: b"step 3" in out.read_bytes())
        told = report.build_report(str(node.folder), gpus=False)
        assert told["state"] == "running"
        (rank,) = told["ranks"]
        assert (rank["rank"], rank["pid"], rank["state"], rank["step"]) == (2, agent["pid"], "running", 3)
        node.send("signal", id=1, signal=int(signal.SIGUSR1))
        assert node.wait(lambda: node.event("signalled"))["ranks"] == [2]
        node.wait(lambda: b"got 10" in out.read_bytes())
        logs = node.wait(lambda: [frame.header["f"] for frame in node.frames if frame.header.get("t") == "log"])
        assert set(logs) == {"0.out"}
        node.send("stop", grace_s=20.0, reason="kill", state="killed")
        assert node.wait(lambda: node.event("final"))["survivors"] == []
        assert node.event("agent_exit")["code"] == 0
        assert not any(frame.header.get("ev") == "rank" for frame in node.frames)
        (rank,) = report.build_report(str(node.folder), gpus=False)["ranks"]
        assert (rank["state"], rank["code"]) == ("exited", 0)


def test_a_stop_is_told_once_also_below_a_shell_that_dies_of_it(tmp_path: Path) -> None:
    saves = """
import signal, time
def told(number, _):
    signal.signal(number, signal.SIG_DFL)  # the second one would end it
    print("saving", flush=True)
    time.sleep(4)
    print("saved", flush=True)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, told)
print("step 3 of 9", flush=True)
time.sleep(600)
"""
    words = command("sh", "-c", '"$0" -u -c "$1"; true', sys.executable, saves)
    with LiveNode(tmp_path, "", **words) as node:
        node.send("go")
        (out,) = node.wait(lambda: list(node.folder.glob("ranks/*/*/0/stdout.log")))
        node.wait(lambda: b"step 3" in out.read_bytes())
        node.send("stop", grace_s=60.0, reason="kill", state="killed")
        final = node.wait(lambda: node.event("final"), 30)
        assert (final["killed"], final["survivors"]) == (0, [])
        assert out.read_bytes().endswith(b"saving\nsaved\n")


def test_a_signal_goes_past_a_shell_that_would_only_die_of_it(tmp_path: Path) -> None:
    words = command("sh", "-c", '"$0" -u -c "$1"; true', sys.executable, TAKES)
    with LiveNode(tmp_path, "", **words) as node:
        node.send("go")
        (out,) = node.wait(lambda: list(node.folder.glob("ranks/*_command/attempt_0/0/stdout.log")))
        node.wait(lambda: b"step 3" in out.read_bytes())
        node.send("signal", id=1, signal=int(signal.SIGUSR1))
        node.wait(lambda: b"got 10" in out.read_bytes())
        assert not any(frame.header.get("ev") == "agent_exit" for frame in node.frames)
        node.send("stop", grace_s=20.0, reason="kill", state="killed")
        assert node.wait(lambda: node.event("final"))["survivors"] == []


def test_the_topmost_processes_that_carry_a_planned_rank_are_watched(tmp_path: Path) -> None:
    start = """
import os, subprocess, sys, time
def rank(number, text, **more):
    env = {**os.environ, "RANK": str(number), "LOCAL_RANK": str(number % 2), "WORLD_SIZE": "4", **more}
    return subprocess.Popen([sys.executable, "-c", text], env=env)
below = "import subprocess, sys; subprocess.call([sys.executable, '-c', 'import time; time.sleep(600)'])"
others = [rank(0, SLEEP), rank(3, SLEEP, WORLD_SIZE="8")]
mine = [rank(2, below), rank(3, "import time; time.sleep(1.5); raise SystemExit(9)")]
time.sleep(3)
sys.exit(1)
""".replace("SLEEP", repr(SLEEP))
    words = command(sys.executable, "-c", SHELL, start)
    with LiveNode(tmp_path, "", "", **words) as node:
        node.send("go")
        node.wait(lambda: node.event("final"))
        ranks = [frame.header for frame in node.frames if frame.header.get("ev") == "rank"]
        assert sorted(rank["rank"] for rank in ranks) == [2, 3]
        ended = [frame.header for frame in node.frames if frame.header.get("ev") == "rank_exit"]
        assert [(one["code"], one["after_stop"]) for one in ended if one["rank"] == 3] == [(9, False)]
        assert node.event("final")["survivors"] == []


def test_a_command_that_says_it_is_a_rank_is_one(tmp_path: Path) -> None:
    env = ("env", "RANK=2", "LOCAL_RANK=0", "WORLD_SIZE=4")
    words = command(*env, sys.executable, "-c", "import time; time.sleep(1); raise SystemExit(6)")
    with LiveNode(tmp_path, "", **words) as node:
        node.send("go")
        node.wait(lambda: node.event("final"))
        assert node.event("rank")["pid"] == node.event("agent")["pid"]
        assert node.event("rank_exit")["code"] == 6
        assert node.event("agent_exit")["code"] == 6


def test_a_word_that_is_no_program_is_told(tmp_path: Path) -> None:
    with LiveNode(tmp_path, "", **command("./no-such-program")) as node:
        node.send("go")
        wait_for(lambda: (runfolder.read_status(str(node.folder)) or {}).get("state") == "failed")
        status = runfolder.read_status(str(node.folder)) or {}
        assert "./no-such-program" in status["reason"]


def test_the_only_process_of_accelerate_takes_the_signal_itself(tmp_path: Path) -> None:
    words = command(sys.executable, "-u", "-c", SHELL, TAKES, agent="accelerate")
    with LiveNode(tmp_path, "", **words) as node:
        node.send("go")
        (out,) = node.wait(lambda: list(node.folder.glob("ranks/*/*/0/stdout.log")))
        node.wait(lambda: b"step 3" in out.read_bytes())
        node.send("signal", id=1, signal=int(signal.SIGUSR1))
        wait_for(lambda: b"got 10" in out.read_bytes())
