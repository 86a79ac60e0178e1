"""Launches that meet at one code folder: who waits, who is refused, and what a supervisor finds afterwards."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from push_room import Room, code_of

from orchestrator.errors import AortaError, PushError
from orchestrator.node import claim, processes, tree_state
from orchestrator.phases.push import Pushed, push_code
from orchestrator.phases.record import begin_experiment
from orchestrator.settings import Settings
from orchestrator.transport.local import LocalLink
from orchestrator.values import Node


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    room = Room(tmp_path, monkeypatch)
    room.write("train.py")
    return room


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A HOME of the test's own, which the programs on this machine see too."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def supervisor() -> Iterator[Callable[[Path, str], None]]:
    """Hold the ticket of a run as its supervisor does."""
    handles = []

    def hold(folder: Path, run_id: str) -> None:
        handles.append(claim.hold(str(folder), run_id, 0))
        assert handles[-1] >= 0

    yield hold
    for handle in handles:
        os.close(handle)


def settings_of(project: Path) -> Settings:
    return Settings(project=project, experiments_dir=project / "experiments")


def push(project: Path, run_id: str, tell: Callable[[str], None] | None = None) -> Pushed:
    """Push a project to this machine as a node, to the folder that goes by its name."""
    link = LocalLink(Node(name="a", host="127.0.0.1"))
    link.pythons = (sys.executable,)
    return push_code([link], (), settings_of(project), run_id, tell)


def users_of(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / claim.USERS).iterdir() if not file.name.startswith("."))


def test_a_live_runs_code_is_shared_while_equal_and_never_changed(
    room: Room, supervisor: Callable[[Path, str], None]
) -> None:
    a, b = room.link("a", "shared"), room.link("b", "shared")
    room.push(a, b)
    supervisor(a.folder, "run")
    push_run(room, "other")
    room.write("train.py", "changed")
    with pytest.raises(PushError) as caught:
        push_run(room, "third")
    assert "is used by the live run run" in caught.value.what
    assert (caught.value.where, "aorta-launch kill run --nodes FILE, or" in caught.value.remedy) == ("a, b", True)
    assert f"--workdir {a.folder}-2" in caught.value.remedy
    assert (a.folder / "train.py").read_text() == "x"


def push_run(room: Room, run_id: str) -> Pushed:
    links = [room.link("a", "shared"), room.link("b", "shared")]
    return push_code(links, (), settings_of(room.project), run_id)


def test_the_dead_keep_nobody_out(room: Room) -> None:
    a = room.link("a")
    room.push(a)
    handle = claim.hold(str(a.folder), "run", 0)
    os.close(handle)
    assert users_of(a.folder) == ["run.0"]
    room.write("train.py", "changed")
    begin = time.monotonic()
    push_code([room.link("a")], (), settings_of(room.project), "next")
    assert time.monotonic() - begin < claim.AWAITED_S / 2
    assert users_of(a.folder) == ["next.0"]


def test_a_run_about_to_start_is_waited_for_and_then_refuses(
    room: Room, supervisor: Callable[[Path, str], None]
) -> None:
    a = room.link("a")
    room.push(a)
    room.write("train.py", "changed")
    said: list[str] = []

    def start_then(text: str) -> None:
        said.append(text)
        if text.startswith("waiting"):
            supervisor(a.folder, "run")

    with pytest.raises(PushError, match="is used by the live run run"):
        push_code([room.link("a")], (), settings_of(room.project), "next", start_then)
    assert "waiting: the launch run brings its code there" in said


def test_a_folder_that_another_filled_since_we_looked_is_looked_at_again_before_its_run_is_in_our_way(
    room: Room,
) -> None:
    """The other may have brought the very code that we would bring: two launches of one project in one second."""
    a = room.link("a")
    mine = claim.Claim(str(a.folder), "mine", 0)
    assert mine.look() is None
    room.push(a)
    theirs = claim.Claim(str(a.folder), "theirs", 0)
    theirs.use()
    handle = claim.hold(str(a.folder), "theirs", 0)
    try:
        assert mine.fill() == {"changed": True}
        assert mine.look() is None
        assert mine.fill() == {"holders": ["theirs"]}
    finally:
        os.close(handle)


def test_a_ticket_that_waited_for_long_checks_waits_anew_for_its_supervisor(room: Room) -> None:
    a = room.link("a")
    room.push(a)
    mine = claim.Claim(str(a.folder), "next", 0)
    mine.use()
    ticket = a.folder / claim.USERS / "next.0"
    mine.renew()
    assert ticket.stat().st_mtime_ns == mine.left
    old = time.time_ns() - 2 * int(claim.AWAITED_S * 1e9)
    os.utime(ticket, ns=(old, old))
    mine.left = old
    mine.renew()
    assert claim.drop_free(str(a.folder / claim.USERS), "next.0") == "awaited"
    mine.withdraw()
    assert not ticket.exists()


def test_a_supervisor_whose_code_was_changed_does_not_start(room: Room) -> None:
    a = room.link("a")
    room.push(a)
    old = time.time() - 2 * claim.AWAITED_S
    os.utime(a.folder / claim.USERS / "run.0", (old, old))
    room.write("train.py", "changed")
    push_code([room.link("a")], (), settings_of(room.project), "next")
    with pytest.raises(claim.ChangedError, match="was changed by the launch next after"):
        claim.hold(str(a.folder), "run", 0)
    os.close(claim.hold(str(a.folder), "next", 0))


def test_of_launches_that_need_each_others_folder_one_gets_both(room: Room) -> None:
    """One finds its code on the first node, the other on the second, and each has to change the other node."""
    other = room.tmp_path / "other"
    other.mkdir()
    (other / "main.py").write_text("x")
    folders = [room.link("a").folder, room.link("b").folder]
    for link, project in ((room.link("a"), room.project), (room.link("b"), other)):
        push_code([link], (), settings_of(project), "before")
        (link.folder / claim.USERS / "before.0").unlink()
    told: dict[str, list[int] | str] = {}

    def launch(project: Path, run_id: str) -> None:
        try:
            push_code([room.link("a"), room.link("b")], (), settings_of(project), run_id)
            told[run_id] = [claim.hold(str(folder), run_id, rank) for rank, folder in enumerate(folders)]
        except AortaError as error:
            told[run_id] = error.what

    threads = [threading.Thread(target=launch, args=pair) for pair in ((room.project, "one"), (other, "two"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (run_id,) = (run_id for run_id, what in told.items() if isinstance(what, list))
    (refused,) = (what for what in told.values() if isinstance(what, str))
    assert f"is used by the live run {run_id}" in refused
    wanted = {b"train.py"} if run_id == "one" else {b"main.py"}
    assert [code_of(folder) for folder in folders] == [wanted, wanted]
    for handle in told[run_id]:
        os.close(int(handle))


def test_a_push_that_fails_leaves_no_ticket(room: Room) -> None:
    a, b = room.link("a"), room.link("b")
    room.push(a)
    b.folder.mkdir()
    (b.folder / "thesis.tex").write_text("years of work")
    with pytest.raises(PushError):
        push_code([a, b], (), settings_of(room.project), "next")
    assert users_of(a.folder) == ["run.0"]


def push_together(**projects: Path) -> dict[str, Pushed]:
    """Push at the same moment, as the runs of these names."""
    results: dict[str, Pushed] = {}
    threads = [
        threading.Thread(target=lambda name=name: results.update({name: push(projects[name], name)}))
        for name in projects
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_two_launches_of_a_new_project_in_one_second(room: Room, home: Path) -> None:
    del home
    (room.project / "big.bin").write_bytes(os.urandom(8_000_000))
    results = push_together(one=room.project, two=room.project)
    assert sorted(result.folders_pushed for result in results.values()) == [0, 1]
    folder = Path(results["one"].workdirs[0])
    assert users_of(folder) == ["one.0", "two.0"]


def test_projects_of_one_name_have_a_folder_each_and_keep_it(room: Room, home: Path) -> None:
    other = room.tmp_path / "elsewhere" / "project"
    other.mkdir(parents=True)
    (other / "main.py").write_text("x")
    said: list[str] = []
    first, second = push(room.project, "one").workdirs[0], push(other, "two", said.append).workdirs[0]
    assert first == str(home / ".aorta/code/project")
    assert second.startswith(first + "-")
    assert any(second in text and "another project of this name" in text for text in said)
    assert (code_of(Path(first)), code_of(Path(second))) == ({b"train.py"}, {b"main.py"})
    for project, folder in ((other, second), (room.project, first)):
        again = push(project, "again")
        assert (again.workdirs[0], again.folders_pushed) == (folder, 0)


def test_new_projects_of_one_name_in_one_second_have_a_folder_each(room: Room, home: Path) -> None:
    other = room.tmp_path / "elsewhere" / "project"
    other.mkdir(parents=True)
    (other / "main.py").write_text("x")
    for project in (room.project, other):
        (project / "big.bin").write_bytes(os.urandom(8_000_000))
    results = push_together(one=room.project, two=other)
    assert sorted(result.folders_pushed for result in results.values()) == [1, 1]
    folders = {Path(result.workdirs[0]) for result in results.values()}
    assert home / ".aorta/code/project" in folders
    assert len(folders) == 2


def test_a_run_id_that_is_there_already_is_refused(room: Room, home: Path) -> None:
    folder = home / ".aorta/runs/run/3"
    folder.mkdir(parents=True)
    who = {"pid": os.getpid(), "ticks": 0, "boot_id": processes.boot_id()}
    (folder / "status.json").write_text(json.dumps({"supervisor": who}))
    with pytest.raises(PushError, match="a run of this very id is there already"):
        push(room.project, "run")


def test_an_id_that_this_launch_host_has_is_not_taken_twice(room: Room, home: Path) -> None:
    launches = home / ".aorta/launches"
    launches.mkdir(parents=True)
    (launches / "remembered.json").write_text("{}")
    settings = settings_of(room.project)
    ids = iter(["one", "one", "remembered", "two"])
    roots = [begin_experiment(settings, lambda: next(ids)).root.name for _ in range(2)]
    assert roots == ["one", "two"]


def test_without_locks_the_launch_goes_on_and_says_so(room: Room, home: Path) -> None:
    del home
    folder = Path(push(room.project, "one").workdirs[0])
    users = folder / claim.USERS
    for file in users.iterdir():
        file.unlink()
    users.rmdir()
    users.write_text("in the way")
    room.write("train.py", "changed")
    said: list[str] = []
    assert push(room.project, "two", said.append).folders_pushed == 1
    assert any("nothing keeps another launch from changing" in text for text in said)
    users.unlink()
    users.mkdir()
    (users / claim.LOCK).mkdir()
    assert push(room.project, "three").folders_pushed == 0
    assert claim.hold(str(folder), "three", 0) == -1


def test_a_file_system_without_locks_keeps_nobody_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".aorta-code").mkdir()

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    mine = claim.Claim(str(tmp_path), "run", 0)
    assert mine.look() is None
    assert "not supported" in mine.without
    assert mine.fill() == {}
    mine.use()
    assert claim.hold(str(tmp_path), "run", 0) == -1


def test_a_folder_that_is_made_while_we_look_is_not_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shared"
    listed = os.listdir

    def late(path: str) -> list[str]:
        if not folder.exists():
            (folder / tree_state.MARKER_FOLDER).mkdir(parents=True)
            raise FileNotFoundError(path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", late)
    assert tree_state.read_owner(str(folder)) == "absent"
    (tmp_path / "dangling").symlink_to("nowhere")
    assert tree_state.read_owner(str(tmp_path / "dangling")) == "foreign"
