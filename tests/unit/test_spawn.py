"""Commands are started without the module subprocess, and what a node is asked costs no dear imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node import probe, processes, spawn
from orchestrator.node.probe_command import find_program, list_names
from orchestrator.node.record import record
from orchestrator.transport.cargo import list_needed

DEAR = {
    "re",
    "json",
    "typing",
    "subprocess",
    "threading",
    "socket",
    "collections",
    "ctypes",
    "enum",
    "contextlib",
    "ast",
}


def count_handles() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("way", ["fork_exec", "subprocess", "a Python to come"])
def test_a_command_is_started_and_heard(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way == "subprocess":
        monkeypatch.setattr(spawn, "_find_fork_exec", lambda: None)
    elif way != "fork_exec":
        monkeypatch.setattr(spawn, "_words", lambda *_: ())
    handles = count_handles()
    text = b"x" * 300000
    words = ["sh", "-c", 'cat; pwd >&2; echo "$A" "$(ps -o sid= -p $$ | tr -d " ")" $$ >&2; exit 3']
    child = spawn.Child(words, {"A": "a b", "PATH": os.environ["PATH"]}, "/usr", fed=True)
    out, err, code = child.converse(text, time.monotonic() + 20, 1 << 20)
    assert (out, code) == (text, 3)
    folder, said = err.decode().splitlines()
    assert folder == "/usr"
    assert said.split() == ["a", "b", str(child.pid), str(child.pid)]
    assert count_handles() == handles


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(
    ("words", "cwd", "kind"),
    [
        ("/no/such/program", "/", FileNotFoundError),
        ("no-such-program", "/", FileNotFoundError),
        ("/etc/passwd", "/", PermissionError),
        ("/bin/true", "/no/such/folder", FileNotFoundError),
    ],
)
def test_what_cannot_be_started_says_why(
    monkeypatch: pytest.MonkeyPatch, words: str, cwd: str, kind: type[OSError], *, slow: bool
) -> None:
    if slow:
        monkeypatch.setattr(spawn, "_find_fork_exec", lambda: None)
    handles = count_handles()
    with pytest.raises(kind):
        spawn.Child([words], None, cwd)
    assert count_handles() == handles


def test_a_command_without_end_is_given_up() -> None:
    child = spawn.Child(["yes"])
    with pytest.raises(OverflowError):
        child.converse(b"", time.monotonic() + 20, 1 << 20)
    child.end()
    assert processes.read_process(child.pid) is None


def test_one_that_closes_its_outputs_and_stays_costs_the_limit() -> None:
    child = spawn.Child(["sh", "-c", "exec sleep 60 >/dev/null 2>&1"])
    with pytest.raises(TimeoutError):
        child.converse(b"", time.monotonic() + 0.3, 1 << 20)
    child.end()
    assert processes.read_process(child.pid) is None


def test_named_tuples_are_what_typing_makes() -> None:
    kind = record("Point", "x", "y")
    point = kind(1, y=2)
    assert (point.x, point.y, tuple(point), repr(point)) == (1, 2, (1, 2), "Point(x=1, y=2)")
    assert point._replace(x=5) == (5, 2)
    for values, named in (((1,), {}), ((1, 2, 3), {}), ((1, 2), {"z": 1})):
        with pytest.raises((TypeError, KeyError)):
            kind(*values, **named)


def test_programs_and_names(tmp_path: Path) -> None:
    for name, mode in (("one", 0o755), ("two", 0o644), (".three", 0o755)):
        (tmp_path / name).touch(mode)
    (tmp_path / "folder").mkdir()
    path = f"/no/such:{tmp_path}"
    assert find_program("one", path) == str(tmp_path / "one")
    assert [find_program(name, path) for name in ("two", "folder", "none", "./one")] == ["", "", "", ""]
    assert find_program("one", "") == ""
    assert sorted(list_names(str(tmp_path))) == ["folder", "one", "two"]
    assert list_names(str(tmp_path), "o", "ne") == ["one"]
    assert list_names(str(tmp_path / "none")) == []


def test_a_group_that_hangs_costs_itself_alone() -> None:
    hang: Any = ("hangs", lambda _: time.sleep(5), 0.4)
    quick: Any = tuple((f"quick{k}", lambda _: {"a": {"b": 1}}, 5.0) for k in range(4))
    groups = [probe.Group(*words) for words in (hang, *quick, hang, *quick, hang)]
    began = time.monotonic()
    probe.Crew(groups, {}).wait()
    assert time.monotonic() - began < 3.0
    assert [group.trouble for group in groups if group.name == "hangs"] == ["no answer within 0.4 s"] * 3
    assert all(group.facts == {"a": {"b": 1}} for group in groups if group.name != "hangs")


def test_a_group_that_breaks_says_how() -> None:
    empty: dict[str, Any] = {}
    (group,) = groups = [probe.Group("odd", lambda _: empty[""], 5.0)]
    probe.Crew(groups, {}).wait()
    assert group.trouble == "KeyError: ''"


def test_a_probe_imports_nothing_dear(tmp_path: Path) -> None:
    folder = Path(spawn.__file__).parent
    room = tmp_path / "orchestrator" / "node"
    room.mkdir(parents=True)
    for name in list_needed("probe"):
        (room / f"{name}.py").symlink_to(folder / f"{name}.py")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); before = set(sys.modules)\n"
        "from orchestrator.node import probe\n"
        "loaded = set(sys.modules) - before\n"
        "groups = [probe.Group(*words) for words in probe.GROUPS if words[0] not in ('gpus', 'health', 'rdma', 'python')]\n"
        "probe.Crew(groups, {'routes': ['127.0.0.1'], 'script': 'train.py --lr 1'}).wait()\n"
        "import json; print(json.dumps([sorted(loaded), [group.trouble for group in groups]]))"
    )
    words = [sys.executable, "-I", "-S", "-B", "-c", code, str(tmp_path)]
    loaded, troubles = json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)
    assert not DEAR & set(loaded)
    assert not any(troubles)
