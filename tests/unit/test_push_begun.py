"""A push that begins while the checks go on: taken over it costs nothing twice, called off it leaves nothing."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from push_room import Room, code_of, snapshot

from orchestrator.errors import PushError
from orchestrator.node import claim
from orchestrator.phases.begin import Begun
from orchestrator.phases.later import Later
from orchestrator.phases.push import begin_push, push_code
from orchestrator.settings import Settings


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    room = Room(tmp_path, monkeypatch)
    room.write("train.py")
    return room


def settings_of(room: Room) -> Settings:
    return Settings(project=room.project, experiments_dir=room.project / "experiments")


def wait_until_free(begun: Begun, *folders: Path) -> None:
    """Wait until nobody of ours is at the folders: a program hears of its end a moment after it was told."""
    begun.cancel()
    users = [folder / claim.USERS for folder in folders]
    end = time.monotonic() + 10
    while any(file.name.startswith("next") for folder in users if folder.is_dir() for file in folder.iterdir()):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_it_is_taken_over(room: Room) -> None:
    a, b = room.link("a"), room.link("b")
    room.push(a, b)
    links = [room.link("a"), room.link("b")]
    begun = begin_push(links, settings_of(room), "next", ExitStack())
    pushed = push_code(links, (), settings_of(room), "next", begun=begun)
    begun.cancel()
    assert pushed.folders_pushed == 0
    assert [link.acts for link in links] == [["inspect", "keep"]] * 2
    assert (a.folder / claim.USERS / "next.0").exists()


def test_called_off_it_leaves_nothing(room: Room) -> None:
    a, b = room.link("a"), room.link("b")
    room.push(a)
    before = snapshot(room.project)
    begun = begin_push([a, b], settings_of(room), "next", ExitStack())
    time.sleep(0.5)
    wait_until_free(begun, a.folder)
    assert snapshot(room.project) == before
    assert not b.folder.exists()
    room.write("train.py", "changed")
    began = time.monotonic()
    push_code([room.link("a"), room.link("b")], (), settings_of(room), "run")
    assert time.monotonic() - began < claim.AWAITED_S / 2
    assert (a.folder / "train.py").read_text() == "changed"


def test_called_off_at_once_it_leaves_nothing(room: Room) -> None:
    a = room.link("a")
    room.push(a)
    before = snapshot(room.project)
    begun = begin_push([a], settings_of(room), "next", ExitStack())
    wait_until_free(begun, a.folder)
    assert snapshot(room.project) == before
    begun.cancel()


def test_for_another_run_it_is_of_no_use(room: Room) -> None:
    a = room.link("a")
    begun = begin_push([room.link("a")], settings_of(room), "next", ExitStack())
    assert push_code([a], (), settings_of(room), "other", begun=begun).folders_pushed == 1
    wait_until_free(begun, a.folder)
    assert code_of(a.folder) == {b"train.py"}
    assert [file.name for file in (a.folder / claim.USERS).glob("*.0")] == ["other.0"]


def test_a_change_after_the_beginning_is_found(room: Room) -> None:
    a = room.link("a")
    begun = begin_push([a], settings_of(room), "next", ExitStack())
    opened = begun.take()
    room.write("train.py", "changed")
    begun._opened = Later("again", lambda: opened, lambda _: None)
    push_code([a], (), settings_of(room), "next", begun=begun)
    assert (a.folder / "train.py").read_text() == "changed"


def test_what_goes_wrong_is_told_where_it_is_taken_over(room: Room) -> None:
    (room.project / ".gitignore").write_text("[a\n!\n")
    (room.project / ".aortaignore").write_text("!\n")
    begun = begin_push([room.link("a")], settings_of(room), "next", ExitStack())
    with pytest.raises(PushError, match="is not valid"):
        push_code([room.link("a")], (), settings_of(room), "next", begun=begun)
    begun.cancel()


def test_without_a_push_the_folders_are_looked_for(room: Room) -> None:
    a = room.link("a")
    a.folder.mkdir()
    settings = settings_of(room).model_copy(update={"push": False})
    begun = begin_push([a], settings, "next", ExitStack())
    assert push_code([a], (), settings, "next", begun=begun).workdirs == (str(a.folder),)
    assert a.acts == ["find", "keep"]
