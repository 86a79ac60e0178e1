"""scripts/gpu_cluster: nodes out of one machine, each with its share of the GPUs, and nothing left of them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import open_cluster, start_cluster, wait_for
from test_readme import BLOCK, PROJECT, words_of

pytestmark = pytest.mark.namespaces
PAGE = PROJECT / "docs" / "rehearsal.md"
SCRIPT = PROJECT / "scripts" / "gpu_cluster"
STATE = Path("/tmp", f"agp{os.getpid() % 10**6}")
"""Of this process's own: tests of two checkouts may run at once."""
DRIVER = """#!/bin/sh
echo "$*" >>@CALLS@
only=0,1,2,3
last=
for word in "$@"; do
  [ "$last" != -i ] || only=$word
  last=$word
done
case $* in
  *pci.bus_id*) seq 0 3 | sed 's/.*/&, 00000000:0&:0A.0/' ;;
  -L) seq 0 3 | sed 's/.*/GPU &: NVIDIA H200 (UUID: GPU-&)/' ;;
  *--query-gpu=index*) echo "$only" | tr , '\\n' ;;
  nvlink*) echo "GPU $only: NVIDIA H200"; echo "  Link 0: 26.562 GB/s" ;;
esac
"""


def run_script(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *words], cwd=cwd, env=environ(), capture_output=True, text=True, timeout=60
    )


def environ() -> dict[str, str]:
    return {**os.environ, "AORTA_GPU_CLUSTER": STATE.name}


def plain(text: str) -> list[str]:
    """Take out what differs from machine to machine: the net, the number of GPUs, the place of the launcher."""
    text = text.replace(str(STATE), "/tmp/agpu")
    text = re.sub(r"10\.\d+\.0\.", "10.98.0.", text)
    text = re.sub(r"  GPU [\d,]+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^No GPU here.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"on the nodes: \S+", "on the nodes: PYTHON", text)
    return re.sub(r"^  \S*aorta-launch", "  aorta-launch", text, flags=re.MULTILINE).splitlines()


def nothing_is_left() -> bool:
    return not STATE.exists() and not [*Path("/sys/class/net").glob(f"{STATE.name}-*")]


@pytest.mark.torch
def test_the_commands_of_the_page_are_run_in_its_order(tmp_path: Path) -> None:
    for name in ("scripts", "config"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    blocks = list(BLOCK.finditer(PAGE.read_text()))
    assert [block["command"].split()[0] for block in blocks] == [
        "scripts/gpu_cluster",
        "aorta-launch",
        "aorta-launch",
        "scripts/gpu_cluster",
    ]
    try:
        for block in blocks:
            if block["command"].startswith("scripts/"):
                words = block["command"].split()[1:]
                ended = run_script(*words, cwd=tmp_path)
                assert ended.returncode == 0, ended.stderr
                assert plain(ended.stdout) == plain(block["shown"])
            else:
                done = open_cluster(STATE).run_on_launch_host(
                    words_of(block["command"].replace("/tmp/agpu", str(STATE))), cwd=tmp_path, timeout_s=100
                )
                assert done.exit_code == 0, done
    finally:
        run_script("--down", cwd=tmp_path)
    assert nothing_is_left()


@pytest.mark.parametrize("end", ["ctrl-c", "down", "kill"])
def test_however_it_ends_nothing_is_left(end: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, SCRIPT, "2"],
        cwd=tmp_path,
        env=environ(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as script:
        assert script.stdout is not None
        # The last line comes when it waits.
        assert any("Ctrl-C takes the nodes down" in line for line in script.stdout)
        again = run_script("2", cwd=tmp_path)
        assert (again.returncode, again.stderr.count("up already")) == (1, 1)
        if end == "ctrl-c":
            os.killpg(script.pid, signal.SIGINT)
        elif end == "kill":
            script.kill()
        else:
            assert run_script("--down", cwd=tmp_path).returncode == 0
        assert script.wait(20) == (-signal.SIGKILL if end == "kill" else 0)
        wait_for(nothing_is_left, 20, "the nodes gone")


def test_a_node_sees_its_share_of_the_gpus_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "nvidia-smi").write_text(DRIVER.replace("@CALLS@", str(driver / "calls")))
    (driver / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{driver}:{os.environ['PATH']}")
    with start_cluster(2, shares={1: "0,1", 2: "2,3"}, shared={str(driver): (0, 1, 2)}) as cluster:

        def said(command: str) -> list[str]:
            done = cluster.ssh(2, command)
            assert done.returncode == 0, done
            return done.stdout.split("\n")[:-1]

        assert said("nvidia-smi --query-gpu=index --format=csv,noheader") == ["2", "3"]
        assert [line.split()[1] for line in said("nvidia-smi -L")] == ["2:", "3:"]
        assert [line.split()[1] for line in said("nvidia-smi nvlink -s") if line.startswith("GPU")] == ["2:", "3:"]
        # Whoever asks for one gets that one; what knows no -i is asked as it is.
        assert said("nvidia-smi -i 3 --query-gpu=index --format=csv,noheader") == ["3"]
        said("nvidia-smi topo -m")
        assert (driver / "calls").read_text().splitlines()[-1] == "topo -m"
        assert said('echo "$CUDA_VISIBLE_DEVICES $NCCL_HOSTID $NCCL_NVLS_ENABLE"') == ["2,3 node2 0"]
        assert said("bash -lc 'nvidia-smi --query-gpu=index'") == ["2", "3"]
        # Containers hide what the driver tells of other GPUs, by the kernel's way to write their addresses.
        hidden = [line.split("\t")[2] for line in (cluster.spec.folder(2) / "mounts").read_text().splitlines()]
        shown = [f"/proc/driver/nvidia/gpus/0000:0{number}:0a.0" for number in range(4)]
        assert [path for path in hidden if path in shown] == shown[:2]
