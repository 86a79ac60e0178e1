"""Files from one node's disk to others', in pieces: memory stays bounded, and a failure leaves nobody waiting."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import torch
import torch.distributed as torch_distributed

from orchestrator.distributed import wire

PIECE = 16 * 2**20
"""Bytes that travel at a time."""
BEAT = 2**30
"""After so many bytes all ranks meet: those with no share in it would else wait longer than the group allows."""


@dataclass(frozen=True)
class Way:
    """One rank's place on the way of files: who reads them, who hands them on, who keeps them; empty for who waits."""

    source: Path | None = None
    """The folder that the first rank reads from."""
    before: int | None = None
    """The rank that hands the bytes to this one; None for the first."""
    after: int | None = None
    """The rank that gets them next; None for the last."""
    target: Path | None = None
    """The folder that this rank writes into."""


def pass_files(files: Iterable[tuple[str, int]], way: Way, beat: Callable[[], object]) -> None:
    """Pass files of known sizes along the way; every rank calls this with the same files, also one that only waits.

    A rank that cannot read or write goes on passing bytes: the others would wait for them. Each file ends with a word
    on whether its bytes are good, and with their checksum.

    Raises:
        OSError: a file could not be read, written, or did not arrive as it was sent.
    """
    failure: OSError | None = None
    buffer = memoryview(bytearray(PIECE))
    passed = 0
    for name, size in files:
        file = _Passing(name, way)
        for start in range(0, size, PIECE):
            piece = buffer[: min(PIECE, size - start)]
            file.take(piece)
            file.give(piece)
            passed += len(piece)
            if passed >= BEAT:
                passed = 0
                beat()
        file.end()
        failure = failure or file.failure
    if failure is not None:
        raise failure


class _Passing:
    """One file as it passes through this rank; what goes wrong is kept, the bytes go on."""

    def __init__(self, name: str, way: Way) -> None:
        self.failure: OSError | None = None
        self._name, self._way = name, way
        self._checksum = 0
        self._source = self._open(way.source, "rb")
        self._target = self._open(way.target, "wb")

    def _open(self, folder: Path | None, mode: str) -> FileIO | None:
        try:
            return None if folder is None else FileIO(os.fspath(folder / self._name), mode)
        except OSError as error:
            self.failure = error
            return None

    def take(self, piece: memoryview) -> None:
        """Fill a piece from the rank before, or from the disk."""
        if self._way.before is not None:
            _receive(piece, self._way.before)
        elif self._source is not None and self.failure is None:
            try:
                done = 0
                while done < len(piece):
                    count = self._source.readinto(piece[done:])
                    if not count:
                        raise OSError(f"{self._name} ended early: it became shorter while it was read")  # noqa: TRY301 - told as what the disk tells
                    done += count
            except OSError as error:
                self.failure = error

    def give(self, piece: memoryview) -> None:
        """Hand a piece to the rank after, and to the disk."""
        if self._way.after is not None:
            _send(piece, self._way.after)
        if self._way.before is not None or self._way.source is not None:
            self._checksum = zlib.crc32(piece, self._checksum)
        if self._target is not None and self.failure is None:
            try:
                done = 0
                while done < len(piece):
                    done += self._target.write(piece[done:])
            except OSError as error:
                self.failure = error

    def end(self) -> None:
        """Bring the file to the disk, compare the checksum with the first rank's and hand that on."""
        try:
            if self._target is not None and self.failure is None:
                os.fsync(self._target.fileno())
        except OSError as error:
            self.failure = error
        for file in (self._source, self._target):
            if file is not None:
                file.close()
        word = torch.tensor([int(self.failure is None), self._checksum], dtype=torch.int64, device=wire.carrier())
        if self._way.before is not None:
            torch_distributed.recv(word, src=self._way.before)
        if self._way.after is not None:
            torch_distributed.send(word, dst=self._way.after)
        is_good, checksum = word.tolist()
        if self.failure is None and not is_good:
            self.failure = OSError(f"{self._name} could not be read where it came from")
        if self.failure is None and checksum != self._checksum:
            self.failure = OSError(f"{self._name} did not arrive as it was sent: its checksum differs")


def _send(piece: memoryview, rank: int) -> None:
    torch_distributed.send(torch.frombuffer(piece, dtype=torch.uint8).to(wire.carrier()), dst=rank)


def _receive(piece: memoryview, rank: int) -> None:
    tensor = torch.frombuffer(piece, dtype=torch.uint8)
    there = tensor.to(wire.carrier())
    torch_distributed.recv(there, src=rank)
    if there is not tensor:
        tensor.copy_(there)
