"""What is remembered of hashed files: no changed file is missed, whatever its size and time say; damage costs only time."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from push_room import Room

from orchestrator.node import tree_look, tree_rows, tree_seen, tree_state
from orchestrator.phases.tree import read_tree
from orchestrator.settings import Settings

Change = Callable[[Path], object]


def in_place(file: Path) -> None:
    """Write other bytes of the same number into the very file, and set its time back."""
    info = file.stat()
    with file.open("r+b") as handle:
        handle.write(b"evil")
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))


def touched_like(file: Path) -> None:
    twin = file.with_name("twin")
    subprocess.run(["touch", "-r", file, twin], check=True)
    file.write_text("evil")
    subprocess.run(["touch", "-r", twin, file], check=True)
    twin.unlink()


def copied_over(file: Path) -> None:
    twin = file.with_name("twin")
    twin.write_text("evil")
    subprocess.run(["touch", "-r", file, twin], check=True)
    subprocess.run(["cp", "-p", twin, file], check=True)
    twin.unlink()


def moved_over(file: Path) -> None:
    twin = file.with_name("twin")
    twin.write_text("evil")
    subprocess.run(["touch", "-r", file, twin], check=True)
    twin.rename(file)


def synced_over(file: Path) -> None:
    """As `rsync --inplace --times` does it."""
    with file.open("r+b") as handle:
        before = os.fstat(handle.fileno())
        handle.write(b"evil")
        handle.flush()
        os.utime(handle.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))


def mapped(file: Path) -> None:
    info = file.stat()
    with file.open("r+b") as handle, mmap.mmap(handle.fileno(), 4) as memory:
        memory[:] = b"evil"
        memory.flush()
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))


CHANGES = (in_place, touched_like, copied_over, moved_over, synced_over, mapped)


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    room = Room(tmp_path, monkeypatch)
    room.write("train.py", "good")
    room.write("pkg/mod.py", "x = 1")
    (room.project / "latest").symlink_to("train.py")
    (room.project / "empty").mkdir()
    return room


def settle() -> None:
    """Let the clock leave the moment in which the last file was written."""
    time.sleep(2.5 * tree_seen.STEP_NS / 1e9)


def look_at(folder: Path) -> tree_look.Look:
    return tree_look.Look(str(folder), remember=True)


def remembered(room: Room) -> Path:
    """A pushed folder of which everything is remembered."""
    a = room.link("a")
    room.push(a)
    settle()
    room.push(a)
    look = look_at(a.folder)
    assert look.tree_hash
    assert look.is_unchanged()
    return a.folder


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_on_the_node_is_found_whatever_size_and_time_say(room: Room, change: Change) -> None:
    folder = remembered(room)
    file = folder / "train.py"
    before = file.stat()
    change(file)
    after = file.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert file.read_text() == "evil"
    assert room.push(room.link("a")).folders_pushed == 1
    assert file.read_text() == "good"


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_the_project_is_found_whatever_size_and_time_say(room: Room, change: Change) -> None:
    folder = remembered(room)
    change(room.project / "train.py")
    room.push(room.link("a"))
    assert (folder / "train.py").read_text() == "evil"


def test_a_change_in_the_very_moment_of_the_push_is_found(room: Room) -> None:
    """What git calls racily clean: the clock has not moved on since the file was hashed."""
    a = room.link("a")
    for number in range(20):
        room.write("train.py", f"{number:04}")
        room.push(a)
        in_place(a.folder / "train.py")
        room.push(a)
        assert (a.folder / "train.py").read_text() == f"{number:04}"


def test_what_is_not_a_file_is_found_too(room: Room) -> None:
    folder = remembered(room)
    (folder / "latest").unlink()
    (folder / "latest").symlink_to("pkg")
    (folder / "empty").rmdir()
    (folder / "pkg/mod.py").chmod(0o755)
    room.push(room.link("a"))
    assert str((folder / "latest").readlink()) == "train.py"
    assert (folder / "empty").is_dir()
    assert not os.access(folder / "pkg/mod.py", os.X_OK)


def test_a_folder_that_became_a_link_to_itself_is_no_folder(room: Room) -> None:
    folder = remembered(room)
    (folder / "pkg").rename(room.tmp_path / "elsewhere")
    (folder / "pkg").symlink_to(room.tmp_path / "elsewhere")
    assert not look_at(folder).is_unchanged()


def test_the_clock_that_was_set_back(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = remembered(room)
    now = time.time_ns

    def set_back_by(ns: int) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: now() - ns)
            return bool(look_at(folder).tree_hash)

    assert not set_back_by(3600 * tree_seen.SECOND_NS)
    assert not set_back_by(2 * tree_seen.STEP_NS)
    assert set_back_by(-3600 * tree_seen.SECOND_NS)
    assert look_at(folder).tree_hash


def test_what_was_remembered_before_a_crash_is_forgotten(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = remembered(room)
    other = tmp_path / "boot_id"
    other.write_text("another\n")
    monkeypatch.setattr(tree_seen, "BOOT_ID", str(other))
    assert not look_at(folder).tree_hash


def test_a_file_from_the_future_is_never_remembered() -> None:
    now = tree_seen.coarse_ns()
    fine, whole = now - now % tree_seen.SECOND_NS + 1, now - now % tree_seen.SECOND_NS

    def is_settled(ctime_ns: int) -> bool:
        return tree_seen.is_settled((0, 0, 0, ctime_ns, 0, 0), now)

    assert not is_settled(fine + 3600 * tree_seen.SECOND_NS)
    assert not is_settled(now)
    assert is_settled(fine - tree_seen.SECOND_NS)
    # A file system that keeps whole seconds shows one time for all that is written in one.
    assert not is_settled(whole - tree_seen.SECOND_NS)
    assert is_settled(whole - 3 * tree_seen.SECOND_NS)


def test_a_file_that_somebody_may_write_is_not_remembered(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 4096)
    settle()
    sign = tree_rows.sign_of(file.lstat())

    def lasts() -> bool:
        return tree_seen.hash_settled(os.fsencode(file), sign, tree_seen.coarse_ns())[1]

    assert lasts()
    with file.open("r+b") as handle:
        assert not lasts()
        memory = mmap.mmap(handle.fileno(), 4096)
    assert not lasts()
    memory.close()
    assert lasts()


DAMAGES: tuple[Change, ...] = (
    lambda seen: seen.unlink(),
    lambda seen: seen.write_bytes(b""),
    lambda seen: seen.write_bytes(seen.read_bytes()[:-1]),
    lambda seen: seen.write_bytes(seen.read_bytes().replace(b"train.py", b"tra1n.py")),
    lambda seen: seen.write_bytes(seen.read_bytes().replace(tree_seen.MAGIC, b"aorta-seen 0\n")),
    lambda seen: seen.write_bytes(os.urandom(5000)),
    lambda seen: (seen.unlink(), seen.mkdir()),  # type: ignore[func-returns-value]
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_memory_costs_time_only(room: Room, damage: Change) -> None:
    folder = remembered(room)
    damage(folder / tree_look.SEEN)
    for file in Path(os.environ["HOME"], ".aorta/seen").iterdir():
        damage(file)
    assert not look_at(folder).tree_hash
    assert room.push(room.link("a")).folders_pushed == 0
    (folder / "train.py").write_text("evil")
    assert room.push(room.link("a")).folders_pushed == 1
    assert not list((folder / tree_state.MARKER_FOLDER).glob("seen.*"))


def test_another_version_of_the_memory_is_not_read(room: Room) -> None:
    folder = remembered(room)
    seen = tree_seen.Seen(str(folder / tree_look.SEEN), str(folder), ())
    assert seen.value
    seen.save({"hash": look_at(folder).tree_hash})
    assert not look_at(folder).tree_hash
    assert room.push(room.link("a")).folders_pushed == 0


def test_a_memory_that_was_copied_with_the_folder_is_of_no_use(room: Room) -> None:
    folder = remembered(room)
    twin = room.link("b")
    shutil.copytree(folder, twin.folder, symlinks=True)
    (twin.folder / "train.py").write_text("evil")
    os.utime(twin.folder / "train.py", ns=(0, (folder / "train.py").stat().st_mtime_ns))
    assert not look_at(twin.folder).is_unchanged()
    assert room.push(twin).folders_pushed == 1
    assert (twin.folder / "train.py").read_text() == "good"


@pytest.mark.parametrize("kind", ["tmpfs", "nfs4", "fuse.sshfs"])
def test_on_file_systems_that_tell_times_late_or_never_all_is_read(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = remembered(room)
    device = folder.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"30 1 {os.major(device)}:{os.minor(device)} / / rw shared:1 - {kind} x rw\n")
    monkeypatch.setattr(tree_seen, "MOUNTS", str(mounts))
    look = look_at(folder)
    assert not look.tree_hash
    settings = Settings(project=room.project, experiments_dir=room.project / "experiments")
    assert {entry.path for entry in read_tree(settings).manifest.entries} == {
        "train.py",
        "pkg/mod.py",
        "latest",
        "empty",
    }


def test_an_unchanged_tree_is_not_read_again(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = remembered(room)
    settings = Settings(project=room.project, experiments_dir=room.project / "experiments")
    tree = read_tree(settings)

    def refuse(full: bytes) -> int:
        raise AssertionError(full)

    monkeypatch.setattr(tree_seen, "open_file", refuse)
    assert read_tree(settings).manifest == tree.manifest
    look = look_at(folder)
    assert look.compare(tree.manifest.tree_hash, None)["hash"] == tree.manifest.tree_hash


def test_what_nobody_pushed_is_still_told(room: Room) -> None:
    folder = remembered(room)
    (folder / "pkg/notes.txt").write_text("mine")
    for _ in range(2):
        assert [text for text in room.push(room.link("a")).warnings if "pkg/notes.txt" in text]
        settle()
    (folder / "pkg/notes.txt").unlink()
    assert not room.push(room.link("a")).warnings


def test_much_is_hashed_by_several_processes(tmp_path: Path) -> None:
    names = [f"{number}.bin" for number in range(9)]
    for name in names:
        (tmp_path / name).write_bytes(os.urandom(tree_look.FORK_BYTES // 8))
    rows = [tree_rows.read_row(os.fsencode(tmp_path), name) for name in names]
    found = tree_look.Look(str(tmp_path), remember=False).compare("hash", [row for row in rows if row is not None])
    assert found == {"hash": "hash", "missing": [], "different": []}
