"""What check finds of GPUs and RDMA: recorded outputs of the drivers' tools, and files of the kernel, put on nodes."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from asking import Checked, check
from cluster import Cluster
from conftest import FreshCluster

DATA = Path(__file__).parents[1] / "data" / "smi"
HUNG_S = 6.0
"""A hanging tool costs its own limit of 5 s, and a little."""


def give_torch_cuda(cluster: Cluster, cuda: str) -> None:
    """Let the stand-in for torch say that it was built for GPUs."""
    (version,) = (cluster.spec.root / "fake").glob("lib/*/site-packages/torch/version.py")
    version.write_text(f'__version__ = "2.13.0"\ncuda = "{cuda}"\nhip = None\n')


def say(cluster: Cluster, k: int, kind: str, name: str, status: int = 0) -> None:
    """Let nvidia-smi of a node print a recorded output."""
    (cluster.folder(k) / f"nvidia_smi.{kind}").write_bytes((DATA / name).read_bytes())
    (cluster.folder(k) / f"nvidia_smi.{kind}.exit").write_text(f"{status}\n")


def put_files(cluster: Cluster, k: int, folder: str, files: Mapping[str, str]) -> None:
    """Put files over a folder of the kernel, in the eyes of one node."""
    script = ["set -e", f"mount -t tmpfs -o mode=755 tmpfs {folder}"]
    for name, text in files.items():
        path = f"{folder}/{name}"
        script.append(f"mkdir -p {shlex.quote(str(Path(path).parent))}")
        script.append(f"printf %s {shlex.quote(text)} >{shlex.quote(path)}")
    done = cluster.exec(k, ["sh", "-c", "\n".join(script)])
    assert done.returncode == 0, done


def put_bus(cluster: Cluster, k: int, count: int) -> None:
    """Put GPUs of NVIDIA on the PCI bus of a node."""
    files: dict[str, str] = {}
    for number in range(count):
        address = f"0000:{16 + number:02x}:00.0"
        files |= {f"{address}/vendor": "0x10de\n", f"{address}/class": "0x030200\n"}
    put_files(cluster, k, "/sys/bus/pci/devices", files)
    links = "; ".join(f"ln -s /x/nvidia /sys/bus/pci/devices/0000:{16 + n:02x}:00.0/driver" for n in range(count))
    assert cluster.exec(k, ["sh", "-c", links]).returncode == 0


def put_kernel_log(cluster: Cluster, k: int, text: str, age_s: float) -> None:
    """Put one line into the kernel log of a node, no older than this boot."""
    stamp = int(max(1.0, time.clock_gettime(time.CLOCK_MONOTONIC) - age_s) * 1e6)
    (cluster.folder(k) / "tmp" / "kmsg").write_text(f"4,1,{stamp},-;{text}\n")
    done = cluster.exec(k, ["mount", "--bind", "/tmp/kmsg", "/dev/kmsg"])
    assert done.returncode == 0, done


@contextmanager
def busy(cluster: Cluster, k: int) -> Iterator[int]:
    """Let a process of the node hold memory of its first GPU."""
    words = [*cluster.ssh_words(k), "echo $$; exec cat"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        line = f"{pid}, GPU-{k:08x}-0000-0000-0000-{0:012x}, 4706, /usr/bin/cat\n"
        (cluster.folder(k) / "nvidia_smi.apps").write_text(line)
        yield pid
        process.communicate(timeout=10)


def run_remedy(checked: Checked, cluster: Cluster, name: str, k: int) -> str:
    """Type what a finding says, up to the words for those who can do without."""
    words = shlex.split(checked.finding(name, k - 1)["remedy"].partition("; or ")[0])
    assert words[0] == "ssh"
    done = cluster.ssh(k, words[-1])
    assert not done.stderr, done
    return done.stdout


@pytest.mark.namespaces
def test_broken_gpus_are_told_and_a_hanging_driver_costs_one_fact(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(6, gpus=2)
    give_torch_cuda(cluster, "12.8")
    say(cluster, 3, "health", "nvidia_h100_health_broken.xml")
    put_kernel_log(cluster, 3, "NVRM: Xid (PCI:0000:3b:00): 48, pid=9, name=python3, DBE", 60)
    say(cluster, 4, "gpus", "nvidia_h100_gpus_lost.txt", 15)
    say(cluster, 4, "health", "nvidia_h100_health_lost.txt", 15)
    put_bus(cluster, 4, 2)
    put_kernel_log(cluster, 4, "NVRM: Xid (PCI:0000:5f:00): 79, pid='<unknown>', GPU has fallen off the bus.", 9000)
    for kind in ("gpus", "health", "links", "apps"):
        say(cluster, 5, kind, "nvidia_mismatch.txt", 18)
    put_bus(cluster, 5, 2)
    put_files(cluster, 5, "/proc/driver", {"nvidia/version": (DATA / "proc_nvidia_version_open.txt").read_text()})
    (cluster.folder(6) / "nvidia_smi.sleep").write_text("60\n")
    with busy(cluster, 2) as pid:
        checked = check(cluster, tmp_path, python=cluster.fake_python)
        assert str(pid) in run_remedy(checked, cluster, "gpu-free", 2)
    assert {one for one in checked.failing() if one[0].startswith("gpu")} == {
        *{
            ("gpu-free", 1),
            ("gpu-ecc", 2),
            ("gpu-rows", 2),
            ("gpu-recovery", 2),
            ("gpu-throttle", 2),
            ("gpu-fabric", 2),
        },
        *{("gpu-errors", 2), ("gpu-seen", 3), ("gpu-errors", 3), ("gpu-module", 4)},
    }
    assert f"in use by pid {pid} ({cluster.spec.user}): cat" in checked.finding("gpu-free", 1)["detail"]
    assert checked.finding("gpu-ecc", 2)["detail"] == "uncorrected memory errors: GPU 0: 3"
    assert "nvidia-smi --gpu-reset -i 0" in checked.finding("gpu-ecc", 2)["remedy"]
    assert "Xid 48 (double bit memory error) 0000:3b:00.0, 1 min ago" in checked.finding("gpu-errors", 2)["detail"]
    assert "Unable to determine the device handle for GPU1" in checked.finding("gpu-seen", 3)["detail"]
    assert "Xid 79 (fell off the bus)" in checked.finding("gpu-errors", 3)["detail"]
    assert "kernel module 580.159.04, library " in checked.finding("gpu-module", 4)["detail"]
    assert "sudo reboot" in checked.finding("gpu-module", 4)["remedy"]
    assert checked.finding("gpu-seen", 0)["status"] == "ok"

    # The hanging driver is one fact of one node: nobody else waits for it.
    assert checked.finding("gpu-ecc", 5)["status"] == "unknown"
    assert "nvidia-smi gave no answer within 5 s" in checked.finding("gpu-ecc", 5)["detail"]
    for name in ("disk", "memory", "torch"):
        assert checked.finding(name, 5)["status"] == "ok"
    seconds = [node["facts"]["answer_s"] for node in checked.document["nodes"]]
    assert seconds[5] > 5
    assert max(seconds[:5]) < HUNG_S, seconds


@pytest.mark.namespaces
def test_garbage_old_drivers_hidden_gpus_and_rdma_ports(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(3, gpus=2)
    give_torch_cuda(cluster, "13.0")
    say(cluster, 1, "health", "garbage.txt")
    table = cluster.folder(2) / "gpus.csv"
    table.write_text(table.read_text().replace("570.00", "580.65.06"))
    with (cluster.home(3) / ".bashrc").open("a") as file:
        file.write("export CUDA_VISIBLE_DEVICES=1\n")
    put_bus(cluster, 2, 3)
    for k in (1, 2, 3):
        put_ports(cluster, k, "1: DOWN" if k == 3 else "4: ACTIVE", "200" if k == 2 else "400")
    checked = check(cluster, tmp_path, python=cluster.fake_python)
    assert "nvidia-smi -q -x gave no XML: Segmentation fault" in checked.finding("gpu-ecc", 0)["detail"]
    assert checked.finding("gpu-ecc", 0)["status"] == "unknown"
    assert "CUDA 13.0 of torch needs driver 580.65, here is 570.00" in checked.finding("gpu-runtime", 0)["detail"]
    assert checked.finding("gpu-runtime", 1)["status"] == "ok"
    assert "driver 580.65.06, but 570.00" in checked.finding("driver-equal", 1)["detail"]
    assert checked.finding("gpu-seen", 1)["detail"] == "3 GPUs on the bus, the driver shows 2"
    assert "CUDA_VISIBLE_DEVICES=1: 1 of 2 GPUs" in checked.finding("gpu-visible", 2)["detail"]
    assert "export CUDA_VISIBLE_DEVICES=1" in run_remedy(checked, cluster, "gpu-visible", 3)
    assert checked.finding("rdma-ports", 2)["detail"] == "1 of 2 ports active: mlx5_1:1 DOWN (Polling)"
    assert "mlx5_1:1 200 Gb/s, elsewhere 400" in checked.finding("rdma-rate", 1)["detail"]
    assert checked.finding("peer-memory", 0)["status"] == "warn"


def put_ports(cluster: Cluster, k: int, state: str, rate: str) -> None:
    """Put two InfiniBand ports on a node; the second is as told."""
    keep = "mkdir -p /run/net && mount --bind /sys/class/net /run/net"
    assert cluster.exec(k, ["sh", "-c", keep]).returncode == 0
    files: dict[str, str] = {}
    for device, its_state, its_rate in (("mlx5_0", "4: ACTIVE", "400"), ("mlx5_1", state, rate)):
        place = f"infiniband/{device}/ports/1"
        files |= {f"{place}/state": its_state, f"{place}/rate": f"{its_rate} Gb/sec (4X NDR)"}
        files |= {f"{place}/link_layer": "InfiniBand", f"{place}/phys_state": "2: Polling"}
    put_files(cluster, k, "/sys/class", files)
    back = "mkdir /sys/class/net && mount --bind /run/net /sys/class/net"
    assert cluster.exec(k, ["sh", "-c", back]).returncode == 0
