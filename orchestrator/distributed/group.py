"""The group that all ranks join, and this process's membership in it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from orchestrator.distributed import exits, wire
from orchestrator.distributed.backends import TIMEOUT, Timeout, choose_backend, read_timeout
from orchestrator.distributed.errors import DistributedError
from orchestrator.distributed.place import (
    NodeInfo,
    Start,
    build_info,
    build_word,
    check_backends,
    find_device,
    read_start,
)

_LEAVING = timedelta(seconds=10)
"""How long rank 0 keeps the store for those who are on their way out."""


@dataclass(frozen=True)
class Membership:
    """What this process knows of the group that it is in."""

    info: NodeInfo
    timeout: timedelta
    store: Any
    """The ranks' common store, under a prefix of this library's own; None in a world of one without a group."""
    counts: dict[str, int] = field(default_factory=dict)
    """How often each kind of meeting has been held."""
    pid: int = field(default_factory=os.getpid)
    """The process that joined: a child of it has no place of its own."""

    def count(self, kind: str) -> int:
        """Give the number of the next meeting of a kind, from 1."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return self.counts[kind]


_current: Membership | None = None
_given_up = False
"""After a failure torch's group stands, but nobody can rely on the others in it."""
_groups = 0
"""Groups so far: an agent's store outlives them, and keys of an earlier one must not be taken for those of the next."""


def setup(backend: str | None = None, timeout: Timeout = None, *, single_process: bool = False) -> NodeInfo:
    """Join the group that torchrun or aorta-launch describes in the environment.

    A second call gives the same again; a group that torch's init_process_group has made is taken over.

    Args:
        backend: nccl, gloo, mpi; None takes nccl where this rank has a GPU, else gloo. RCCL on ROCm answers to nccl.
        timeout: Seconds (or a timedelta) after which a collective that others do not join is an error; 10 minutes.
        single_process: A process that nobody started as a rank is a world of one instead of an error.

    Raises:
        DistributedError: variables of a rank are missing or wrong, the backend is not to be had, no GPU for this rank,
            the group did not come together in time, or there is a group of another backend already.
    """
    global _current  # noqa: PLW0603 - a process is in one group, as torch's own default group
    limit = read_timeout(timeout)
    if find_current() is not None or _torch_has_group():
        info = current().info
        if backend not in (None, info.backend):
            has = info.backend or "a world of one without a group"
            raise DistributedError(f"setup({backend!r}): this process is in a group already: {has}")
        return info
    start = read_start()
    if start is None and not single_process:
        raise DistributedError(
            "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not set: start the script with aorta-launch or torchrun; "
            "setup(single_process=True) asks for a world of one"
        )
    name = choose_backend(backend, has_gpu=torch.cuda.is_available())
    # Gloo and MPI were asked for on a node with GPUs: then the CPU is meant.
    on_gpu = torch.cuda.is_available() and name == "nccl"
    if start is None:
        alone = Start(rank=0, world_size=1, local_rank=0, node_rank=0)
        info = build_info(alone, [build_word(alone)], _take_device(0, on_gpu=on_gpu), "")
        _current = Membership(info=info, timeout=limit, store=None)
    else:
        if start.local_rank is not None:
            # Told before anybody waits for this rank.
            _take_device(start.local_rank, on_gpu=on_gpu)
        _current = _join(start, name, limit)
    exits.watch_exit()
    return _current.info


def _take_device(local_rank: int, *, on_gpu: bool) -> torch.device:
    if not on_gpu:
        return torch.device("cpu")
    device = find_device(local_rank)
    torch.cuda.set_device(device)
    return device


def _join(start: Start, name: str, limit: timedelta) -> Membership:
    global _groups  # noqa: PLW0603 - they are counted over the life of the process
    _groups += 1
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        if name == "mpi":
            return _join_mpi(start, limit)
        store, rank, world_size = next(rendezvous("env://", timeout=limit))
        store.set_timeout(limit)
        own = PrefixStore(f"aorta{_groups}", store)
        # By the store, not by a collective: a rank that was not told its local rank learns its GPU from this.
        words = wire.gather_by_store(own, rank, world_size, build_word(start, name))
        check_backends(words)
        info = build_info(start, words, torch.device("cpu"), name)
        if name == "nccl":
            info = replace(info, device=_take_device(info.local_rank, on_gpu=True))
        torch_distributed.init_process_group(
            # Tensors on the CPU travel too: flags and objects need no GPU.
            "cpu:gloo,cuda:nccl" if name == "nccl" else name,
            store=PrefixStore(f"group{_groups}", store),
            rank=rank,
            world_size=world_size,
            timeout=limit,
            device_id=info.device if name == "nccl" else None,
        )
    except DistributedError:
        raise
    except (RuntimeError, ValueError) as error:
        raise DistributedError(
            f"rank {start.rank} on {socket.gethostname()} did not come together with the {start.world_size} ranks at "
            f"{where}: {error}"
        ) from error
    return Membership(info=info, timeout=limit, store=own)


def _join_mpi(start: Start, limit: timedelta) -> Membership:
    # MPI brings its ranks together by itself and counts them by itself.
    torch_distributed.init_process_group("mpi")
    start = replace(start, rank=torch_distributed.get_rank(), world_size=torch_distributed.get_world_size())
    words = wire.gather_all(build_word(start), start.world_size)
    return Membership(info=build_info(start, words, torch.device("cpu"), "mpi"), timeout=limit, store=None)


def _torch_has_group() -> bool:
    return bool(torch_distributed.is_available() and torch_distributed.is_initialized())


def find_current() -> Membership | None:
    """Find this process's membership; one whose group the script has destroyed by torch's own means is none."""
    global _current  # noqa: PLW0603 - as in setup
    if _current is not None and _current.info.backend and not _torch_has_group():
        _current = None
    return _current


def current() -> Membership:
    """Give this process's membership; a group that the script joined by torch's own means counts.

    Raises:
        DistributedError: there is no group.
    """
    global _current, _given_up  # noqa: PLW0603 - as in setup
    found = find_current()
    if found is not None:
        return found
    if not _torch_has_group():
        _given_up = False
        raise DistributedError("there is no group yet, or no longer: call setup() first, or use distributed()")
    if _given_up:
        raise DistributedError("this process left its group after a failure: only a new process can join again")
    _current = _adopt()
    exits.watch_exit()
    return _current


def _adopt() -> Membership:
    global _groups  # noqa: PLW0603 - as in _join
    _groups += 1
    rank, world_size = torch_distributed.get_rank(), torch_distributed.get_world_size()
    told = read_start()
    start = Start(rank, world_size, told.local_rank if told else None, told.node_rank if told else None)
    # Whoever asks for its place need not be joined by the others: the words travel by the store, not by a collective.
    store = PrefixStore(f"aorta{_groups}", torch_distributed.distributed_c10d._get_default_store())  # noqa: SLF001 - torch has no public way to the store of a group that somebody else made
    try:
        words = wire.gather_by_store(store, rank, world_size, build_word(start))
    except RuntimeError as error:
        raise DistributedError(
            f"rank {rank} did not hear from all {world_size} ranks where they are: in a group that setup() did not make "
            f"each has to ask once: {error}"
        ) from error
    on_gpu = "nccl" in str(torch_distributed.get_backend_config())
    info = build_info(start, words, torch.device("cpu"), "nccl" if on_gpu else str(torch_distributed.get_backend()))
    if on_gpu:
        info = replace(info, device=find_device(info.local_rank))
    return Membership(info=info, timeout=TIMEOUT, store=store)


def cleanup() -> None:
    """Wait until every rank has come this far, then leave the group; without a group nothing happens.

    Raises:
        DistributedError: ranks did not come within the group's timeout; they are named.
    """
    from orchestrator.distributed import stop, waiting  # noqa: PLC0415 - they build on this module

    global _current  # noqa: PLW0603 - as in setup
    member = find_current()
    if member is None:
        return
    if member.info.world_size > 1:
        try:
            stop.finish(member)
            # Nobody leaves while another still talks to it.
            waiting.barrier()
            waiting.leave(member, _LEAVING)
        except BaseException:
            # NCCL's own farewell can wait for a dead peer for ever: no word of this failure would come out.
            forget()
            raise
    _current = None
    if _torch_has_group():
        with exits.bounded("leaving the group"):
            torch_distributed.destroy_process_group()
    exits.rest()


def forget() -> None:
    """Give the membership up without a word to the others: what is left after a failure."""
    global _current, _given_up  # noqa: PLW0603 - as in setup
    _given_up = _torch_has_group()
    _current = None


def find_rank() -> int:
    """Give this process's rank without asking anybody.

    Raises:
        DistributedError: there is no group.
    """
    if find_current() is None and _torch_has_group():
        return int(torch_distributed.get_rank())
    return current().info.rank
