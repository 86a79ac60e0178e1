"""One command on every node: folded where equal, told where not, and nothing of it left, however the call ends."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Completed, wait_for
from conftest import FreshCluster
from scenes import Scene

HOSTILE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, env={})
stopped = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", deaf], {})
    os._exit(0)
time.sleep(0.3)
os.kill(stopped.pid, signal.SIGSTOP)
print("all are out", flush=True)
time.sleep(600)
"""
TREE = 4
"""Processes of HOSTILE on a node that sleep for 600 s."""


def run(scene: Scene, *words: str, timeout_s: float = 60) -> Completed:
    """Run `exec` to its end."""
    return scene.verb("exec", "--nodes", str(scene.nodes), *words, timeout_s=timeout_s)


def document(done: Completed) -> dict[str, Any]:
    """The one JSON document of a call."""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_nodes_that_answer_the_same_are_one_block(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    first, second, third = (nodes3.address(k) for k in nodes3.numbers)
    line = f'echo same; case "$SSH_CONNECTION" in *" {second} "*) echo odd >&2; exit 3;; esac'
    done = run(scene, "--", line)
    print(f"exec on 3 nodes: {done.seconds:.2f} s")
    assert done.exit_code == 1, done
    assert done.stderr == "", done
    assert done.stdout == (
        f"{first},{third} (2 nodes): exit code 0\nsame\n{second} (1 node): exit code 3\nsame\nstderr:\nodd\n"
    )
    assert done.stderr == ""
    assert done.seconds < 20

    alone = run(scene, "--include", first, "--", "true")
    assert (alone.exit_code, alone.stdout) == (0, f"{first} (1 node): exit code 0\n"), alone

    killed = run(scene, "--", "kill -9 $$")
    assert (killed.exit_code, killed.stdout) == (1, f"{first},{second},{third} (3 nodes): ended by SIGKILL\n"), killed

    missing = document(run(scene, "--json", "--", "no-such-program", "x"))
    assert [node["not_started"] for node in missing["nodes"]] == ["No such file or directory"] * 3
    assert missing["exit_code"] == 1


def test_words_arrive_byte_for_byte_and_one_word_is_a_line_for_a_shell(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    words = [
        "",
        "a b",
        "'",
        '"',
        "$HOME",
        "$(id)",
        "`id`",
        ";ls",
        "&&",
        "|",
        "*",
        "new\nline\n",
        "\\",
        "--json",
        "-v",
        "--",
    ]
    words += [os.fsdecode(b"\xff\xfe caf\xe9"), "\u65e5", "\x1b[31m"]
    done = run(scene, "--json", "--", "printf", "%s\\0", *words)
    assert done.exit_code == 0, done
    expected = b"".join(os.fsencode(word) + b"\0" for word in words)
    for node in document(done)["nodes"]:
        assert base64.b64decode(node["stdout_base64"]) == expected
        assert node["exit_code"] == 0

    shell = run(scene, "--include", nodes3.address(1), "--", 'x="a  b"; echo "$x" | tr a c; cat; echo $((1+1)); pwd')
    assert shell.stdout.splitlines()[1:] == ["c  b", "2", nodes3.exec(1, ["pwd"]).stdout.strip()], shell

    painted = run(scene, "--include", nodes3.address(1), "printf", "\\033[31mred\\033[0m\\033]0;title\\007\\377\\n")
    assert painted.stdout.splitlines()[1:] == ["red\\xff"], painted


@pytest.mark.long
def test_output_is_bounded_and_the_gap_is_told(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    flood = "echo first; head -c 20000000 /dev/zero | tr '\\0' x; echo; echo last; echo warned >&2"
    done = run(scene, "--json", "--", flood)
    assert done.exit_code == 0, done
    total = len("first\n") + 20_000_000 + len("\nlast\n")
    for node in document(done)["nodes"]:
        assert len(node["stdout"]) == 1 << 20
        assert node["stdout_left_out"] == total - (1 << 20)
        assert node["stdout"].startswith("first\nxxx")
        assert node["stdout"].endswith("xxx\nlast\n")
        assert (node["stderr"], node["stderr_left_out"]) == ("warned\n", 0)
    shown = run(scene, "--", flood)
    assert shown.stdout.count(f"… {total - (1 << 20):,} bytes left out …") == 1
    assert len(shown.stdout) < 1.1 * (1 << 20), "three equal ones are one"


def test_a_node_that_is_not_reached_does_not_keep_the_others(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    with scene.nodes.open("a") as file:
        file.write(f"{nodes3.address(1)}:1 user=nobody\n")
    done = run(scene, "--", "echo here; exit 1")
    assert done.exit_code == 3, done
    assert "(3 nodes): exit code 1\nhere\n" in done.stdout
    assert f"error: {nodes3.address(1)}:1: " in done.stderr
    told = document(run(scene, "--json", "--", "echo here; exit 1"))
    assert told["exit_code"] == 3
    assert ["error" in node for node in told["nodes"]] == [False, False, False, True]


@pytest.mark.long
def test_a_limit_ends_the_command_and_what_it_leaves_behind_ends_with_it(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    done = run(scene, "--timeout", "1s", "--", "echo begun; sleep 500")
    assert done.exit_code == 1, done
    assert "(3 nodes): timed out after " in done.stdout
    assert "ended by SIGTERM\nbegun\n" in done.stdout
    scene.wait_empty(1)

    left = run(scene, "--", "setsid sleep 500 & nohup sleep 500 & echo begun")
    assert left.exit_code == 0, left
    assert "exit code 0 · 2 processes left in the background, ended too\nbegun\n" in left.stdout
    scene.wait_empty(1)
    assert left.seconds < 20


@pytest.mark.parametrize("how", ["ctrl-c", pytest.param("term", marks=pytest.mark.long), "kill -9"])
def test_nothing_is_left_when_the_call_is_ended(nodes3: Cluster, tmp_path: Path, how: str) -> None:
    scene = Scene(nodes3, tmp_path)
    launcher = scene.start("exec", "--", "python3", "-c", HOSTILE)
    for k in nodes3.numbers:
        scene.wait_for_pids(k, "time.sleep(600)", TREE)
    begin = time.monotonic()
    if how == "kill -9":
        launcher.kill()
    elif how == "term":
        launcher.send_signal(signal.SIGTERM)
    else:
        launcher.press_ctrl_c()
    scene.wait_empty(20)
    empty_s = time.monotonic() - begin
    print(f"{how}: nodes empty after {empty_s:.2f} s (grace 2 s)")
    assert empty_s < 8
    done = launcher.wait(20)
    if how != "kill -9":
        assert done.exit_code == (130 if how == "ctrl-c" else 143), done
        assert "(3 nodes): stopped · ended by SIGKILL\nall are out\n" in done.stdout
        assert "Traceback" not in done.stderr


@pytest.mark.long
def test_ctrl_c_before_the_nodes_answer_is_no_traceback(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    launcher = scene.start("exec", "--", "sleep 500")
    wait_for(lambda: any(nodes3.process_table(k) - scene.before[k] for k in nodes3.numbers), 60, "it connects")
    launcher.press_ctrl_c()
    scene.wait_empty(20)
    done = launcher.wait(20)
    assert done.exit_code == 130, done
    assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.namespaces
def test_a_cut_link_is_told_and_the_node_ends_the_command_itself(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(2)
    scene = Scene(cluster, tmp_path)
    launcher = scene.start("exec", "--", "sleep 500", env={"AORTA_LAUNCH_LOST_AFTER_S": "15"})
    for k in cluster.numbers:
        scene.wait_for_pids(k, "sleep 500", 1)
    begin = time.monotonic()
    cluster.drop(2)
    wait_for(lambda: not scene.pids(2, "sleep 500"), 60, "node 2 has ended the command")
    print(f"ended by the node that was cut off after {time.monotonic() - begin:.1f} s of silence")
    cluster.kill_process(1, scene.pids(1, "sleep 500")[0])
    done = launcher.wait(60)
    assert done.exit_code == 4, done
    assert f"error: {cluster.address(2)}: the node has been silent" in done.stderr
    assert f"{cluster.address(1)} (1 node): ended by SIGKILL" in done.stdout
