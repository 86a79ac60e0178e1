"""The push through the link to this machine: what arrives, and what it costs."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from push_room import WAYS, Room, choose_way, code_of

from orchestrator.errors import PushError
from orchestrator.phases.push import Pushed

ODD_NAMES = [
    b"new\nline",
    b"-rf",
    b"a b",
    b"caf\xe9",
    b"#x",
    b"q[1]*?",
    b"$(id)",
    b"\"'",
    b"\\n",
    "\U0001f600".encode(),
]


@pytest.fixture(params=WAYS)
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Room:
    choose_way(request.param, monkeypatch)
    return Room(tmp_path, monkeypatch)


def test_a_first_push_brings_everything_and_the_second_is_one_round_trip(room: Room) -> None:
    room.write("train.py", "print(1)").chmod(0o755)
    room.write("pkg/mod.py", "x = 1")
    (room.project / "empty").mkdir()
    (room.project / "latest").symlink_to("pkg/mod.py")
    a, b = room.link("a"), room.link("b")
    pushed = room.push(a, b)
    assert pushed.workdirs == (str(a.folder), str(b.folder))
    assert (pushed.files, pushed.folders_pushed) == (3, 2)
    for folder in (a.folder, b.folder):
        assert code_of(folder) == {b"train.py", b"pkg", b"pkg/mod.py", b"empty", b"latest"}
        assert os.access(folder / "train.py", os.X_OK)
        assert not os.access(folder / "pkg/mod.py", os.X_OK)
        assert str((folder / "latest").readlink()) == "pkg/mod.py"
    again = room.push(a, b)
    assert (room.copies, a.acts, b.acts) == ([], ["inspect", "keep"], ["inspect", "keep"])
    assert (again.tree_hash, again.folders_pushed) == (pushed.tree_hash, 0)


def test_odd_names_arrive(room: Room) -> None:
    for name in ODD_NAMES:
        (room.project / os.fsdecode(name)).write_bytes(name)
    a = room.link("a", "a folder with spaces'")
    room.push(a)
    assert code_of(a.folder) == set(ODD_NAMES)
    room.push(a)
    assert room.copies == []


def test_a_change_that_size_and_time_do_not_show_is_pushed(room: Room) -> None:
    file = room.write("train.py", "lr = 1")
    a = room.link("a")
    room.push(a)
    there = a.folder / "train.py"
    file.write_text("lr = 2")
    stamp = there.stat().st_mtime_ns
    os.utime(file, ns=(stamp, stamp))
    room.push(a)
    assert there.read_text() == "lr = 2"


def test_a_file_spoiled_on_the_node_is_put_right(room: Room) -> None:
    room.write("train.py", "good")
    a = room.link("a")
    room.push(a)
    (a.folder / "train.py").write_text("evil")
    room.push(a)
    assert (a.folder / "train.py").read_text() == "good"


def test_nodes_that_share_a_folder_are_pushed_once(room: Room) -> None:
    room.write("train.py")
    one, two, three = room.link("n1", "shared"), room.link("n2", "shared"), room.link("n3")
    pushed = room.push(one, two, three)
    assert sorted(room.copies) == ["n1", "n3"]
    assert pushed.folders_pushed == 2
    assert not list((one.folder / ".aorta-code").glob("nonce*"))


def test_a_file_that_becomes_a_folder_and_back(room: Room) -> None:
    room.write("x", "file")
    a = room.link("a")
    room.push(a)
    (room.project / "x").unlink()
    room.write("x/y", "below")
    room.push(a)
    assert (a.folder / "x/y").read_text() == "below"
    (room.project / "x/y").unlink()
    (room.project / "x").rmdir()
    room.write("x", "file")
    room.push(a)
    assert (a.folder / "x").read_text() == "file"


def test_without_push_the_folder_must_be_there(room: Room) -> None:
    a, b, c = room.link("a"), room.link("b"), room.link("c")
    a.folder.mkdir()
    with pytest.raises(PushError) as caught:
        room.push(a, b, c, push=False)
    assert caught.value.where == "b, c"
    assert room.push(a, push=False) == Pushed(workdirs=(str(a.folder),))


def test_a_large_project_is_told_with_what_makes_it_so(room: Room) -> None:
    room.write("train.py")
    room.write("data/blob.bin", "x" * 3_000_000)
    pushed = room.push(room.link("a"), push_warn_mib=1.0)
    assert "data/blob.bin 2.9 MiB" in pushed.warnings[0]
    assert ".aortaignore" in pushed.warnings[0]


def test_a_socket_is_left_out_and_said(room: Room) -> None:
    room.write("train.py")
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.open(room.project, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{folder}/s")
        os.close(folder)
        pushed = room.push(room.link("a"))
    assert (pushed.files, len(pushed.warnings)) == (1, 1)


def test_code_of_another_project_before_is_told(room: Room) -> None:
    room.write("train.py")
    a = room.link("a")
    room.push(a)
    room.project = room.tmp_path / "other"
    room.write("main.py")
    pushed = room.push(a)
    assert code_of(a.folder) == {b"main.py"}
    assert [text for text in pushed.warnings if f"{room.tmp_path}/project before (a)" in text]


def test_git_ignored_but_tracked_files_travel(room: Room) -> None:
    room.write(".gitignore", "*.bin\nbuild/\n")
    room.write("vocab.bin")
    room.write("noise.bin")
    room.write("build/table.txt")
    room.write("build/object.o")
    for words in (["init", "-q"], ["add", "-f", "vocab.bin", "build/table.txt"]):
        subprocess.run(["git", "-C", room.project, *words], check=True)
    a = room.link("a")
    room.push(a)
    assert code_of(a.folder) == {b".gitignore", b"vocab.bin", b"build", b"build/table.txt"}
