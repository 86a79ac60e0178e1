"""Objects between ranks without NumPy, which torch's own object collectives need and a node may lack."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as torch_distributed

from orchestrator.distributed.errors import DistributedError


def pack(thing: Any) -> tuple[torch.Tensor, bool]:
    """Turn an object into a tensor of bytes; False when it cannot be done, then the bytes are the reason."""
    try:
        data, whole = pickle.dumps(thing, protocol=4), True
    except Exception as error:  # noqa: BLE001 - pickle raises whatever the object's own methods raise
        # Raised here and now it would leave the others waiting: they are told instead.
        data, whole = pickle.dumps(f"{type(error).__name__}: {error}", protocol=4), False
    return torch.frombuffer(bytearray(data), dtype=torch.uint8), whole


def unpack(data: torch.Tensor, size: int) -> Any:
    """Turn the first bytes of a tensor back into the object: only what a rank of the same run sent comes here."""
    here = data.cpu().contiguous()
    return pickle.loads(ctypes.string_at(here.data_ptr(), size))  # noqa: S301 - see above


def carrier() -> torch.device:
    """Give the device whose tensors the group carries; a group of NCCL alone takes those of GPUs only."""
    config = str(torch_distributed.get_backend_config())
    if "gloo" in config or "mpi" in config:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _prepare(thing: Any, world_size: int, group: Any) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Pack an object; give its bytes, the same as long as the longest of all ranks', and the sizes of all.

    A size is below 0 for a rank whose object cannot be sent: all have to know.
    """
    data, whole = pack(thing)
    packed = data.to(carrier())
    mine = torch.tensor([packed.numel() if whole else -packed.numel()], dtype=torch.int64, device=packed.device)
    told = [torch.zeros_like(mine) for _ in range(world_size)]
    torch_distributed.all_gather(told, mine, group=group)
    sizes = [int(size.item()) for size in told]
    padded = torch.zeros(max(abs(size) for size in sizes), dtype=torch.uint8, device=packed.device)
    padded[: packed.numel()] = packed
    return packed, padded, sizes


def _unpack_all(parts: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[Any]:
    for rank, (part, size) in enumerate(zip(parts, sizes)):
        if size < 0:
            raise DistributedError(f"rank {rank} gave an object that cannot be sent: {unpack(part, -size)}")
    return [unpack(part, size) for part, size in zip(parts, sizes)]


def gather_all(thing: Any, world_size: int, group: Any = None) -> list[Any]:
    """Gather an object of every rank on every rank, in rank order.

    Raises:
        DistributedError: on every rank, when one of the objects cannot be pickled.
    """
    _, padded, sizes = _prepare(thing, world_size, group)
    parts = [torch.empty_like(padded) for _ in range(world_size)]
    torch_distributed.all_gather(parts, padded, group=group)
    return _unpack_all(parts, sizes)


def gather_to(thing: Any, world_size: int, rank: int, dst: int, group: Any = None) -> list[Any] | None:
    """Gather an object of every rank on one of them, in rank order; None on the others.

    Raises:
        DistributedError: on every rank, when one of the objects cannot be pickled.
    """
    packed, padded, sizes = _prepare(thing, world_size, group)
    parts = [torch.empty_like(padded) for _ in range(world_size)] if rank == dst else None
    torch_distributed.gather(padded, parts, dst=dst, group=group)
    if parts is not None:
        return _unpack_all(parts, sizes)
    bad = [other for other, size in enumerate(sizes) if size < 0]
    if bad:
        raise DistributedError(
            f"rank {bad[0]} gave an object that cannot be sent"
            + (f": {unpack(packed, packed.numel())}" if bad[0] == rank else f"; rank {dst} knows why")
        )
    return None


def send_out(thing: Any, rank: int, src: int, group: Any = None) -> Any:
    """Give one rank's object to all.

    Raises:
        DistributedError: on every rank, when the object cannot be pickled.
    """
    device = carrier()
    data, whole = pack(thing) if rank == src else (torch.empty(0, dtype=torch.uint8), True)
    packed = data.to(device)
    size = torch.tensor([packed.numel() if whole else -packed.numel()], dtype=torch.int64, device=device)
    torch_distributed.broadcast(size, src=src, group=group)
    told = int(size.item())
    if rank != src:
        packed = torch.empty(abs(told), dtype=torch.uint8, device=device)
    torch_distributed.broadcast(packed, src=src, group=group)
    if told < 0:
        raise DistributedError(f"rank {src} gave an object that cannot be sent: {unpack(packed, -told)}")
    return thing if rank == src else unpack(packed, told)


def gather_by_store(store: Any, rank: int, world_size: int, thing: Any) -> list[Any]:
    """Gather an object of every rank through the store, as far as the others come to say theirs."""
    store.set(f"word/{rank}", pickle.dumps(thing, protocol=4))
    return [read_word(store, other) for other in range(world_size)]


def read_word(store: Any, rank: int) -> Any:
    """Read what a rank has said by gather_by_store; wait for it."""
    return pickle.loads(store.get(f"word/{rank}"))  # noqa: S301 - as in unpack
