"""Ranks that wait for each other through the store: it names who is missing, and no watchdog of a GPU counts the time."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as torch_distributed

from orchestrator.distributed import group, wire
from orchestrator.distributed.backends import Timeout, read_timeout
from orchestrator.distributed.calls import find_site, note
from orchestrator.distributed.errors import DistributedError
from orchestrator.distributed.turns import turn

_NAMED = 8
"""As many ranks as an error names one by one."""
_SHORTEST_S, _LONGEST_S = 0.0002, 0.1
"""Between two looks into the store: a twentieth of what the wait has taken so far, within these."""
_PASSED = "passed"


def wait_for_keys(store: Any, keys: list[str], limit: timedelta) -> bool:
    """Wait until the store has all of some keys; False when the time ran out."""
    begin = time.monotonic()
    limit_s = limit.total_seconds()
    # Asked again and again: within one wait of torch's neither Ctrl-C nor a signal's handler gets its turn, nor another
    # thread the store, and each that runs out writes two lines to stderr.
    while not store.check(keys):
        waited_s = time.monotonic() - begin
        if waited_s >= limit_s:
            return False
        time.sleep(min(max(waited_s * 0.05, _SHORTEST_S), _LONGEST_S, limit_s - waited_s))
    return True


@contextlib.contextmanager
def _telling_loss(name: str, member: group.Membership) -> Iterator[None]:
    try:
        yield
    except torch_distributed.DistNetworkError as error:
        raise DistributedError(
            f"{name} at {find_site()}: rank {member.info.rank} lost the ranks' store, which is on rank 0's node: {error}"
        ) from error


def barrier(timeout: Timeout = None) -> None:
    """Wait until every rank has come here.

    Args:
        timeout: Seconds or a timedelta; None takes the group's.

    Raises:
        DistributedError: some did not come in time; it names them and their nodes.
    """
    member = group.current()
    info, store = member.info, member.store
    if info.world_size == 1:
        return
    limit = member.timeout if timeout is None else read_timeout(timeout)
    if store is None:
        # MPI alone has no store; it names nobody either.
        torch_distributed.barrier()
        return
    with turn(f"barrier at {find_site()}", member.pid), _telling_loss("barrier", member):
        _meet(member, limit)


def _meet(member: group.Membership, limit: timedelta) -> None:
    info, store = member.info, member.store
    number = member.count("barrier")
    note(member, f"barrier at {find_site()}")
    store.set(f"barrier/{number}/{info.rank}", "")
    end = f"barrier/{number}/all"
    if store.add(f"barrier/{number}/count", 1) == info.world_size:
        store.compare_set(end, "", _PASSED)
    if not wait_for_keys(store, [end], limit):
        # Whoever comes later does not pass alone: the first to give up, or the last to come, decides for all.
        store.compare_set(end, "", _tell_missing(member, number, limit))
    verdict = store.get(end).decode()
    if verdict != _PASSED:
        raise DistributedError(verdict)
    _clear(store, info.rank, number)


def _clear(store: Any, rank: int, number: int) -> None:
    # Whoever is here has left the one before; that one's marks nobody reads any more.
    with contextlib.suppress(RuntimeError):
        if number > 1:
            store.delete_key(f"barrier/{number - 1}/{rank}")
        if number > 2 and rank == 0:  # noqa: PLR2004 - the last may still read the one before
            store.delete_key(f"barrier/{number - 2}/count")
            store.delete_key(f"barrier/{number - 2}/all")


def leave(member: group.Membership, limit: timedelta) -> None:
    """Say that this rank needs the store no more; rank 0, whose process may keep it, waits for that from all, for a time."""
    info, store = member.info, member.store
    if store is None:
        return
    with contextlib.suppress(RuntimeError):
        if store.add("left", 1) == info.world_size:
            store.set("all_left", "")
        if info.rank == 0:
            wait_for_keys(store, ["all_left"], limit)


def _tell_missing(member: group.Membership, number: int, limit: timedelta) -> str:
    info, store = member.info, member.store
    missing = [rank for rank in range(info.world_size) if not store.check([f"barrier/{number}/{rank}"])]
    named = [f"rank {rank}{_on_host(store, rank)}" for rank in missing[:_NAMED]]
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return (
        f"barrier at {find_site()}: {', '.join(named)}{more} did not come within {limit.total_seconds():g} s "
        f"(rank {info.rank} on {info.host} gave up)"
    )


def _on_host(store: Any, rank: int) -> str:
    # What each said of itself when it joined.
    return f" on {wire.read_word(store, rank).host}" if store.check([f"word/{rank}"]) else ""


@contextlib.contextmanager
def main_process_first() -> Iterator[None]:
    """Let the main process run a block before all others do: downloads, a tokenizer, a cache on a shared disk.

    Raises:
        DistributedError: on the others, when the main process failed in it or took longer than the group's timeout.
    """
    with _first(kind="main", leader=0, is_leader=group.current().info.rank == 0):
        yield


@contextlib.contextmanager
def node_main_first() -> Iterator[None]:
    """Let the first rank of each node run a block before its neighbours do: what belongs on every node's own disk.

    Raises:
        DistributedError: on the neighbours, when the first failed in it or took longer than the group's timeout.
    """
    info = group.current().info
    with _first(kind=f"node {info.node_rank}", leader=info.rank - info.local_rank, is_leader=info.local_rank == 0):
        yield


@contextlib.contextmanager
def _first(*, kind: str, leader: int, is_leader: bool) -> Iterator[None]:
    member = group.current()
    store = member.store
    if member.info.world_size == 1:
        yield
        return
    if store is None:
        raise DistributedError("the ranks of an MPI group have no store to wait at: use barrier() around the block")
    key = f"first/{kind}/{member.count(kind)}"
    if not is_leader:
        with _telling_loss(f"waiting for rank {leader}", member):
            came = wait_for_keys(store, [key], member.timeout)
            failure = json.loads(store.get(key)) if came else "it took too long"
        if failure:
            limit = "" if came else f" (limit {member.timeout.total_seconds():g} s)"
            raise DistributedError(f"rank {leader} went first at {find_site()} and failed: {failure}{limit}")
        yield
        return
    failure = "it left without an end"
    try:
        yield
        failure = ""
    except BaseException as error:
        failure = f"{type(error).__name__}: {error}"
        raise
    finally:
        store.set(key, json.dumps(failure))
