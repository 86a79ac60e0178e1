from __future__ import annotations

import errno
import itertools
import os
import random
import threading
import time
from pathlib import Path

import pytest

from orchestrator.node import logspace, runfolder
from orchestrator.node.logfiles import LogFiles
from orchestrator.node.logspace import BLOCK, LogSpace, find_level, held_bytes, plan_punches

MIB = 1 << 20
LINE = 64


def line(number: int) -> bytes:
    """A line whose content follows from its place."""
    return b"%020d %s\n" % (number, b"words " * 7)


def expected(offset: int, size: int) -> bytes:
    """What a file of such lines holds at an offset."""
    first, last = offset // LINE, (offset + size) // LINE + 1
    return b"".join(map(line, range(first, last)))[offset - first * LINE :][:size]


def test_a_level_lets_the_sum_fit_and_wastes_nothing() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        sizes = [chance.choice((0, 1, 1000, chance.randrange(10**7))) for _ in range(chance.randrange(1, 9))]
        target = chance.randrange(10**7)
        level = find_level(sizes, target)
        kept = sum(min(size, level) for size in sizes)
        assert kept <= target or level >= max(sizes)
        assert sum(min(size, level + 1) for size in sizes) > target or level >= max(sizes)


def test_only_the_largest_are_cut_from_their_start_in_whole_blocks() -> None:
    held = {"0.out": (0, 10 * MIB + 7), "1.out": (20 * MIB, 32 * MIB + 1), "0.err": (0, 5000), "1.err": (0, 2 * MIB)}
    punches = plan_punches(held, 8 * MIB)
    assert set(punches) == {"0.out", "1.out"}
    assert all(offset % BLOCK == 0 for offset in punches.values())
    left = sum(end - max(start, punches.get(name, 0)) for name, (start, end) in held.items())
    assert 8 * MIB - 2 * BLOCK <= left <= 8 * MIB
    assert plan_punches(held, 100 * MIB) == {}


def test_the_block_in_hand_stays_even_without_any_space() -> None:
    assert plan_punches({"0.out": (0, 5 * BLOCK + 9), "1.out": (0, 100)}, 0) == {"0.out": 5 * BLOCK}
    assert plan_punches({"0.out": (5 * BLOCK, 5 * BLOCK + 9)}, 0) == {}


class Folder:
    """A run folder with logs of an agent, its supervisor's space and a pump's reader."""

    def __init__(self, path: Path, space: int) -> None:
        self.path = path
        for name in ("agent.out", "agent.err"):
            (path / name).touch()
        self.space = LogSpace(LogFiles(str(path), "run", 1, {}), space)
        self.reader = LogFiles(str(path), "run", 1, {})
        self.records = 0

    def record(self) -> bool:
        self.records += 1
        return runfolder.write_status(str(self.path), {"punched": self.space.punched})

    def write(self, data: bytes, name: str = "agent.out") -> None:
        with (self.path / name).open("ab") as file:
            file.write(data)

    def blocks(self) -> int:
        return sum((self.path / name).stat().st_blocks * 512 for name in ("agent.out", "agent.err"))


def test_old_parts_are_freed_and_told_and_the_writer_goes_on(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 2 * MIB)
    folder.write(expected(0, 4 * MIB))
    assert folder.space.tend(1.0, folder.record) == ""
    assert folder.blocks() <= 2 * MIB
    assert (tmp_path / "agent.out").stat().st_size == 4 * MIB
    status = runfolder.read_status(str(tmp_path))
    assert status is not None
    dropped = status["punched"]["agent.out"]
    folder.write(expected(4 * MIB, 100))
    frames = [frame for _ in range(20) for frame in folder.reader.frames(1 << 30)]
    assert frames[0] == ({"t": "gap", "f": "agent.out", "from": 0, "to": dropped}, b"")
    assert frames[1][0] == {"t": "log", "f": "agent.out", "o": dropped}
    assert b"".join(body for _, body in frames) == expected(dropped, 4 * MIB + 100 - dropped)


def test_zeros_that_a_rank_wrote_are_no_gap(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 8 * MIB)
    folder.write(b"one\n" + bytes(2 * MIB) + b"two\n")
    os.truncate(tmp_path / "agent.out", 3 * MIB)  # a hole that is nobody's loss
    folder.space.tend(1.0, folder.record)
    frames = [frame for _ in range(40) for frame in folder.reader.frames(1 << 30)]
    assert {header["t"] for header, _ in frames} == {"log"}
    assert b"".join(body for _, body in frames) == (b"one\n" + bytes(2 * MIB) + b"two\n").ljust(3 * MIB, b"\0")


def test_what_cannot_be_recorded_is_not_freed(tmp_path: Path) -> None:
    folder = Folder(tmp_path, MIB)
    folder.write(expected(0, 4 * MIB))
    assert folder.space.tend(1.0, lambda: False) == ""
    assert folder.space.punched == {}
    assert (tmp_path / "agent.out").read_bytes() == expected(0, 4 * MIB)
    folder.space.tend(9.0, folder.record)
    assert folder.blocks() <= MIB


def test_a_file_system_that_cannot_punch_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, _: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)

    monkeypatch.setattr(logspace, "punch", refuse)
    folder = Folder(tmp_path, MIB)
    folder.write(expected(0, 4 * MIB))
    assert "cannot be freed on this file system" in folder.space.tend(1.0, folder.record)
    assert folder.space.tend(100.0, folder.record) == ""
    status = runfolder.read_status(str(tmp_path))
    assert status is not None
    assert status["punched"] == {"agent.out": 0}
    assert folder.space.next_look == float("inf")


def test_on_a_small_disk_logs_take_half_of_what_is_there_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Disk:
        f_blocks, f_bavail, f_frsize = 1000, 0, 4096

    folder = Folder(tmp_path, 1 << 40)
    folder.write(expected(0, 4 * MIB))
    monkeypatch.setattr(os, "statvfs", lambda _: Disk)
    folder.space.tend(1.0, folder.record)
    assert MIB <= folder.blocks() <= 2 * MIB


def test_without_bound_nobody_looks(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 0)
    folder.write(expected(0, 4 * MIB))
    assert folder.space.tend(1.0, folder.record) == ""
    assert folder.records == 0
    assert folder.space.next_look == float("inf")


def test_a_busy_file_is_looked_at_sooner(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 4 * MIB)
    folder.space.tend(1.0, folder.record)
    assert folder.space.next_look == 1.0 + logspace.LOOK_S
    folder.write(expected(0, 2 * MIB))
    folder.space.tend(1.0 + logspace.LOOK_S, folder.record)
    assert folder.space.next_look < 1.0 + 1.5 * logspace.LOOK_S


def test_who_wrote_fast_is_looked_at_soon_though_it_was_kept_waiting_for_a_moment(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 4 * MIB)
    folder.space.tend(1.0, folder.record)
    folder.write(expected(0, 3 * MIB))
    looks = [folder.space.next_look]
    folder.space.tend(looks[-1], folder.record)
    while folder.space.next_look - looks[-1] < logspace.LOOK_S:
        looks.append(folder.space.next_look)
        folder.space.tend(looks[-1], folder.record)
    pauses = [later - sooner for sooner, later in itertools.pairwise(looks)]
    assert pauses[0] < logspace.LOOK_S / 10
    assert pauses[1] < logspace.LOOK_S / 5
    assert pauses == sorted(pauses)


def test_every_byte_is_right_or_told_while_all_three_race(tmp_path: Path) -> None:
    folder = Folder(tmp_path, MIB)
    total = 96 * MIB
    over = threading.Event()

    def write() -> None:
        block = 1 << 20
        with (tmp_path / "agent.out").open("ab", buffering=0) as file:
            for offset in range(0, total, block):
                file.write(expected(offset, block))

    def tend() -> None:
        while not over.is_set():
            folder.space.tend(time.monotonic(), folder.record)
            folder.space.next_look = 0.0

    threads = [threading.Thread(target=write), threading.Thread(target=tend)]
    for thread in threads:
        thread.start()
    place = told = 0
    try:
        while place < total:
            for header, body in folder.reader.frames(1 << 20):
                if header["t"] == "gap":
                    assert header["from"] == place
                    told, place = told + header["to"] - place, header["to"]
                else:
                    assert (header["o"], body) == (place, expected(place, len(body)))
                    place += len(body)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert folder.blocks() <= 2 * MIB
    print(f"{told / MIB:.0f} of {total / MIB:.0f} MiB were dropped")


def test_an_order_to_go_back_sends_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 0)
    folder.write(b"one\ntwo\n")
    assert [body for _, body in folder.reader.frames(1 << 20)] == [b"one\ntwo\n"]
    folder.reader.go_back({"agent.out": 4})
    assert list(folder.reader.frames(1 << 20)) == [({"t": "log", "f": "agent.out", "o": 4}, b"two\n")]


def test_what_is_gone_holds_nothing(tmp_path: Path) -> None:
    assert held_bytes({"0.out": str(tmp_path / "none")}, {}) == {}
