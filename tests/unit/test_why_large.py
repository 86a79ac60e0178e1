"""A log may be larger than the memory of whoever asks."""

from __future__ import annotations

import json
import os
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
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "why", str(tmp_path), "--json"], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        told = program.stdout.read()
        # What all children of this process had at most would count those of other tests too.
        _, status, used = os.wait4(program.pid, 0)
        program.returncode = os.waitstatus_to_exitcode(status)
    took_s, peak_mib = time.monotonic() - begin, used.ru_maxrss // 1024
    print(f"{log.stat().st_size / GIB:.2f} GiB in {took_s:.0f} s, {peak_mib} MiB")
    verdict = json.loads(told)["verdict"]
    assert (verdict["family"], verdict["first_failure"]["rank"]) == ("CODE", 2)
    assert peak_mib < BOUND_MIB
    assert took_s < LIMIT_S
