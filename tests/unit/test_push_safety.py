"""The push through the link to this machine: what it must never touch, and what it says when it cannot go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from push_room import WAYS, Room, choose_way, code_of, snapshot

from orchestrator.errors import PushError, Several
from orchestrator.phases.carry import Packer, bring_paths
from orchestrator.phases.workdir import Keeper


@pytest.fixture(params=WAYS)
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Room:
    choose_way(request.param, monkeypatch)
    return Room(tmp_path, monkeypatch)


def test_what_is_gone_here_goes_there_and_what_the_run_made_stays(room: Room) -> None:
    room.write("old/gone.py")
    room.write("keep.py")
    a = room.link("a")
    room.push(a)
    made = ["checkpoints/last.pt", "results/loss.txt", "old/__pycache__/gone.cpython-311.pyc", "keep.ckpt"]
    for path in made:
        (a.folder / path).parent.mkdir(exist_ok=True)
        (a.folder / path).write_text("made on the node")
    (room.project / "old/gone.py").unlink()
    (room.project / "old").rmdir()
    pushed = room.push(a)
    assert code_of(a.folder) == {
        b"keep.py", b"keep.ckpt", b"checkpoints", b"checkpoints/last.pt", b"results", b"results/loss.txt",
    }  # fmt: skip
    assert [text for text in pushed.warnings if "results" in text and "checkpoints" not in text]


def test_a_foreign_folder_is_refused_and_untouched(room: Room) -> None:
    room.write("train.py")
    a = room.link("a")
    a.folder.mkdir()
    (a.folder / "thesis.tex").write_text("years of work")
    before = snapshot(a.folder)
    with pytest.raises(PushError, match="not made by aorta-launch") as caught:
        room.push(a)
    assert "--workdir" in caught.value.remedy
    assert caught.value.where == "a"
    assert snapshot(a.folder) == before


def test_the_project_itself_is_used_in_place(room: Room) -> None:
    room.write("train.py")
    room.write("checkpoints/x.pt")
    (room.tmp_path / "alias").symlink_to(room.project)
    before = snapshot(room.project)
    a, b = room.link("a", "project"), room.link("b", "alias")
    pushed = room.push(a, b)
    assert pushed.folders_pushed == 0
    assert room.copies == []
    assert snapshot(room.project) == before


@pytest.mark.parametrize(("folder", "said"), [("project/inner", "lies in the project"), (".", "holds the project")])
def test_a_folder_in_or_above_the_project_is_refused(room: Room, folder: str, said: str) -> None:
    room.write("train.py")
    before = snapshot(room.tmp_path)
    with pytest.raises(PushError, match=said):
        room.push(room.link("a", folder))
    after = snapshot(room.tmp_path)
    assert after == before


def test_an_ignored_folder_in_the_project_takes_the_code(room: Room) -> None:
    room.write("train.py")
    a = room.link("a", "project/.aorta/code/project")
    room.push(a)
    assert code_of(a.folder) == {b"train.py"}
    room.push(a)
    assert room.copies == []


def test_nothing_is_removed_or_written_through_a_link(room: Room) -> None:
    room.write("data/old.txt")
    room.write("train.py")
    a = room.link("a")
    room.push(a)
    treasure = room.tmp_path / "treasure"
    (a.folder / "data").rename(treasure)
    (a.folder / "data").symlink_to(treasure)
    (room.project / "data/old.txt").unlink()
    (room.project / "data").rmdir()
    room.push(a)
    assert (treasure / "old.txt").read_text() == "x"
    room.write("data/new.txt")
    with pytest.raises(PushError, match="stand where the project has something else: data"):
        room.push(a)
    assert [file.name for file in treasure.iterdir()] == ["old.txt"]


def test_a_tampered_list_of_pushed_files_removes_nothing_outside(room: Room) -> None:
    room.write("train.py")
    a = room.link("a")
    room.push(a)
    victim = room.tmp_path / "victim"
    victim.write_text("x")
    (a.folder / ".aorta-code/pushed.json").write_text('{"../victim": "file", "train.py": "file"}')
    room.write("train.py", "changed")
    room.push(a)
    assert victim.exists()


def test_a_file_that_changes_during_the_push_is_pushed_again(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    file = room.write("train.py", "one")
    room.write("gone.py")

    def changing(keeper: Keeper, packer: Packer, workdir: str, paths: Sequence[str]) -> None:
        if file.read_text() == "one":
            file.write_text("two")
            (room.project / "gone.py").unlink()
        bring_paths(keeper, packer, workdir, paths)

    monkeypatch.setattr("orchestrator.phases.push.bring_paths", changing)
    a = room.link("a")
    room.push(a)
    assert (a.folder / "train.py").read_text() == "two"
    assert not (a.folder / "gone.py").exists()


def test_files_that_never_rest_are_named(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    file = room.write("log.txt", "")

    def changing(keeper: Keeper, packer: Packer, workdir: str, paths: Sequence[str]) -> None:
        file.write_text(file.read_text() + "more")
        bring_paths(keeper, packer, workdir, paths)
        file.write_text(file.read_text() + "more")

    monkeypatch.setattr("orchestrator.phases.push.bring_paths", changing)
    with pytest.raises(PushError, match=r"change while they are pushed: log\.txt"):
        room.push(room.link("a"))


def test_a_difference_after_the_push_names_node_and_paths(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    room.write("train.py", "one")

    def spoiling(keeper: Keeper, packer: Packer, workdir: str, paths: Sequence[str]) -> None:
        del keeper, packer, paths
        (Path(workdir) / "train.py").write_text("spoiled")

    monkeypatch.setattr("orchestrator.phases.push.bring_paths", spoiling)
    with pytest.raises(PushError, match=r"is not the code here: train\.py") as caught:
        room.push(room.link("a"))
    assert caught.value.where == "a"


def test_every_node_that_fails_is_told(room: Room) -> None:
    room.write("train.py")
    links = [room.link("a"), room.link("b")]
    for link in links:
        link.folder.write_text("a file, no folder")
    with pytest.raises(Several) as caught:
        room.push(*links)
    assert [error.where for error in caught.value.errors] == ["a", "b"]


def test_without_rsync_here_it_says_so(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_way("by rsync", monkeypatch)
    room.write("train.py")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PushError, match="rsync is not installed") as caught:
        room.push(room.link("a"))
    assert caught.value.where == "launch host"
