"""What the ranks of a fault run: numbered lines whose content follows from their number, until told to end or to fail."""

from __future__ import annotations

import hashlib

RANK = r"""
import ctypes, hashlib, os, signal, subprocess, sys, time
RANK, OUT = int(os.environ["RANK"]), os.environ["AORTA_OUTPUT_DIR"]
NULL = {{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}}
def meet():
    pass
def act():
    {act}
{setup}
number = 0
while not os.path.exists(OUT + "/finish"):
    if os.path.exists(OUT + "/act"):
        act()
    name = b"%d %d" % (RANK, number)
    line = name + b" " + hashlib.sha256(name).hexdigest().encode() + b"\n"
    os.write(1, line)
    if RANK == 0 and number % 5 == 0:  # the last line on stderr counts as a rank's last word
        os.write(2, line)
    number += 1
    meet()
    time.sleep(0.01)
"""


GLOO = """
import torch, torch.distributed
torch.distributed.init_process_group("gloo")
def meet():
    torch.distributed.all_reduce(torch.ones(1000))
"""


def build_script(setup: str, act: str, *, real_torch: bool) -> str:
    """Build the script of a fault's ranks."""
    setup = f"{GLOO}{setup}" if real_torch else setup
    return RANK.format(setup=setup.strip(), act="\n    ".join(act.strip().splitlines()))


def wanted_bytes(rank: int, size: int) -> bytes:
    """Build the first `size` bytes that a rank writes to stdout."""
    lines: list[bytes] = []
    have = 0
    while have < size:
        name = b"%d %d" % (rank, len(lines))
        lines.append(name + b" " + hashlib.sha256(name).hexdigest().encode() + b"\n")
        have += len(lines[-1])
    return b"".join(lines)[:size]
