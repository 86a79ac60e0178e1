"""A log may be larger than the memory of whoever asks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

GIB = 1 << 30
BOUND_MIB = 400
"""Measured: about 75 MiB."""
LIMIT_S = 240
"""Measured: 22 s beside other work."""
PROGRAM = """
import atexit, sys
from orchestrator.__main__ import main

def tell_peak():
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)

atexit.register(tell_peak)
sys.exit(main())
"""
"""What the kernel tells of a child (ru_maxrss) counts what this process had when it began it."""
BLOCK = "".join(
    f"[rank{number % 4}]: step {number} loss 2.{number:04} lr 3e-4 tokens/s 123456 grad_norm 0.{number:04}\n"
    for number in range(9000)
)
END = """[rank2]: Traceback (most recent call last):
[rank2]:   File "/home/user/project/fit.py", line 71, in <module>
[rank2]:     take(batch)
[rank2]: KeyError: 'mask'
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_gigabyte_of_log_is_gone_through_in_bounded_memory(tmp_path: Path) -> None:
    log = tmp_path / "node-a.log"
    with log.open("w") as file:
        for _ in range(GIB // len(BLOCK) + 1):
            file.write(BLOCK)
        file.write(END)
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "why", str(tmp_path), "--json"], capture_output=True, text=True
    )
    took_s, peak_mib = time.monotonic() - begin, int(done.stderr.splitlines()[-1]) // 1024
    print(f"{log.stat().st_size / GIB:.2f} GiB in {took_s:.0f} s, {peak_mib} MiB")
    verdict = json.loads(done.stdout)["verdict"]
    assert (verdict["family"], verdict["first_failure"]["rank"]) == ("CODE", 2)
    assert peak_mib < BOUND_MIB
    assert took_s < LIMIT_S
