"""What the benchmark says of streams: when bytes were there, how late lines came, and whether they are the ones that were written."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from benchmark import arrivals, flood  # noqa: E402 - found by the line above
from benchmark.arrivals import Arrivals  # noqa: E402
from benchmark.timing import BenchError  # noqa: E402
from benchmark.usage import list_tree, read_tree_cpu_s, read_tree_mib  # noqa: E402


def test_the_lag_of_a_line_is_from_its_time_to_that_in_which_it_stood_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rank_0000.out"
    line = flood.STAMP % (time.time() - 5)
    with Arrivals([path]) as seen:
        path.write_bytes(b"no time\n" + line)
        seen.wait_for([len(line) + 8], 5)
        with path.open("ab") as file:
            file.write(b"[0:0] " + flood.STAMP % time.time())
        seen.wait_for([2 * len(line) + 14], 5)
    late, soon = seen.read_lags(path)
    assert 5 <= late < 6
    assert 0 <= soon < 1


def test_bytes_that_do_not_come_fail_the_measurement(tmp_path: Path) -> None:
    path = tmp_path / "rank_0000.out"
    path.write_bytes(b"half")
    with Arrivals([path]) as seen, pytest.raises(BenchError, match="4 bytes did not come"):
        seen.wait_for([8], 10 * arrivals.LOOK_S)


def test_a_rank_tells_what_it_wrote(tmp_path: Path) -> None:
    for name in ("go", "done"):
        (tmp_path / name).touch()
    words = [sys.executable, flood.__file__, str(tmp_path), "3000", "0"]
    done = subprocess.run(words, env={**os.environ, "RANK": "7"}, capture_output=True)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "7.json").read_text())
    assert told["bytes"] == len(done.stdout) == 3000 * len(flood.LINE)
    assert told["sha256"] == hashlib.sha256(done.stdout).hexdigest()
    assert len(arrivals.STAMP.findall(done.stdout)) == 3000 // flood.BLOCK


def test_a_command_is_told_with_all_of_its_children() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(20)'])"
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        end = time.monotonic() + 10
        while len(list_tree(process.pid)) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        tree = list_tree(process.pid)
        assert len(tree) == 2
        assert read_tree_mib(process.pid) > 0
        assert read_tree_cpu_s(process.pid) >= 0
        for pid in reversed(tree):
            os.kill(pid, 9)
