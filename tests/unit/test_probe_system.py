"""What the node side reads of a session and its machine: parsers, and answers of this very machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.node import cgroups, probe_interfaces, probe_session, probe_system
from orchestrator.node.kernel_log import parse_dmesg


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_limits_of_control_groups_of_version_2(tmp_path: Path) -> None:
    put(tmp_path, "cpu.max", "max 100000\n")
    put(tmp_path, "a/cpu.max", "150000 100000\n")
    put(tmp_path, "a/b/cpu.max", "400000 100000\n")
    put(tmp_path, "a/b/cpu.stat", "usage_usec 5\nthrottled_usec 2500000\n")
    put(tmp_path, "a/pids.max", "100\n")
    put(tmp_path, "a/pids.current", "60\n")
    put(tmp_path, "a/b/pids.max", "max\n")
    put(tmp_path, "a/b/pids.current", "3\n")
    own = "0::/a/b\n"
    root = str(tmp_path)
    assert cgroups.quota_cores(own, root) == 1.5
    assert cgroups.held_s(own, root) == 2.5
    assert cgroups.free_pids(own, root) == 40
    assert cgroups.quota_cores("0::/\n", root) is None


def test_limits_of_control_groups_of_version_1(tmp_path: Path) -> None:
    put(tmp_path, "cpu,cpuacct/slice/cpu.cfs_quota_us", "50000\n")
    put(tmp_path, "cpu,cpuacct/slice/cpu.cfs_period_us", "100000\n")
    put(tmp_path, "cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    put(tmp_path, "cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    put(tmp_path, "cpu,cpuacct/slice/cpu.stat", "nr_throttled 3\nthrottled_time 1500000000\n")
    own = "4:cpu,cpuacct:/slice\n1:name=systemd:/x\n"
    assert cgroups.quota_cores(own, str(tmp_path)) == 0.5
    assert cgroups.held_s(own, str(tmp_path)) == 1.5
    assert cgroups.free_pids(own, str(tmp_path)) is None


def test_settings_of_logind() -> None:
    text = "[Login]\n#KillUserProcesses=no\nKillUserProcesses=Yes\n ; x\nRemoveIPC = no\n"
    assert probe_session.parse_settings(text) == {"KillUserProcesses": "yes", "RemoveIPC": "no"}


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: path.write_text(""), "no folder"),
        (lambda path: path.symlink_to(path.parent / "gone"), "a link to nothing"),
        (lambda path: path.mkdir(), "folder"),
        (lambda _: None, "missing"),
        (lambda path: put(path, "runs", ""), "a folder whose runs is no folder"),
    ],
)
def test_what_lies_where_our_folder_is(tmp_path: Path, make: object, kind: str) -> None:
    make(tmp_path / ".aorta")  # type: ignore[operator]
    assert probe_session.kind_of_run_folder(str(tmp_path / ".aorta")) == kind


def test_options_of_mounts() -> None:
    text = "/dev/sda1 / ext4 rw,relatime 0 0\ntmpfs /tmp\\040x tmpfs rw,noexec,nosuid 0 0\n/dev/sdb / ext4 ro 0 0\n"
    assert probe_system.mount_options(text) == {"/": ["ro"], "/tmp x": ["rw", "noexec", "nosuid"]}


def test_troubles_of_the_kernel_are_folded_by_kind() -> None:
    text = """[  100.000000] blk_update_request: I/O error, dev sda, sector 1
[  200.000000] blk_update_request: I/O error, dev sda, sector 2
[  250.000000] nfs: server filer not responding, still trying
[  300.000000] Out of memory: Killed process 77 (python3)
[  310.000000] audit: avc:  denied  { execute } for comm="python3"
[  320.000000] eth0: link up
"""
    found = {one["kind"]: one for one in probe_system.fold_troubles(parse_dmesg(text), 400.0)}
    assert set(found) == {"disk", "network file system", "memory", "denied"}
    assert (found["disk"]["count"], found["disk"]["age_s"]) == (2, 200.0)
    assert "sector 2" in found["disk"]["text"]


def test_old_files_in_shared_memory_that_nobody_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_system, "SHM", str(tmp_path))
    for name in ("torch_1", "nccl-held", "torch_new", "other"):
        (tmp_path / name).write_bytes(b"x" * 1024)
        os.utime(tmp_path / name, (1, 1) if name != "torch_new" else None)
    with (tmp_path / "nccl-held").open():
        found = probe_system.probe_shm({})["system"]
    assert found["stale_shm"] == [str(tmp_path / "torch_1")]


def test_ufw_is_on_or_off() -> None:
    assert probe_interfaces.parse_ufw("# ENABLED=no\nENABLED=yes\n")
    assert not probe_interfaces.parse_ufw("ENABLED=no\nLOGLEVEL=low\n")


def test_this_machine_answers_everything_without_an_error() -> None:
    session = probe_session.probe_session({"require_commands": ["sh", "no-such-command"]})["session"]
    assert session["commands"]["sh"].endswith("/sh")
    assert session["commands"]["no-such-command"] == ""
    assert session["temporary"]["exists"]
    answer = probe_system.probe_system({})
    assert answer["system"]["cores"] == os.cpu_count()
    assert {one["role"] for one in probe_system.probe_mounts({})["system"]["mounts"]} == {"HOME", "workdir"}
