"""How a process ended that is no child of ours: from the zombie, or, once its parent has reaped it, from our pidfd."""

from __future__ import annotations

import os
import sys

from orchestrator.node import processes

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Optional

INFO_BYTES = 64
"""The first version of the kernel's struct pidfd_info; its last four bytes are the wait status."""
GET_INFO = 3 << 30 | INFO_BYTES << 16 | 0xFF << 8 | 11
INFO_EXIT = 1 << 3


def read_exit_code(handle: int, pid: int, ticks: int) -> Optional[int]:
    """Read the exit code of a process whose pidfd says that it has ended, below zero the signal; None: nobody knows it."""
    process = processes.read_process(pid)
    if process is not None and process.ticks == ticks and process.state == "Z":
        status: Optional[int] = process.exit_status
    else:
        status = _status_of_reaped(handle)
    return None if status is None else os.waitstatus_to_exitcode(status)


def _status_of_reaped(handle: int) -> Optional[int]:
    # Linux 6.15 and newer keep it for whoever had the pidfd open before.
    import fcntl  # noqa: PLC0415 - hardly ever needed: its parent was faster than we

    info = bytearray(INFO_EXIT.to_bytes(8, sys.byteorder).ljust(INFO_BYTES, b"\0"))
    try:
        fcntl.ioctl(handle, GET_INFO, info)
    except OSError:
        return None
    told = int.from_bytes(info[:8], sys.byteorder)
    return int.from_bytes(info[-4:], sys.byteorder) if told & INFO_EXIT else None


def describe_code(code: Optional[int]) -> dict[str, Optional[int]]:
    """Tell an exit code and a signal apart; both are None where it is unknown."""
    if code is not None and code < 0:
        return {"code": None, "signal": -code}
    return {"code": code, "signal": None}
