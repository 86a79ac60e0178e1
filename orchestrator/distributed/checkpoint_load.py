"""Loads the newest checkpoint that can be read: from each node's own disk, handed out to those that lack it."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator.distributed import checkpoint_disk as on_disk
from orchestrator.distributed.checkpoint_agree import agree, describe, gather_all
from orchestrator.distributed.checkpoint_disk import NotWholeError, Whole
from orchestrator.distributed.checkpoint_handout import Way, pass_files
from orchestrator.distributed.checkpoint_nodes import Disks
from orchestrator.distributed.errors import DistributedError
from orchestrator.distributed.group import current

LOG = logging.getLogger("orchestrator.distributed")
Looks = list[tuple[Whole, ...]]
"""The whole checkpoints of each disk, oldest save first."""


@contextlib.contextmanager
def telling_space(folder: Path) -> Iterator[None]:
    """Say with an error of writing how much space there is: torch's own words for a full disk are of offsets."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        _, text = describe(error)
        raise DistributedError(f"{text} ({on_disk.render_free(folder)})") from error


def beat() -> None:
    """Meet all ranks: those that only wait would else wait longer than the group allows."""
    gather_all(None)


@dataclass(frozen=True)
class Finder:
    """One run's way to its checkpoints; its methods are collectives."""

    named: str
    """The directory as the script names it."""
    folder: Path
    token: str
    disks: Disks
    next_staging: Callable[[], Path]
    """Names a folder that no save or load of this run has written in; the same on all ranks."""

    def load_newest(self, wholes: Looks, read: Callable[[Path], None]) -> tuple[int, Looks]:
        """Let every rank read the newest checkpoint that all can; give its step, 0 when there is none, and what is left.

        Raises:
            DistributedError: there are some, but none that can be read.
        """
        handed: set[Whole] = set()
        first_trouble = ""
        while True:
            newest = max(
                (whole for some in wholes for whole in some),
                key=lambda whole: (whole.number, whole.step, whole.token),
                default=None,
            )
            if newest is None:
                if first_trouble:
                    raise DistributedError(first_trouble)
                return 0, wholes
            has = [newest in some for some in wholes]
            if not all(has):
                handed.add(newest)
                staging = self.next_staging()
                agree(f"hand out step {newest.step} in {self.named}", partial(self._hand_out, newest, has, staging))
            troubles = self._read(newest, read)
            if not troubles:
                return newest.step, wholes
            first_trouble = first_trouble or f"load step {newest.step} from {self.named}: {troubles[min(troubles)]}"
            bad = {self.disks.disk_of_rank[rank] for rank in troubles}
            if newest in handed:
                # The copies that were handed out can be read no better: the bytes were bad before.
                bad = set(range(len(wholes)))
            if current().info.rank == 0:
                LOG.warning("step %d in %s is passed over: %s", newest.step, self.named, "; ".join(troubles.values()))
            wholes = [
                tuple(whole for whole in some if whole != newest) if disk in bad else some
                for disk, some in enumerate(wholes)
            ]

    def _read(self, newest: Whole, read: Callable[[Path], None]) -> dict[int, str]:
        """Read it on every rank; give by rank where the bytes on a disk are others than those that were written.

        Raises:
            DistributedError: it cannot be read now, or is of other parts: an older one would be no better.
        """
        folder = self.folder / on_disk.step_name(newest.step)

        rank = current().info.rank
        near = self.disks.ranks_of(self.disks.disk_of_rank[rank])
        place = near.index(rank)

        def compare() -> str:
            try:
                # The files of a disk are shared out among the ranks that see it.
                on_disk.check_bytes(folder, newest.checksums[place :: len(near)])
            except NotWholeError as error:
                return f"rank {rank} on {current().info.host}: {error}"
            return ""

        what = f"load step {newest.step} from {self.named}"
        told = agree(what, compare)
        if not any(told):
            agree(what, lambda: read(folder))
        return {rank: text for rank, text in enumerate(told) if text}

    def _hand_out(self, newest: Whole, has: list[bool], staging: Path) -> None:
        """Pass the files from a disk that has them along all that lack them, each handing on what it gets."""
        leaders = self.disks.leaders
        way = [leaders[has.index(True)], *(leader for leader, there in zip(leaders, has) if not there)]
        rank = current().info.rank
        if rank not in way:
            pass_files(newest.files, Way(), beat)
            return
        place = way.index(rank)
        before = way[place - 1] if place else None
        after = way[place + 1] if place + 1 < len(way) else None
        if before is None:
            source = self.folder / on_disk.step_name(newest.step)
            pass_files(newest.files, Way(source=source, after=after), beat)
            return
        try:
            self._take(newest, staging, before, after)
            on_disk.publish(staging, newest.step, self.token)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _take(self, newest: Whole, staging: Path, before: int, after: int | None) -> None:
        made: Exception | None = None
        try:
            staging.mkdir()
        except OSError as error:
            made = error
        with telling_space(self.folder):
            target = staging if made is None else None
            pass_files(newest.files, Way(before=before, after=after, target=target), beat)
            if made is not None:
                raise made
            on_disk.write_record(staging, newest)
