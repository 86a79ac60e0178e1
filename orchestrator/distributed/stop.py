"""A stop that all ranks hear at the same step, so that a checkpoint can be written and nobody waits for one who left."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

import torch
import torch.distributed as torch_distributed

from orchestrator.distributed import group, wire
from orchestrator.distributed.calls import collective
from orchestrator.distributed.errors import DistributedError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
AGAIN_S = 2.0
"""A scheduler and the agent below it both pass one stop on: what comes this soon is the same one."""
_heard_s: dict[int, float] = {}
"""When each signal came first."""
_before: dict[int, Any] = {}
_under_way: tuple[group.Membership, torch.Tensor, Any] | None = None


def stop_requested() -> bool:
    """Say whether TERM or USR1 has come to any rank: the same answer on all, at the same step.

    It is a collective of one number: every rank calls it once a step. It travels while the next step is computed, so that
    it costs no waiting, and a signal is heard one step later. The first call begins to listen, in the main thread: until
    then the signals end the process as they always do, and a second signal, 2 s or more after the first, does so again.

    Raises:
        DistributedError: ranks did not come, or the first call is not in the main thread.
    """
    global _under_way  # noqa: PLW0603 - one flag is on its way at a time
    member = group.current()
    listen()
    heard = bool(_heard_s)
    with collective("stop_requested", compared=False):
        if member.info.world_size == 1:
            return heard
        before = finish(member)
        flag = torch.tensor([int(heard)], dtype=torch.int32, device=wire.carrier())
        work = torch_distributed.all_reduce(flag, torch_distributed.ReduceOp.MAX, async_op=True)
        _under_way = member, flag, work
    return before


def finish(member: group.Membership) -> bool:
    """Wait for the flag that is under way in a group, if one is, and give it.

    Raises:
        DistributedError: not all ranks have sent theirs.
    """
    global _under_way
    if _under_way is None:
        return False
    (owner, flag, work), _under_way = _under_way, None
    if owner is not member:
        return False
    try:
        work.wait()
    except RuntimeError as error:
        raise DistributedError(
            f"stop_requested: rank {member.info.rank} has called it more often than others, or they are gone: {error}"
        ) from error
    return bool(flag.item())


def listen() -> None:
    """Begin to listen for the signals; a second call does nothing.

    Raises:
        DistributedError: it is not the main thread, the only one that can.
    """
    if _before:
        return
    if threading.current_thread() is not threading.main_thread():
        raise DistributedError(
            "the first stop_requested() has to come from the main thread: no other can listen for signals"
        )
    for number in SIGNALS:
        _before[number] = signal.signal(number, _hear)
    os.register_at_fork(after_in_child=_restore)


def _restore() -> None:
    # A forked child is no rank: with this handler the TERM of its parent would not end it.
    for number, before in _before.items():
        with contextlib.suppress(TypeError, ValueError):
            if signal.getsignal(number) is _hear:
                signal.signal(number, before if before is not None else signal.SIG_DFL)
    _before.clear()
    _heard_s.clear()


def _hear(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    first = _heard_s.setdefault(number, now)
    before = _before.get(number)
    if callable(before):
        before(number, frame)
    elif now - first >= AGAIN_S:
        # Whoever sends it again means it.
        signal.signal(number, before if before is not None else signal.SIG_DFL)
        signal.raise_signal(number)
