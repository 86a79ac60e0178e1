"""What surrounds every collective: under debug the ranks compare what they call, and an error says which call it was.

Under debug (AORTA_DISTRIBUTED_DEBUG=1, or torch's own TORCH_DISTRIBUTED_DEBUG=DETAIL) each rank says in the store what it
is about to call, from which line, and waits for the others to say the same. A collective that not all ranks call, or
that they call with other tensors, is then an error within AORTA_DISTRIBUTED_DEBUG_TIMEOUT_S (30) seconds, not a hang.

Without debug the ranks compare 16 bytes ahead of each collective: gloo gives memory that nobody wrote, or ends the
process, where shapes differ.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_distributed

from orchestrator.distributed import group, wire
from orchestrator.distributed.errors import DistributedError
from orchestrator.distributed.turns import turn

DEBUG_TIMEOUT_S = 30.0
_OURS = (str(Path(__file__).parent), contextlib.__file__)
"""The library's own frames, and those of its context managers."""


@dataclass(frozen=True)
class Call:
    """A collective as one rank calls it."""

    name: str
    detail: str
    site: str

    def __str__(self) -> str:
        return f"{self.name}({self.detail}) at {self.site}" if self.detail else f"{self.name} at {self.site}"

    def agrees(self, other: Call) -> bool:
        """Say whether the two can be one collective."""
        return (self.name, self.detail) == (other.name, other.detail)


@contextlib.contextmanager
def collective(
    name: str, tensor: torch.Tensor | None = None, detail: str = "", *, compared: bool = True
) -> Iterator[None]:
    """Surround a collective: compare it with what the others call, name it in its error.

    Args:
        name: As the script calls it.
        tensor: Its dtype and shape are compared.
        detail: What else is compared.
        compared: False for what is called at every step: it is compared under debug alone.

    Raises:
        DistributedError: other ranks called something else, did not come, or are gone.
    """
    told = [detail] if detail else []
    if tensor is not None:
        told.insert(0, f"{str(tensor.dtype).replace('torch.', '')}{list(tensor.shape)}")
    call = Call(name, ", ".join(told), find_site())
    member = group.current()
    try:
        with turn(str(call), member.pid):
            if member.info.world_size > 1:
                if member.store is not None and is_debugging():
                    compare(member, call)
                elif compared:
                    compare_digests(member, call)
            yield
    except (RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, DistributedError):
            raise
        raise DistributedError(
            f"{call} failed on rank {member.info.rank} of {member.info.world_size}: {error} - do all ranks call it? "
            "AORTA_DISTRIBUTED_DEBUG=1 says which do not"
        ) from error


def is_debugging() -> bool:
    """Say whether calls are compared."""
    return (
        os.environ.get("AORTA_DISTRIBUTED_DEBUG", "") not in ("", "0")
        or os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"
    )


def find_site() -> str:
    """Find the line of the script that called into this library."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads every source file on the way
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def compare(member: group.Membership, call: Call) -> None:
    """Compare one call with that of every other rank.

    Raises:
        DistributedError: one calls something else, or does not come within the limit.
    """
    info, store = member.info, member.store
    number = member.count("call")
    text = json.dumps([call.name, call.detail, call.site])
    store.set(f"call/{number}/{info.rank}", text)
    store.set(f"last/{info.rank}", json.dumps([number, str(call)]))
    others = [rank for rank in range(info.world_size) if rank != info.rank]
    limit_s = read_limit()
    try:
        store.wait([f"call/{number}/{rank}" for rank in others], timedelta(seconds=limit_s))
    except torch_distributed.DistStoreError:
        raise DistributedError(_tell_missing(member, call, number, others, limit_s)) from None
    for rank in others:
        theirs = Call(*json.loads(store.get(f"call/{number}/{rank}")))
        if not call.agrees(theirs):
            raise DistributedError(_tell_difference(info.rank, call, rank, theirs))
    if number > 1:
        # All have come to this one, so all have read the one before the last.
        with contextlib.suppress(RuntimeError):
            store.delete_key(f"call/{number - 2}/{info.rank}")


def compare_digests(member: group.Membership, call: Call) -> None:
    """Compare one call with that of every other rank by a short digest; nothing is compared where that costs a GPU's time.

    Raises:
        DistributedError: one calls something else.
    """
    info = member.info
    if wire.carrier().type != "cpu":
        return
    digest = hashlib.blake2b(f"{call.name} {call.detail}".encode(), digest_size=16).digest()
    mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    parts = [torch.empty_like(mine) for _ in range(info.world_size)]
    torch_distributed.all_gather(parts, mine)
    if all(torch.equal(part, mine) for part in parts):
        return
    # Every rank has seen that they differ, so every rank comes to this.
    calls = wire.gather_all(call, info.world_size)
    raise DistributedError(
        _tell_difference(
            *next((info.rank, call, rank, theirs) for rank, theirs in enumerate(calls) if not call.agrees(theirs))
        )
    )


def note(member: group.Membership, text: str) -> None:
    """Note, under debug, where this rank is, for the errors of those who wait for it elsewhere."""
    if member.store is not None and is_debugging():
        member.store.set(f"last/{member.info.rank}", json.dumps([0, text]))


def _tell_difference(rank: int, call: Call, other: int, theirs: Call) -> str:
    return (
        f"the ranks do not do the same: rank {rank} calls {call}, rank {other} calls {theirs}; "
        "every rank has to call the same, in the same order, with tensors of one shape and dtype"
    )


def read_limit() -> float:
    """Read how long a rank waits for the others under debug, in seconds.

    Raises:
        DistributedError: the variable is no number.
    """
    text = os.environ.get("AORTA_DISTRIBUTED_DEBUG_TIMEOUT_S", "")
    try:
        return float(text) if text else DEBUG_TIMEOUT_S
    except ValueError:
        raise DistributedError(f"AORTA_DISTRIBUTED_DEBUG_TIMEOUT_S is {text!r}, not seconds") from None


def _tell_missing(member: group.Membership, call: Call, number: int, others: Any, limit_s: float) -> str:
    missing = [rank for rank in others if not member.store.check([f"call/{number}/{rank}"])]
    told = []
    for rank in missing[:8]:
        last = json.loads(member.store.get(f"last/{rank}"))[1] if member.store.check([f"last/{rank}"]) else ""
        told.append(f"rank {rank} did not come ({f'its last was {last}' if last else 'it has called none yet'})")
    more = f"; and {len(missing) - 8} more" if len(missing) > 8 else ""  # noqa: PLR2004 - as many as fit a line
    return (
        f"rank {member.info.rank} called {call} and waited {limit_s:g} s: {'; '.join(told)}{more}. "
        f"{call.name} is a collective: every rank has to call it, not the main process alone"
    )
