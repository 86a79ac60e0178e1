"""Collectives on tensors: each gives a new tensor and leaves its input as it was; every rank has to call them."""

from __future__ import annotations

import difflib
from typing import Any

import torch
import torch.distributed as torch_distributed

from orchestrator.distributed import group, wire
from orchestrator.distributed.calls import collective
from orchestrator.distributed.errors import DistributedError

OPS = ("sum", "mean", "max", "min", "product")
_SHORT = (torch.float16, torch.bfloat16)
_REDUCED = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
)
"""What gloo and NCCL both can combine."""


def all_reduce(tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
    """Combine the tensors of all ranks, element by element: sum, mean, max, min or product.

    The sum of truth values counts them; their max, min and product are any, all and all. A mean of half-precision
    numbers is taken in single precision; sums of int8 and uint8 wrap around.

    Raises:
        DistributedError: an unknown op, the mean of whole numbers, no tensor of a kind that can be combined, ranks that
            did not come, or came with other shapes.
    """
    return _combine("all_reduce", tensor, op)


def _combine(name: str, tensor: torch.Tensor, op: str) -> torch.Tensor:
    member = group.current()
    _check_op(op, tensor)
    work = _for_sums(tensor, op)
    with collective(name, tensor, op):
        if not _alone(member):
            torch_distributed.all_reduce(work, _torch_op(op))
    if op == "mean":
        work = work / member.info.world_size
    return _as_before(work, tensor, op)


def reduce_scatter(tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
    """Combine the tensors of all ranks and give each its share of the rows.

    Args:
        tensor: Its first dimension is world_size times n, the same on every rank.
        op: As in all_reduce.

    Returns:
        Rows rank * n to rank * n + n of what all_reduce would give.

    Raises:
        DistributedError: as all_reduce, or rows that cannot be divided.
    """
    info = group.current().info
    _check_op(op, tensor)
    if tensor.dim() == 0 or tensor.shape[0] % info.world_size:
        raise DistributedError(
            f"reduce_scatter needs rows that {info.world_size} ranks can share, not {list(tensor.shape)}"
        )
    rows = tensor.shape[0] // info.world_size
    # Not every torch's gloo can scatter sums, and MPI's cannot: there all get all and keep their own.
    if info.backend != "nccl" or not tensor.is_cuda:
        return _combine("reduce_scatter", tensor, op)[info.rank * rows : (info.rank + 1) * rows].clone()
    work = _for_sums(tensor, op)
    mine = torch.empty_like(work[:rows])
    with collective("reduce_scatter", tensor, op):
        torch_distributed.reduce_scatter_tensor(mine, work, _torch_op(op))
    if op == "mean":
        mine = mine / info.world_size
    return _as_before(mine, tensor, op)


def all_gather(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Give every rank the tensors of all, in rank order; they have one shape and dtype.

    Raises:
        DistributedError: ranks did not come, or came with other shapes.
    """
    member = group.current()
    check_tensor(tensor)
    work = _as_bytes(tensor)
    parts = [torch.empty_like(work) for _ in range(member.info.world_size)]
    with collective("all_gather", tensor):
        if _alone(member):
            parts[0].copy_(work)
        else:
            torch_distributed.all_gather(parts, work)
    return [_from_bytes(part, tensor) for part in parts]


def gather(tensor: torch.Tensor, dst: int = 0) -> list[torch.Tensor] | None:
    """Give one rank the tensors of all, in rank order; the others get None.

    It is a collective: every rank has to call it, also those that get nothing. Called on the main process alone it
    waits for ranks that never come, until the group's timeout; with AORTA_DISTRIBUTED_DEBUG=1 it is told within seconds.

    Raises:
        DistributedError: dst is no rank, or ranks did not come, or came with other shapes.
    """
    member = group.current()
    check_rank("dst", dst, member.info.world_size)
    check_tensor(tensor)
    work = _as_bytes(tensor)
    parts = [torch.empty_like(work) for _ in range(member.info.world_size)] if member.info.rank == dst else None
    with collective("gather", tensor, f"dst={dst}"):
        if not _alone(member):
            torch_distributed.gather(work, parts, dst=dst)
        elif parts:
            parts[0].copy_(work)
    return None if parts is None else [_from_bytes(part, tensor) for part in parts]


def broadcast(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    """Give every rank the tensor of one; the others pass one of its shape and dtype.

    Raises:
        DistributedError: src is no rank, or ranks did not come, or came with other shapes.
    """
    member = group.current()
    check_rank("src", src, member.info.world_size)
    check_tensor(tensor)
    work = _as_bytes(tensor).clone()
    with collective("broadcast", tensor, f"src={src}"):
        if not _alone(member):
            torch_distributed.broadcast(work, src=src)
    return _from_bytes(work, tensor)


def all_gather_object(thing: Any) -> list[Any]:
    """Give every rank the objects of all, in rank order; they are pickled, NumPy is not needed.

    Raises:
        DistributedError: ranks did not come.
    """
    member = group.current()
    with collective("all_gather_object"):
        return [thing] if _alone(member) else wire.gather_all(thing, member.info.world_size)


def gather_object(thing: Any, dst: int = 0) -> list[Any] | None:
    """Give one rank the objects of all, in rank order; the others, who have to call it too, get None.

    Raises:
        DistributedError: dst is no rank, or ranks did not come.
    """
    member = group.current()
    check_rank("dst", dst, member.info.world_size)
    with collective("gather_object", None, f"dst={dst}"):
        if _alone(member):
            return [thing]
        return wire.gather_to(thing, member.info.world_size, member.info.rank, dst)


def broadcast_object(thing: Any, src: int = 0) -> Any:
    """Give every rank the object of one; what the others pass does not matter.

    Raises:
        DistributedError: src is no rank, or ranks did not come.
    """
    member = group.current()
    check_rank("src", src, member.info.world_size)
    with collective("broadcast_object", None, f"src={src}"):
        return thing if _alone(member) else wire.send_out(thing, member.info.rank, src)


def check_rank(name: str, rank: int, world_size: int) -> None:
    """Refuse a rank that is none.

    Raises:
        DistributedError: it is no whole number, below 0 or not below the world size.
    """
    if isinstance(rank, bool) or not isinstance(rank, int):
        raise DistributedError(f"{name}={rank!r} is no rank: give a whole number")
    if not 0 <= rank < world_size:
        raise DistributedError(f"{name}={rank} is no rank: there are {world_size}, from 0 to {world_size - 1}")


def check_tensor(tensor: torch.Tensor) -> None:
    """Refuse what is no plain tensor.

    Raises:
        DistributedError: a number, a tensor that is spread over ranks already, a sparse one.
    """
    if not isinstance(tensor, torch.Tensor):
        raise DistributedError(
            f"a tensor is needed, not {type(tensor).__name__}: give torch.tensor(…), or take all_gather_object"
        )
    if type(tensor).__name__ == "DTensor":
        raise DistributedError("this tensor is spread over the ranks (a DTensor): give its full_tensor() or to_local()")
    if tensor.layout != torch.strided:
        raise DistributedError(f"a tensor of layout {tensor.layout} cannot be sent: give its to_dense()")


def _alone(member: group.Membership) -> bool:
    return member.info.world_size == 1


def _check_op(op: str, tensor: torch.Tensor) -> None:
    check_tensor(tensor)
    if op not in OPS:
        near = difflib.get_close_matches(str(op), OPS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(OPS)}"
        raise DistributedError(f"op {op!r} is not known: {hint}")
    if op == "mean" and not (tensor.is_floating_point() or tensor.is_complex()):
        raise DistributedError(
            f"the mean of {tensor.dtype} would be cut off to whole numbers: give tensor.double(), or take the sum"
        )
    if tensor.dtype not in _REDUCED:
        raise DistributedError(f"neither gloo nor NCCL can combine {tensor.dtype}: give tensor.int() or tensor.float()")
    if tensor.is_complex() and op not in ("sum", "mean"):
        raise DistributedError(f"complex numbers have no {op} over ranks: there are sum and mean")


def _torch_op(op: str) -> Any:
    kinds = torch_distributed.ReduceOp
    return {"sum": kinds.SUM, "mean": kinds.SUM, "max": kinds.MAX, "min": kinds.MIN, "product": kinds.PRODUCT}[op]


def _on_carrier(tensor: torch.Tensor) -> torch.Tensor:
    # A tensor of a GPU in a group of gloo takes the way over the CPU, one of the CPU in a group of NCCL alone over the GPU.
    work = tensor.detach().resolve_conj().resolve_neg()
    if work.is_cuda and group.current().info.backend != "nccl":
        work = work.cpu()
    elif not work.is_cuda and not _alone(group.current()) and wire.carrier().type == "cuda":
        work = work.to(wire.carrier())
    return work.contiguous()


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    # What is only moved can travel as bytes: gloo knows few dtypes.
    return _on_carrier(tensor).reshape(-1).view(torch.uint8)


def _from_bytes(data: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return data.view(tensor.dtype).reshape(tensor.shape).to(tensor.device)


def _for_sums(tensor: torch.Tensor, op: str) -> torch.Tensor:
    work = _on_carrier(tensor)
    if work.dtype == torch.bool:
        return work.to(torch.int64 if op == "sum" else torch.uint8)
    if op == "mean" and work.dtype in _SHORT:
        return work.float()
    return work.clone()


def _as_before(work: torch.Tensor, tensor: torch.Tensor, op: str) -> torch.Tensor:
    keeps = not (tensor.dtype == torch.bool and op == "sum")
    return work.to(device=tensor.device, dtype=tensor.dtype if keeps else work.dtype)
