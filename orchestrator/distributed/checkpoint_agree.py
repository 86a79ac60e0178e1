"""Steps that all ranks take together: each does its share, then all know whether all could."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from orchestrator.distributed import wire
from orchestrator.distributed.errors import DistributedError
from orchestrator.distributed.group import current

T = TypeVar("T")
SHOWN = 3
"""So many ranks' errors are told in full."""


def gather_all(thing: T) -> list[T]:
    """Gather an object of every rank on every rank; alone, without a group, too."""
    world_size = current().info.world_size
    return [thing] if world_size == 1 else wire.gather_all(thing, world_size)


def gather_main(thing: T) -> list[T] | None:
    """Gather an object of every rank on the main process; None on the others."""
    info = current().info
    return [thing] if info.world_size == 1 else wire.gather_to(thing, info.world_size, info.rank, 0)


def agree(what: str, work: Callable[[], T]) -> list[T]:
    """Do this rank's share, then give what every rank's share gave, in rank order.

    Raises:
        DistributedError: on all ranks, when one of them failed; it names the ranks, their nodes and their errors.
    """
    value, cause = _try(work)
    told = gather_all((value, None if cause is None else describe(cause)))
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
    told: Any = mine if info.world_size == 1 else wire.send_out(mine, info.rank, 0)
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
