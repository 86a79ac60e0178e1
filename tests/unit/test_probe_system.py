"""What the node side reads of a session and its machine: parsers, and answers of this very machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from orchestrator.node import cgroups, probe_interfaces, probe_system, probe_work, processes
from orchestrator.node import glance as node_glance
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


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("nvme nvme0: I/O 12 QID 3 timeout, aborting", "disk"),
        ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff", "disk"),
        ("ata1.00: failed command: READ FPDMA QUEUED", "disk"),
        ("EXT4-fs error (device sda1): ext4_find_entry:1463: inode #2", "file system"),
        ("XFS (nvme0n1p1): Log I/O Error Detected. Shutting down filesystem", "file system"),
        ("EXT4-fs (sda1): Remounting filesystem read-only", "file system"),
        ("Memory cgroup out of memory: Killed process 812 (python3) total-vm:9kB", "memory"),
        ("Lustre: data-OST0000: Connection to data-OST0000 (at 10.0.0.1@tcp) was lost", "network file system"),
        (
            "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 17: dc2040000000011b, Processor context corrupt",
            "hardware",
        ),
        ("{1}[Hardware Error]: event severity: recoverable", "hardware"),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [python3:77]", "stall"),
        ("INFO: task python3:812 blocked for more than 120 seconds.", "stall"),
        ('audit: apparmor="DENIED" operation="open" profile="/usr/sbin/sshd" name="/x"', "denied"),
        # What an ordinary machine says at its start.
        ("nvme nvme0: Shutdown timeout set to 8 seconds", None),
        ("nvme nvme0: 8/0/0 default/read/poll queues", None),
        ("blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ)", None),
        ("Buffer I/O error on dev sr0, logical block 0, async page read", None),
        ("{1}[Hardware Error]: event severity: corrected", None),
        ("mce: [Hardware Error]: Machine check events logged", None),
        ("EDAC MC0: Giving out device to module skx_edac", None),
        ("pcieport 0000:00:1c.0: AER: enabled with IRQ 24", None),
        ("RAS: Correctable Errors collector initialized.", None),
        ("EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro", None),
        ('audit: apparmor="DENIED" operation="open" profile="snap.firefox" comm="firefox"', None),
        ("systemd[1]: Listening on Journal Socket", None),
    ],
)
def test_what_counts_as_trouble(line: str, kind: str | None) -> None:
    assert [one["kind"] for one in probe_system.fold_troubles([(1.0, line)], 2.0)] == ([kind] if kind else [])
    if kind:
        assert probe_system.is_worth_reading(b"3,1,1,-;" + line.encode()), "the line would not be read at all"


def glance(
    used: int = 0, state: str = "S", ticks: int = 5, *, kernel: bool = False, parent: int = 1
) -> probe_work.Glance:
    return probe_work.Glance(ticks, state, parent, kernel, used)


def test_a_line_of_proc_stat_with_an_odd_name() -> None:
    fields = ["D", "1", "2", "3", "0", "-1", "2129984", "0", "0", "0", "0", "40", "2"] + ["0"] * 6 + ["777", "9"]
    found = probe_work.parse_stat("12 (a) (b) S) " + " ".join(fields))
    assert found == probe_work.Glance(777, "D", 1, kernel=True, used=42)
    assert probe_work.parse_stat("") is None
    assert probe_work.parse_stat("12 (cut of") is None


def test_who_keeps_the_processors_busy_is_named_and_nobody_who_took_an_old_pid() -> None:
    rate = os.sysconf("SC_CLK_TCK")
    me = os.getpid()
    first = {1: glance(100), 2: glance(100), 3: glance(0), me: glance(0)}
    again = {1: glance(100 + rate), 2: glance(100), 3: glance(9 * rate, ticks=6), 4: glance(rate), me: glance(rate)}
    found = probe_work.name_busy(first, again, 2.0)
    assert [(one["pid"], one["cores"]) for one in found] == [(1, 0.5)]


def test_what_we_started_beside_the_probe_is_no_load_of_others() -> None:
    porter = os.getppid()
    table = {2: glance(parent=porter), 3: glance(parent=2), 4: glance(parent=1), os.getpid(): glance(parent=porter)}
    assert probe_work.list_ours(table) == {2, 3, os.getpid()}


@pytest.mark.parametrize(("load", "early", "waits"), [(9e9, True, False), (9e9, False, True), (0.0, True, False)])
def test_who_was_looked_at_early_is_known_without_a_wait(
    monkeypatch: pytest.MonkeyPatch, *, load: float, early: bool, waits: bool
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(node_glance, "_early", [])
    monkeypatch.setattr(probe_work, "_looks", [])
    moments: list[float] = [time.monotonic()]
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        moments[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: moments[0])
    monkeypatch.setattr(time, "sleep", wait)
    if early:
        node_glance.look_early()
        moments[0] += probe_work.LOOK_S
    busy = probe_work.probe_work({})["system"].get("busy")
    assert (busy is not None) == (load > 0)
    assert [seconds > 0 for seconds in waited] == ([waits] if load else [])


@pytest.mark.parametrize(
    ("switches", "waits_in", "stuck", "unknown"),
    [
        (("7", "7"), "rpc_wait_bit_killable", [33], False),
        (("7", "7"), "os_acquire_rwlock_write", [33], False),
        (("7", "8"), "rpc_wait_bit_killable", [], False),
        (("7", "7"), "io_schedule", [], False),
        (("7", "7"), "0", None, True),
        (("", ""), "rpc_wait_bit_killable", [], False),
    ],
)
def test_stuck_is_what_has_not_run_between_two_looks(
    monkeypatch: pytest.MonkeyPatch,
    *,
    switches: tuple[str, str],
    waits_in: str,
    stuck: list[int] | None,
    unknown: bool,
) -> None:
    looks = iter(switches)
    monkeypatch.setattr(probe_work, "STUCK_LOOK_S", 0.0)
    monkeypatch.setattr(probe_work, "waiting", lambda: [33])
    monkeypatch.setattr(probe_work, "switches_of", lambda _: next(looks, switches[1]))
    monkeypatch.setattr(probe_work, "read_text", lambda _: waits_in)
    monkeypatch.setattr(processes, "command_of", lambda _: "ls /data")
    answer = probe_work.probe_stuck({})
    found = answer["system"]["stuck"]
    assert (None if found is None else [one["pid"] for one in found]) == stuck
    assert ("system.stuck" in answer.get("unknown", {})) is unknown


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
    system = probe_system.probe_system({})["system"]
    assert system["overcommit"] in (0, 1, 2)
    assert system["uptime_s"] > 0
    assert probe_work.probe_work({})["system"]["cores"] == os.cpu_count()
    log = probe_system.probe_kernel_log({})
    assert "system" in log or log["unknown"]["system.troubles"]
    assert {one["role"] for one in probe_system.probe_mounts({})["system"]["mounts"]} == {"HOME", "workdir"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("table inet filter {\n\tchain input {\n\t\ttype filter hook input priority filter;\n", "inet filter input"),
        ("table ip6 t{chain out { type filter hook output priority 0; }\nchain i{type filter hook input", "ip6 t i"),
        ("table mine {\n chain in { type filter hook input priority 0; policy drop; }}", "ip mine in"),
        ("table inet f {\n chain x {\n }\n # hook input\n}", ""),
        ("flush ruleset\n", ""),
        ("", ""),
    ],
)
def test_the_chain_of_nftables_that_comes_first_is_found(text: str, found: str) -> None:
    assert probe_interfaces.parse_nft_input(text) == found
