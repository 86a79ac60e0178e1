"""What the node side reads of the health of GPUs, from outputs of several generations and broken ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node import kernel_log, probe_gpus, probe_health, probe_xid, smi, smi_health

DATA = Path(__file__).parents[1] / "data" / "smi"
FIRST, SECOND = "GPU-75e2d533-69b7-2813-c19f-c30dda65ce01", "GPU-d7f7c75f-4846-113c-e8d8-d66a51133c60"


def read(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def pick(value: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(value[name] for name in names)


def test_two_h100_that_are_well() -> None:
    first, second = smi_health.parse_nvidia_health(read("nvidia_h100_health.xml"))
    assert pick(first, "index", "uuid", "pci", "architecture") == (0, FIRST, "0000:3b:00.0", "Hopper")
    assert pick(second, "index", "uuid", "pci", "temperature_c") == (1, SECOND, "0000:5f:00.0", 33)
    assert pick(first, "persistence", "compute_mode", "mig", "mig_slices") == (True, "Default", False, 0)
    assert pick(first, "throttle", "recovery", "ecc", "ecc_uncorrected") == (["gpu_idle"], "", True, 0)
    # What was never corrected before the last reset counts apart.
    assert first["ecc_uncorrected_ever"] == 1
    assert pick(first, "rows_failed", "rows_pending", "rows_uncorrected") == (False, False, 0)
    assert pick(first, "power_limit_w", "power_default_w", "pcie_width", "pcie_width_most") == (700, 700, 16, 16)
    assert pick(first, "fabric_state", "fabric_status") == ("Completed", "Success")


def test_two_h100_that_are_broken() -> None:
    first, second = smi_health.parse_nvidia_health(read("nvidia_h100_health_broken.xml"))
    assert first["throttle"] == ["hw_slowdown", "hw_power_brake_slowdown"]
    assert pick(first, "ecc_uncorrected", "rows_uncorrected", "rows_pending", "recovery") == (3, 3, True, "Reset")
    assert pick(second, "rows_failed", "fabric_state", "fabric_status") == (True, "In Progress", "")
    assert pick(second, "temperature_c", "recovery") == (88, "Drain and Reset")


def test_an_old_driver_has_other_names_for_the_same() -> None:
    (gpu,) = smi_health.parse_nvidia_health(read("nvidia_v100_health.xml"))
    assert gpu["throttle"] == ["sw_power_cap", "sw_thermal_slowdown"]
    assert pick(gpu, "ecc_uncorrected", "ecc_uncorrected_ever", "rows_uncorrected") == (1, 6, 5)
    assert pick(gpu, "rows_pending", "rows_failed", "mig", "architecture") == (True, None, None, "")
    assert pick(gpu, "power_limit_w", "power_default_w", "pcie_width", "pcie_width_most") == (250, 300, 8, 16)
    assert pick(gpu, "persistence", "compute_mode") == (False, "Exclusive_Process")


def test_mig_slices_and_a_reset_that_is_required() -> None:
    (gpu,) = smi_health.parse_nvidia_health(read("nvidia_a100_mig_health.xml"))
    assert pick(gpu, "mig", "mig_slices", "recovery", "throttle") == (True, 2, "Reset", [])
    assert pick(gpu, "rows_pending", "rows_failed", "rows_uncorrected", "fabric_state") == (None, None, None, "")


def test_what_a_card_does_not_tell_is_none_and_never_well() -> None:
    (gpu,) = smi_health.parse_nvidia_health(read("nvidia_geforce_health.xml"))
    names = ("persistence", "throttle", "ecc", "ecc_uncorrected", "rows_pending", "temperature_c", "power_limit_w")
    assert pick(gpu, *names) == (None,) * len(names)


@pytest.mark.parametrize("name", ["nvidia_no_driver.txt", "nvidia_mismatch.txt", "garbage.txt"])
def test_what_is_no_document_is_told(name: str) -> None:
    first = read(name).splitlines()[0]
    with pytest.raises(smi.OddOutputError) as caught:
        smi_health.parse_nvidia_health(read(name))
    assert first[:100] in str(caught.value)
    # A tool that was killed in the middle.
    with pytest.raises(smi.OddOutputError):
        smi_health.parse_nvidia_health(read("nvidia_h100_health.xml")[:3000])


def test_links() -> None:
    links = smi_health.parse_nvlinks(read("nvidia_nvlink.txt"))
    assert links == {
        FIRST: {"links_up": 18, "links_down": 0},
        SECOND: {"links_up": 16, "links_down": 2},
        "GPU-222": {"links_up": 0, "links_down": 0},
    }


def test_addresses_on_the_bus_have_one_form() -> None:
    forms = ("00000000:3B:00.0", "0000:3b:00.0", "PCI:0000:3b:00", "3b:00.0")
    assert {smi_health.pci_address(form) for form in forms} == {"0000:3b:00.0"}
    assert smi_health.pci_address("") == ""


def test_amd_smi_of_old_and_new_versions() -> None:
    names = ("amd_list.json", "amd_health_static.json", "amd_health_metric.json", "amd_bad_pages.json")
    first, second = smi_health.parse_amd_health(*(read(name) for name in names))
    assert pick(first, "pci", "throttle", "temperature_c", "power_limit_w") == ("0000:05:00.0", [], 42, 750)
    assert pick(first, "ecc_uncorrected", "rows_pending") == (0, False)
    assert second["throttle"] == ["hw_slowdown", "hw_thermal_slowdown", "sw_power_cap"]
    assert pick(second, "temperature_c", "power_limit_w", "power_default_w") == (54, 500, 750)
    assert pick(second, "ecc_uncorrected", "rows_pending") == (2, True)
    # Without what tells more, nothing is known and nothing is well.
    bare = smi_health.parse_amd_health(read("amd_list.json"), "", read("garbage.txt"))[0]
    assert pick(bare, "throttle", "ecc_uncorrected", "rows_pending", "power_limit_w") == (None,) * 4


def test_rocm_smi() -> None:
    first, second = smi_health.parse_rocm_health(read("rocm_health.json"))
    assert pick(first, "pci", "temperature_c", "power_limit_w") == ("0000:29:00.0", 41, 560)
    assert second["temperature_c"] is None


def test_the_kernel_log_of_a_new_driver() -> None:
    events = probe_xid.fold_events(probe_xid.parse_kmsg(read("kmsg_nvidia_580.txt")), 7200.0)
    assert [pick(event, "kind", "code", "pci", "count", "age_s") for event in events] == [
        ("xid", 13, "0000:3b:00.0", 2, 199.9),
        ("xid", 79, "0000:5f:00.0", 1, 100.0),
        ("xid", 154, "0000:5f:00.0", 1, 100.0),
        ("sxid", 20034, "0000:c1:00.0", 1, 50.0),
        ("xid", 119, "0000:3b:00.0", 1, 40.0),
    ]
    assert "fallen off the bus" in events[1]["text"]
    assert max(len(event["text"]) for event in events) <= probe_xid.MOST_TEXT


def test_the_kernel_log_of_an_old_driver() -> None:
    events = probe_xid.fold_events(probe_xid.parse_dmesg(read("dmesg_nvidia_470.txt")), 9200.0)
    assert [pick(event, "kind", "code", "pci") for event in events] == [
        ("xid", 48, "0000:15:00.0"),
        ("xid", 63, "0000:15:00.0"),
        ("xid", 31, "0000:16:00.0"),
        ("mismatch", None, ""),
        ("init failed", None, "0000:17:00.0"),
    ]


def test_the_kernel_log_of_amdgpu() -> None:
    events = probe_xid.fold_events(probe_xid.parse_dmesg(read("dmesg_amdgpu.txt")), 300.0)
    assert [pick(event, "kind", "pci", "count") for event in events] == [
        ("amdgpu ring timeout", "", 1),
        ("amdgpu reset", "0000:05:00.0", 2),
        ("amdgpu page fault", "0000:26:00.0", 1),
        ("amdgpu ras", "0000:26:00.0", 1),
        ("amdgpu reset failed", "0000:46:00.0", 1),
        ("amdgpu lost", "0000:66:00.0", 1),
    ]


def test_a_log_that_may_not_be_read_is_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "KMSG", str(tmp_path / "none"))
    put_tool(tmp_path, "journalctl", "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    events, trouble = probe_xid.read_events()
    assert events == []
    assert "No such file or directory; " in trouble
    assert "journal" in trouble
    put_tool(tmp_path, "journalctl", f"cat {DATA}/dmesg_nvidia_470.txt")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    events, trouble = probe_xid.read_events()
    assert (len(events), trouble) == (5, "")


def put_tool(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def put_device(bus: Path, address: str, vendor: str, kind: str, driver: str = "", config: bytes = b"\xde\x10") -> None:
    folder = bus / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(vendor + "\n")
    (folder / "class").write_text(kind + "\n")
    (folder / "config").write_bytes(config + b"\0\0")
    if driver:
        (bus.parent / driver).mkdir(exist_ok=True)
        (folder / "driver").symlink_to(bus.parent / driver)


def test_the_bus_shows_gpus_and_switches_and_what_fell_off(tmp_path: Path) -> None:
    bus = tmp_path / "bus"
    put_device(bus, "0000:3b:00.0", "0x10de", "0x030200", "nvidia")
    put_device(bus, "0000:5f:00.0", "0x10de", "0x030200", "nvidia", b"\xff" * 2 + b"\xff" * 2)
    put_device(bus, "0000:c1:00.0", "0x10de", "0x068000", "nvidia-nvswitch")
    put_device(bus, "0000:05:00.0", "0x1002", "0x120000", "amdgpu")
    put_device(bus, "0000:06:00.0", "0x1002", "0x030000")
    put_device(bus, "0000:07:00.1", "0x10de", "0x040300", "snd_hda_intel")
    put_device(bus, "0000:08:00.0", "0x1a03", "0x030000", "ast")
    found = probe_health.read_pci(str(bus))
    assert [pick(one, "address", "kind", "vendor", "driver", "gone", "display") for one in found] == [
        ("0000:05:00.0", "gpu", "amd", "amdgpu", False, False),
        ("0000:06:00.0", "gpu", "amd", "", False, True),
        ("0000:3b:00.0", "gpu", "nvidia", "nvidia", False, False),
        ("0000:5f:00.0", "gpu", "nvidia", "nvidia", True, False),
        ("0000:c1:00.0", "switch", "nvidia", "nvidia-nvswitch", False, False),
    ]
    assert probe_health.read_pci(str(tmp_path / "none")) == []


def test_versions_of_module_and_library(tmp_path: Path) -> None:
    assert probe_health.parse_module_version(read("proc_nvidia_version_closed.txt")) == "535.154.05"
    assert probe_health.parse_module_version(read("proc_nvidia_version_open.txt")) == "580.159.04"
    assert probe_health.parse_module_version("") == ""
    (tmp_path / "libnvidia-ml.so.535.161.08").touch()
    (tmp_path / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.535.161.08")
    assert probe_health.find_library_version((str(tmp_path / "none"), str(tmp_path))) == "535.161.08"
    assert probe_health.find_library_version((str(tmp_path / "none"),)) == ""


def test_a_lost_card_costs_the_answer_of_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tool(
        tmp_path,
        "nvidia-smi",
        f'case "$*" in -q*) cat {DATA}/nvidia_h100_health_lost.txt; exit 15;; nvlink*) cat {DATA}/nvidia_nvlink.txt;; '
        f"*compute-apps*) ;; *) cat {DATA}/nvidia_h100_gpus_lost.txt; exit 15;; esac",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    told = probe_gpus.probe_gpus({})
    assert [gpu["uuid"] for gpu in told["gpus"]] == [FIRST]
    assert "Unable to determine the device handle for GPU1" in told["unknown"]["gpus.lost"]
    health = probe_health.probe_health({})["health"]
    assert [(gpu["uuid"], gpu["links_up"]) for gpu in health["gpus"]] == [(FIRST, 18)]
    gpus, _ = smi.parse_nvidia_gpus(read("nvidia_gpus_lost_old.csv"))
    assert len(gpus) == 1
    assert "[GPU is lost]" in smi.find_lost(read("nvidia_gpus_lost_old.csv"))


def test_a_mismatch_is_told_with_its_first_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tool(tmp_path, "nvidia-smi", f"cat {DATA}/nvidia_mismatch.txt; exit 18")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for trouble in (
        probe_gpus.probe_gpus({})["unknown"]["gpus"],
        probe_health.probe_health({})["unknown"]["health.gpus"],
    ):
        assert trouble.startswith(
            "nvidia-smi ended with 18: Failed to initialize NVML: Driver/library version mismatch"
        )
        assert "580.173" in trouble


def test_a_node_without_gpus_is_asked_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_health, "PCI", str(tmp_path))
    monkeypatch.setattr(probe_health, "read_pci", list)
    monkeypatch.setattr(probe_health, "find_tool", lambda _: "")
    monkeypatch.setattr(probe_xid, "read_events", lambda: pytest.fail("the kernel log was read"))
    assert probe_health.probe_health({}) == {"health": {"pci": [], "switches": 0}}


def test_two_h200_as_they_were_captured() -> None:
    first, second = smi_health.parse_nvidia_health(read("nvidia_h200_health.xml"))
    for gpu in (first, second):
        assert pick(gpu, "architecture", "persistence", "compute_mode", "mig") == ("Hopper", True, "Default", False)
        assert pick(gpu, "ecc", "ecc_uncorrected", "rows_failed", "rows_pending") == (True, 0, False, False)
        assert pick(gpu, "power_limit_w", "pcie_width", "pcie_width_most", "recovery") == (700, 16, 16, "")
        assert pick(gpu, "fabric_state", "fabric_status") == ("Completed", "Success")
    assert pick(first, "index", "pci", "uuid") == (0, "0000:00:06.0", "GPU-00000000-0000-4000-8000-000000000000")
    gpus, driver = smi.parse_nvidia_gpus(read("nvidia_h200_gpus.csv"))
    assert [gpu["model"] for gpu in gpus] == ["NVIDIA H200"] * 2
    assert driver == "580.159.04"


def test_one_h200_without_nvlink_as_it_was_captured() -> None:
    (gpu,) = smi_health.parse_nvidia_health(read("nvidia_h200_alone_health.xml"))
    assert pick(gpu, "index", "model", "architecture", "pci") == (0, "NVIDIA H200", "Hopper", "0000:00:06.0")
    assert pick(gpu, "fabric_state", "fabric_status", "throttle", "ecc_uncorrected") == ("", "", [], 0)
    assert pick(gpu, "pcie_width", "pcie_width_most", "power_limit_w", "power_default_w") == (16, 16, 700, 700)
    # Its nvlink -s ends well and says nothing.
    assert smi_health.parse_nvlinks("") == {}


def test_links_and_module_of_two_h200_as_they_were_captured() -> None:
    links = smi_health.parse_nvlinks(read("nvidia_h200_nvlink.txt"))
    assert links["GPU-00000000-0000-4000-8000-000000000001"] == links["GPU-00000000-0000-4000-8000-000000000000"]
    assert probe_health.parse_module_version(read("proc_nvidia_version_h200.txt")) == "580.159.04"


@pytest.mark.parametrize(("count", "kind"), [("10", "amdgpu ras"), ("0", None)])
def test_errors_of_amdgpu_count_unless_there_are_none(count: str, kind: str | None) -> None:
    text = f"amdgpu 0000:26:00.0: amdgpu: {count} uncorrectable hardware errors detected in umc block"
    event = probe_xid.parse_event(text)
    assert (event["kind"] if event else None) == kind
