"""Checkpoints of a run over many ranks and nodes: whole or not there, and found again whatever the disks."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from orchestrator.distributed import checkpoint_disk as on_disk
from orchestrator.distributed.checkpoint_agree import agree, do_on_main, gather_main
from orchestrator.distributed.checkpoint_disk import Whole
from orchestrator.distributed.checkpoint_format import Reader, Writer
from orchestrator.distributed.checkpoint_handout import Way, pass_files
from orchestrator.distributed.checkpoint_load import Finder, Looks, beat, telling_space
from orchestrator.distributed.checkpoint_lock import give_lock_back, take_lock
from orchestrator.distributed.checkpoint_nodes import Disks, find_disks
from orchestrator.distributed.checkpoint_parts import Loading, read_state
from orchestrator.distributed.errors import DistributedError
from orchestrator.distributed.group import current

LOG = logging.getLogger("orchestrator.distributed")


class Checkpointer:
    """Saves and loads the state of a run below one directory of every node, shared between the nodes or not.

    The constructor, save and load are collectives: every rank calls them, and an error of one is raised on all.

    Args:
        directory: Where the checkpoints lie; ~ is each node's own home. It is made if it is missing.
        keep: So many of the newest whole checkpoints stay.

    Raises:
        DistributedError: the directory cannot be written on some node, lies in the folder or the outputs of a run, or
            another live run saves there.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int = 3) -> None:
        self._keep = keep
        if not isinstance(directory, (str, os.PathLike)):
            raise DistributedError(f"the directory of checkpoints is a path, not {directory!r}")
        self._named = os.fspath(directory)
        self._folder = Path(os.path.abspath(os.path.expanduser(os.fspath(directory))))  # noqa: PTH100, PTH111 - a "~" of os.PathLike too
        agree(f"checkpoints in {self._named}", self._check)
        self._token = do_on_main("name the saves", lambda: uuid4().hex[:12])
        self._disks: Disks = find_disks(self._named, self._folder, self._token)
        self._leads = current().info.rank in self._disks.leaders
        self._told: set[str] = set()
        self._count = 0
        locks: list[str] = []
        self._closer = weakref.finalize(self, _give_back, locks)
        self._wholes = self._look_together(
            f"checkpoints in {self._named}", lambda: locks.append(take_lock(self._folder))
        )

    def _check(self) -> None:
        if isinstance(self._keep, bool) or not isinstance(self._keep, int) or self._keep < 1:
            raise DistributedError(f"keep is {self._keep!r}: a whole number from 1, at least one checkpoint stays")
        if not self._named:
            raise DistributedError("the directory of checkpoints has no name")
        if os.path.expanduser(self._named).startswith("~"):  # noqa: PTH111 - as above
            raise DistributedError(f"nobody's home is known for {self._named}")
        on_disk.refuse_place(self._folder)

    def close(self) -> None:
        """Give the directory back to other runs; a save afterwards is not guarded."""
        self._closer()

    def steps(self) -> list[int]:
        """Give the steps of the whole checkpoints, the newest save last, as known since the last save or load."""
        known = {whole.step: whole.number for wholes in self._wholes for whole in wholes}
        return sorted(known, key=lambda step: (known[step], step))

    def save(self, step: int, parts: Mapping[str, Any]) -> None:
        """Save the parts' state as the checkpoint of a step; when it returns the checkpoint is whole and on the disk.

        Args:
            step: The step that is done, from 1; the same on all ranks.
            parts: By name: modules (plain, DDP, FSDP2), their optimizers, anything with state_dict and
                load_state_dict, and dicts of plain values and tensors. Of buffers, dicts and the like the main
                process's are kept.

        Raises:
            DistributedError: it could not be saved; older checkpoints stand as they were.
        """
        staging = self._next_staging()
        what = f"save step {step} in {self._named}"
        try:
            whole = self._write(what, step, parts, staging)
        except BaseException:
            if self._leads:
                on_disk.remove(staging)
            raise
        if self._leads:
            on_disk.remove(staging)  # the one of another disk than the main process's
            self._delete_older()
        self._remember(whole)

    def _next_staging(self) -> Path:
        # Named without the step, of which a rank may have a wrong idea.
        self._count += 1
        return self._folder / on_disk.staging_name(self._token, self._count)

    def _write(self, what: str, step: int, parts: Mapping[str, Any], staging: Path) -> Whole:
        info = current().info
        is_main = info.rank == 0

        made: list[Writer] = []

        def prepare() -> tuple[int, list[str]]:
            if isinstance(step, bool) or not isinstance(step, int) or step < 1:
                raise DistributedError(f"the step is {step!r}: steps are counted from 1")
            made.append(Writer(staging, read_state(parts, is_main=is_main), is_main=is_main))
            return step, sorted(parts)

        told = agree(what, prepare)
        if len({step for step, _ in told}) > 1:
            raise DistributedError(
                f"save in {self._named}: the ranks are not at one step: {[step for step, _ in told]}"
            )
        if any(names != told[0][1] for _, names in told):
            rank = next(rank for rank, (_, names) in enumerate(told) if names != told[0][1])
            raise DistributedError(f"{what}: rank 0 saves the parts {told[0][1]}, rank {rank} {told[rank][1]}")
        (writer,) = made
        plans = gather_main(writer.local_plan)
        near = [disk == 0 for disk in self._disks.disk_of_rank]
        all_plans, metadata = do_on_main(what, lambda: writer.plan_all(plans or [], near))
        results: list[Any] = []

        def write() -> dict[str, tuple[int, int]]:
            with telling_space(self._folder):
                mine, sizes = writer.write(all_plans[info.rank])
                told = {name: (size, on_disk.checksum(staging / name)) for name, size in sizes.items()}
            results.extend(mine)
            return told

        written = agree(what, write)
        all_results = gather_main(results)
        if len(self._disks.leaders) > 1:
            agree(what, lambda: self._gather(written, staging))

        def finish() -> Whole:
            with telling_space(self._folder):
                writer.finish(metadata, all_results or [])
                return self._commit(step, {name: told for some in written for name, told in some.items()}, staging)

        return do_on_main(what, finish)

    def _gather(self, written: list[dict[str, tuple[int, int]]], staging: Path) -> None:
        """Bring the files of the other disks to the main process's."""
        rank = current().info.rank
        for disk, leader in enumerate(self._disks.leaders):
            files = [(name, size) for one in self._disks.ranks_of(disk) for name, (size, _) in written[one].items()]
            if disk == 0:
                continue
            way = Way()
            if rank == leader:
                way = Way(source=staging, after=0)
            elif rank == 0:
                way = Way(before=leader, target=staging)
            with telling_space(self._folder):
                pass_files(files, way, beat)

    def _commit(self, step: int, written: dict[str, tuple[int, int]], staging: Path) -> Whole:
        """Make the folder a checkpoint: from the rename on it is one."""
        there = on_disk.list_files(staging)
        for name, (size, _) in written.items():
            if there.get(name) != size:
                raise DistributedError(
                    f"{name} was written with {size} bytes and has {there.get(name, 'none')} in {staging}"
                )
        whole = Whole(
            step=step,
            number=self._number + 1,
            token=f"{self._token}.{uuid4().hex[:8]}",
            world_size=current().info.world_size,
            time=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            torch=torch.__version__,
            files=tuple(there.items()),
            checksums=tuple(
                (name, written[name][1] if name in written else on_disk.checksum(staging / name)) for name in there
            ),
        )
        on_disk.write_record(staging, whole)
        on_disk.publish(staging, step, self._token)
        return whole

    def _delete_older(self) -> None:
        try:
            on_disk.delete_older(self._folder, self._keep)
        except OSError as error:
            LOG.warning("older checkpoints in %s could not be deleted: %s", self._folder, error)

    def _remember(self, new: Whole) -> None:
        """Fold a save into what is known of each disk, as delete_older() left it there."""
        self._number = new.number
        first = [whole for whole in self._wholes[0] if whole.step != new.step]
        self._wholes = [wholes[-self._keep :] for wholes in [(*first, new), *self._wholes[1:]]]

    def _look_together(self, what: str, before: Callable[[], object] = lambda: None) -> Looks:
        """Let the leader of each disk look, tell aloud of what is passed over; the same on all ranks."""

        def look() -> tuple[tuple[Whole, ...], list[str]] | None:
            if not self._leads:
                return None
            before()
            on_disk.recover(self._folder)
            wholes, complaints = on_disk.find_wholes(self._folder)
            for complaint in complaints:
                if complaint not in self._told:
                    LOG.warning("%s: it is passed over", complaint)
            self._told.update(complaints)
            return tuple(wholes), complaints

        looks = agree(what, look)
        found = [look[0] for look in looks if look is not None]
        self._complaints = [complaint for look in looks if look is not None for complaint in look[1]]
        # What is passed over later still counts here: the next save has to be newer than that too.
        self._number = max((whole.number for wholes in found for whole in wholes), default=0)
        return [look[0] for look in (looks[leader] for leader in self._disks.leaders) if look is not None]

    def load(self, parts: Mapping[str, Any]) -> int:
        """Load the newest whole checkpoint that any node has into the parts, on any number of ranks; give its step.

        Nodes that lack it get its files from one that has it. One whose bytes are damaged is passed over, aloud: for
        another node's copy, then for the one before. Without a checkpoint nothing is touched, and 0 is given.

        Raises:
            DistributedError: none of those that are there could be read or handed out, or the parts are not those that
                were saved; parts may then be loaded in part, and must not be trained on.
        """
        what = f"load from {self._named}"
        self._wholes = self._look_together(what)
        if self._complaints and not any(self._wholes):
            # To begin anew, and to save over them, is not what anybody wants who comes with checkpoints.
            raise DistributedError(
                f"{what}: there are checkpoints, but none that is whole: {'; '.join(self._complaints)}. Bring a whole one "
                "back, move them away, or name another directory"
            )

        def read(folder: Path) -> None:
            reader = Reader(folder)
            Loading(parts, reader.metadata, reader.read).load()

        finder = Finder(self._named, self._folder, self._token, self._disks, self._next_staging)
        step, self._wholes = finder.load_newest(self._wholes, read)
        return step


def _give_back(locks: list[str]) -> None:
    while locks:
        give_lock_back(locks.pop())
