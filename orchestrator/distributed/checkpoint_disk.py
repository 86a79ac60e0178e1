"""Checkpoints on one disk: their names, what makes one whole, how it appears and disappears at once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.distributed.errors import DistributedError

RECORD = "whole.json"
"""The last file that a checkpoint gets: what it lists is there, or the folder is no checkpoint."""
STEP_NAME = re.compile(r"step_(\d{8,})")
SAVING, REPLACED, DELETED, SEEN = ".saving_", ".replaced_", ".deleted_", ".seen_"
PIECE = 2**20
OLD_S = 86400.0
"""Left token files go after a day: a run that starts at this moment may still be looking at the young ones."""


@dataclass(frozen=True)
class Whole:
    """A checkpoint that is complete on a disk, as its record tells."""

    step: int
    number: int
    """Counts the saves of a directory: the highest is the newest, whatever the clocks of the nodes say."""
    token: str
    """Names the save: two nodes that hold the same step of different runs do not hold the same checkpoint."""
    world_size: int
    time: str
    torch: str
    files: tuple[tuple[str, int], ...]
    """Name and size in bytes of each, the record aside."""
    checksums: tuple[tuple[str, int], ...] = ()
    """Name and CRC-32 of each: a disk that gives back other bytes than it got says nothing of it."""


class NotWholeError(Exception):
    """A folder named like a checkpoint is none; the text says why."""


def step_name(step: int) -> str:
    """Name the folder of a step."""
    return f"step_{step:08d}"


def staging_name(token: str, count: int) -> str:
    """Name the folder in which a run writes one of its checkpoints until it is whole."""
    return f"{SAVING}{token}.{count}"


def list_files(folder: Path) -> dict[str, int]:
    """Give the size in bytes of every file of a checkpoint's folder, the record aside."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != RECORD}


def checksum(path: Path) -> int:
    """Compute a file's CRC-32."""
    number = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            number = zlib.crc32(piece, number)
    return number


def check_bytes(folder: Path, checksums: Iterable[tuple[str, int]]) -> None:
    """Compare files with their checksums.

    Raises:
        NotWholeError: the bytes of one are others than those that were written.
        OSError: one cannot be read.
    """
    for name, number in checksums:
        if checksum(folder / name) != number:
            raise NotWholeError(f"{folder / name} holds other bytes than were written")


def write_record(folder: Path, whole: Whole) -> None:
    """Write the record of a complete folder, down to the disk."""
    words: dict[str, Any] = {"schema": 1, "step": whole.step, "number": whole.number, "token": whole.token}
    words |= {"world_size": whole.world_size, "time": whole.time, "torch": whole.torch, "files": dict(whole.files)}
    words["checksums"] = dict(whole.checksums)
    with (folder / RECORD).open("w", encoding="utf-8") as out:
        json.dump(words, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    sync_folder(folder)


def read_whole(folder: Path) -> Whole:
    """Read the record of a checkpoint and compare it with what is there.

    Raises:
        NotWholeError: no record, one that makes no sense, or a file that is missing or has another size.
        OSError: the disk does not answer.
    """
    try:
        words = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        files = tuple((str(name), int(size)) for name, size in words["files"].items())
        whole = Whole(
            step=int(words["step"]),
            number=int(words["number"]),
            token=str(words["token"]),
            world_size=int(words["world_size"]),
            time=str(words["time"]),
            torch=str(words["torch"]),
            files=files,
            checksums=tuple((str(name), int(number)) for name, number in words.get("checksums", {}).items()),
        )
    except FileNotFoundError:
        raise NotWholeError(f"it has no {RECORD}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # A disk that does not answer now is no damage, and passes as it is.
        raise NotWholeError(f"its {RECORD} cannot be read ({error})") from None
    if folder.name != step_name(whole.step):
        raise NotWholeError(f"its {RECORD} is of step {whole.step}")
    for name, size in files:
        if Path(name).name != name:
            raise NotWholeError(f"its {RECORD} names {name!r}, which is no file of its own")
        try:
            found = (folder / name).stat().st_size
        except FileNotFoundError as error:
            raise NotWholeError(f"{name}: {error.strerror}") from None
        if found != size:
            raise NotWholeError(f"{name} has {found} bytes of {size}")
    return whole


def find_wholes(directory: Path) -> tuple[list[Whole], list[str]]:
    """Find the whole checkpoints of a directory, oldest first, and tell of each folder that is passed over and why."""
    wholes, complaints = [], []
    for path in sorted(directory.iterdir()):
        if STEP_NAME.fullmatch(path.name) and path.is_dir():
            try:
                wholes.append(read_whole(path))
            except NotWholeError as error:
                complaints.append(f"{path} is not whole: {error}")
    return sorted(wholes, key=lambda whole: (whole.number, whole.step)), complaints


def publish(staging: Path, step: int, token: str) -> None:
    """Let a complete staging folder stand as the checkpoint of its step, in place of an older one of that step."""
    directory = staging.parent
    target, aside = directory / step_name(step), directory / f"{REPLACED}{step_name(step)}.{token}"
    if target.exists():
        # Two renames: a death between them leaves the older one aside, and recover() puts it back.
        target.rename(aside)
    try:
        staging.rename(target)
    except OSError:
        if aside.exists():
            aside.rename(target)
        raise
    sync_folder(directory)
    if aside.exists():
        remove(aside)


def recover(directory: Path) -> None:
    """Clear away what dead saves left; to be called by whoever alone may write in the directory."""
    for path in sorted(directory.iterdir()):
        if path.name.startswith(REPLACED):
            target = directory / path.name[len(REPLACED) :].split(".")[0]
            if not target.exists():
                path.rename(target)
                continue
        if path.name.startswith((SAVING, DELETED, REPLACED)):
            remove(path)
        elif path.name.startswith(SEEN):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > OLD_S:
                    path.unlink()


def delete_older(directory: Path, keep: int) -> None:
    """Delete all but the newest whole checkpoints, and what was passed over among the older steps."""
    wholes, _ = find_wholes(directory)
    kept = wholes[-keep:]
    if not kept:
        return
    names = {step_name(whole.step) for whole in kept}
    whole_names = {step_name(whole.step) for whole in wholes}
    newest = kept[-1].step
    for path in sorted(directory.iterdir()):
        match = STEP_NAME.fullmatch(path.name)
        # A damaged folder of a later step may be all that somebody has of it.
        if match and path.name not in names and (path.name in whole_names or int(match[1]) < newest):
            # Renamed first: a death in the middle leaves no half of a checkpoint under a checkpoint's name.
            aside = directory / f"{DELETED}{path.name}"
            remove(aside)
            path.rename(aside)
            remove(aside)


def remove(path: Path) -> None:
    """Remove a folder as far as it can be removed; what stays is swept at the next start."""
    shutil.rmtree(path, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Bring a folder's entries to the disk, where the file system knows of such a thing."""
    place = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(place)
    finally:
        os.close(place)


def render_free(folder: Path) -> str:
    """Tell how much space is free where a folder lies; empty when nobody can say."""
    try:
        return f"{shutil.disk_usage(folder).free / 2**20:.0f} MiB are free in {folder}"
    except OSError:
        return ""


def refuse_place(directory: Path) -> None:
    """Refuse a directory that the run of this process would lose, by what the launcher says of the run.

    Raises:
        DistributedError: as check_place.
    """
    ours = Path("~/.aorta").expanduser()
    pushed = os.environ.get("AORTA_PUSHED")
    # A project that is a whole home holds ~/.aorta too, which no push touches.
    project = Path(pushed) if pushed and ours not in directory.parents else None
    check_place(directory, os.environ.get("AORTA_OUTPUT_DIR"), [ours / "runs"], project)


def check_place(directory: Path, outputs: str | None, runs: Iterable[Path], project: Path | None = None) -> None:
    """Refuse a directory that ends with the run, that is collected from the node, or that a push may clear.

    Raises:
        DistributedError: it lies in the outputs of the run, in the folder of a run, or in the pushed project.
    """
    if outputs and _is_inside(directory, Path(outputs)):
        raise DistributedError(f"it lies in the run's outputs ({outputs}), which are collected: choose one outside")
    for run in runs:
        if _is_inside(directory, run):
            raise DistributedError(f"it lies in the folder of a run ({run}), which goes with it: choose one outside")
    if project is not None and _is_inside(directory, project):
        raise DistributedError(f"it lies in the pushed project ({project}), which a push may clear: choose one outside")


def _is_inside(path: Path, folder: Path) -> bool:
    there = Path(os.path.realpath(path))
    root = Path(os.path.realpath(folder))
    return there == root or root in there.parents
