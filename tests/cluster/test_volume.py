"""Much output, and odd output: the rank files hold the very bytes, the launcher's memory stays flat."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from cluster import Cluster, wait_for
from scenes import Scene, wait_running

LINES = 1_000_000
MANY = f"""
import sys
for start in range(0, {LINES}, 1000):
    sys.stdout.write("".join(f"step {{n}} loss {{n * 0.001:.6f}} and some words more\\n" for n in range(start, start + 1000)))
"""
ODD = r"""
import os, sys, time
out = sys.stdout.buffer
for number in range(200):
    out.write(b"\rprogress %3d%% \xe2\x96\x88\xe2\x96\x88" % number)
    out.flush()
    time.sleep(0.002)
out.write(b"\n")
for byte in "split \u65e5\u672c\u8a9e \U0001f600 end\n".encode():
    os.write(1, bytes([byte]))
    time.sleep(0.01)
out.write(bytes(range(256)) * 64 + b"\n")
for letter in b"abc":
    out.write(bytes([letter]) * 1_000_000 + b"\n")
out.write(b"\0\0no newline at the end")
out.flush()
sys.stderr.buffer.write(b"\xff\xfe\x80 not utf-8\r\n")
"""


def rss_mib(pid: int) -> float:
    """The memory of a process; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), 0.0)


@pytest.mark.timeout(200)
@pytest.mark.namespaces
def test_a_million_lines_come_whole_and_memory_stays_flat(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write(
        "many.py",
        'import os, time\ntime.sleep(1)\nif os.environ["RANK"] == "1":\n    exec(open("many_lines").read())\n',
    )
    scene.write("many_lines", MANY)
    launcher = scene.start("--ranks", "all", "many.py")
    wait_running(launcher, 2)
    seen: list[float] = []

    def ended() -> bool:
        seen.append(rss_mib(launcher.process.pid))
        return not launcher.running

    wait_for(ended, 150, "the run ends")
    done = launcher.wait(5)
    assert done.exit_code == 0, done.stderr
    wanted = "".join(f"step {n} loss {n * 0.001:.6f} and some words more\n" for n in range(LINES)).encode()
    got = (scene.experiment / "logs/rank_0001.out").read_bytes()
    assert hashlib.sha256(got).hexdigest() == hashlib.sha256(wanted).hexdigest()
    assert done.stdout.count("\n") == LINES
    assert done.stdout.endswith("[1:1] step 999999 loss 999.999000 and some words more\n")
    middle = [size for size in seen if size][: len(seen) // 2]
    print(
        f"{LINES} lines, {len(wanted) / 1e6:.0f} MB: {done.seconds:.1f} s, memory {seen[0]:.0f} to {max(seen):.0f} MiB"
    )
    assert max(seen) < 150
    assert max(seen) - seen[0] < 21, "more than a part of the 46 MiB is kept"
    assert max(seen) - max(middle) < 30, "memory grows with the log"


def test_odd_bytes_are_intact_in_the_files(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write("odd.py", ODD)
    done = scene.launch("--ranks", "all", "odd.py")
    assert done.exit_code == 0, done.stderr
    wanted = b"".join(b"\rprogress %3d%% \xe2\x96\x88\xe2\x96\x88" % number for number in range(200)) + b"\n"
    wanted += "split \u65e5\u672c\u8a9e \U0001f600 end\n".encode() + bytes(range(256)) * 64 + b"\n"
    wanted += b"".join(bytes([letter]) * 1_000_000 + b"\n" for letter in b"abc") + b"\0\0no newline at the end"
    for rank in (0, 1):
        assert (scene.experiment / f"logs/rank_{rank:04d}.out").read_bytes() == wanted
        assert (scene.experiment / f"logs/rank_{rank:04d}.err").read_bytes() == b"\xff\xfe\x80 not utf-8\r\n"
    assert "split \u65e5\u672c\u8a9e \U0001f600 end\n" in done.stdout
    assert "progress 199%" in done.stdout
    assert done.stdout.count("progress") < 50
    assert max(map(len, done.stdout.split("\n"))) < 5000
