"""Steps that all ranks take together: each does its share, then all know whether all could."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as torch_distributed

from orchestrator.distributed import wire
from orchestrator.distributed.errors import DistributedError
from orchestrator.distributed.group import Membership, current
from orchestrator.distributed.turns import turn

T = TypeVar("T")
PATIENCE = timedelta(hours=4)
"""What a share of a save or load may take longer on one rank than on another."""
_patient: list[tuple[Membership, Any]] = []
SHOWN = 3
"""So many ranks' errors are told in full."""


def find_patient() -> Any:
    """Find the group over which ranks wait for those that still write, made at the first call, a collective.

    A share of a save takes what a slow disk takes; the group of the training would give up, and end the run at its first
    checkpoint. A rank that dies is noticed at once all the same: its connections close.
    """
    member = current()
    if not _patient or _patient[0][0] is not member:
        is_gloo = torch_distributed.is_gloo_available() and member.info.backend != "mpi"
        made = torch_distributed.new_group(backend="gloo", timeout=PATIENCE) if is_gloo else None
        _patient[:] = [(member, made)]
    return _patient[0][1]


@contextlib.contextmanager
def _telling(what: str) -> Iterator[None]:
    try:
        with turn(what, current().pid):
            yield
    except RuntimeError as error:
        if isinstance(error, DistributedError):
            raise
        raise DistributedError(f"{what}: rank {current().info.rank} lost the others: {error}") from error


def gather_all(thing: T, what: str = "checkpoints") -> list[T]:
    """Gather an object of every rank on every rank; alone, without a group, too."""
    world_size = current().info.world_size
    if world_size == 1:
        return [thing]
    with _telling(what):
        return wire.gather_all(thing, world_size, find_patient())


def gather_main(thing: T) -> list[T] | None:
    """Gather an object of every rank on the main process; None on the others."""
    info = current().info
    if info.world_size == 1:
        return [thing]
    with _telling("checkpoints"):
        return wire.gather_to(thing, info.world_size, info.rank, 0, find_patient())


def agree(what: str, work: Callable[[], T]) -> list[T]:
    """Do this rank's share, then give what every rank's share gave, in rank order.

    Raises:
        DistributedError: on all ranks, when one of them failed; it names the ranks, their nodes and their errors.
    """
    value, cause = _try(work)
    told = gather_all((value, None if cause is None else describe(cause)), what)
    errors = {rank: error for rank, (_, error) in enumerate(told) if error is not None}
    if errors:
        raise DistributedError(f"{what}: {_render(errors)}") from cause
    return [value for value, _ in told]


def do_on_main(what: str, work: Callable[[], T]) -> T:
    """Let the main process do something, give its value on all ranks.

    Raises:
        DistributedError: on all ranks, when it failed.
    """
    info = current().info
    value, cause = _try(work) if info.rank == 0 else (None, None)
    mine = (value, None if cause is None else describe(cause))
    told: Any = mine
    if info.world_size > 1:
        with _telling(what):
            told = wire.send_out(mine, info.rank, 0, find_patient())
    if told[1] is not None:
        raise DistributedError(f"{what}: {_render({0: told[1]})}") from cause
    return told[0]  # type: ignore[no-any-return]


def _try(work: Callable[[], T]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks wait to hear of it
        return None, error


def describe(error: Exception) -> tuple[str, str]:
    """Tell an error in one line, with the node on which it came up."""
    host = current().info.host
    if isinstance(error, DistributedError):
        return host, str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return host, f"{where}{error.strerror}"
    return host, f"{type(error).__name__}: {' '.join(str(error).split())}"


def _render(errors: dict[int, tuple[str, str]]) -> str:
    told: dict[tuple[str, str], list[int]] = {}
    for rank, error in errors.items():
        told.setdefault(error, []).append(rank)
    lines = [
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} on {host}: {text}"
        for (host, text), ranks in list(told.items())[:SHOWN]
    ]
    more = len(told) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more > 0 else "")
