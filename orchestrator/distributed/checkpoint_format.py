"""Torch's own format for checkpoints of many ranks, its stages driven one by one.

Torch's save and load gather objects between ranks in a way that needs NumPy, which a node may lack, and do so between
all stages at once. The planners, writers and readers are public, and between them it is said here what went wrong.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

METADATA = ".metadata"


class Writer:
    """One rank's share of writing a checkpoint; main is where the shares are planned and closed."""

    def __init__(self, folder: Path, flat: dict[str, Any], *, is_main: bool) -> None:
        self._folder = folder
        # The names are made flat already; what a planner would flatten are our plain values.
        self._planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._storage = FileSystemWriter(folder, sync_files=True)
        self._storage.set_up_storage_writer(is_main)
        self._planner.set_up_planner(flat, storage_meta=self._storage.storage_meta(), is_coordinator=is_main)
        self.local_plan: SavePlan = self._storage.prepare_local_plan(self._planner.create_local_plan())

    def plan_all(self, plans: Sequence[SavePlan], near: Sequence[bool]) -> tuple[list[SavePlan], Metadata]:
        """Plan who writes what, on the main process; near ranks write on the main process's own disk."""
        shared, metadata = self._planner.create_global_plan(prefer_near(plans, near))
        return self._storage.prepare_global_plan(shared), metadata

    def write(self, plan: SavePlan) -> tuple[list[Any], dict[str, int]]:
        """Write this rank's share to the disk; give torch's results and the sizes of the files in bytes."""
        if not plan.items:
            return [], {}
        future = self._storage.write_data(self._planner.finish_plan(plan), self._planner)
        future.wait()
        results = future.value()
        names = sorted({result.storage_data.relative_path for result in results})
        return results, {name: (self._folder / name).stat().st_size for name in names}

    def finish(self, metadata: Metadata, results: Sequence[list[Any]]) -> None:
        """Write what tells where each tensor lies, on the main process, when all shares are in its folder."""
        self._storage.finish(metadata, list(results))
        with (self._folder / METADATA).open("rb") as file:
            os.fsync(file.fileno())


def prefer_near(plans: Sequence[SavePlan], near: Sequence[bool]) -> list[SavePlan]:
    """Leave to the near ranks what they have too: replicas need not travel to the main process's disk."""
    there = {item.index for plan, is_near in zip(plans, near) if is_near for item in plan.items}
    return [
        plan if is_near else dataclasses.replace(plan, items=[item for item in plan.items if item.index not in there])
        for plan, is_near in zip(plans, near)
    ]


class Reader:
    """One rank's reading of a checkpoint that lies whole on its own node."""

    def __init__(self, folder: Path) -> None:
        self._storage = FileSystemReader(folder)
        self.metadata: Metadata = self._storage.read_metadata()

    def read(self, flat: dict[str, Any]) -> None:
        """Read into the tensors of a flat dict and set its other values; each rank reads what it needs, no more."""
        if not flat:
            return
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(flat, self.metadata, is_coordinator=False)
        self._storage.set_up_storage_reader(self.metadata, is_coordinator=False)
        plan = self._storage.prepare_local_plan(planner.create_local_plan())
        self._storage.read_data(planner.finish_plan(plan), planner).wait()
