"""Reads what nvidia-smi, amd-smi and rocm-smi print of the health of GPUs; text in, plain values out."""

from __future__ import annotations

import re

from orchestrator.node.probe_command import OddOutputError
from orchestrator.node.smi import read_entries, read_inner, read_json, whole

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    Facts = Dict[str, Any]

# What the tools call one and the same reason for slow clocks.
AMD_REASONS = {
    "prochot_violation_status": "hw_slowdown",
    "socket_thermal_violation_status": "hw_thermal_slowdown",
    "vr_thermal_violation_status": "hw_thermal_slowdown",
    "hbm_thermal_violation_status": "hw_thermal_slowdown",
    "ppt_violation_status": "sw_power_cap",
}
_HEAD = re.compile(r"^GPU\s+\d+:.*\(UUID:\s*([^)\s]+)\)")
_LINK = re.compile(r"^\s*Link\s+\d+:\s*(.+?)\s*$")


def pci_address(text: str) -> str:
    """Give 00000000:3B:00.0, 3b:00.0 and PCI:0000:3b:00 the one form 0000:3b:00.0."""
    match = re.search(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", text.lower())
    if match is None:
        return ""
    domain, bus, device, function = match.groups()
    return f"{(domain or '0000')[-4:]}:{bus}:{device}.{function or '0'}"


def figure(text: Optional[str]) -> Optional[float]:
    """Give the number before a unit; None for "N/A", "[Not Supported]" and the like."""
    match = re.match(r"\s*(-?\d+(?:\.\d+)?)", text or "")
    return float(match.group(1)) if match else None


def switch(text: Optional[str]) -> Optional[bool]:
    """Read Enabled, Yes, Active and their opposites; None for anything else."""
    word = (text or "").strip().lower()
    if word in ("enabled", "yes", "active", "true"):
        return True
    return False if word in ("disabled", "no", "not active", "false") else None


def parse_nvidia_health(text: str) -> List[Facts]:
    """Read nvidia-smi -q -x of any generation: what a driver does not know is None.

    Raises:
        OddOutputError: it is no such document.
    """
    # Only where there is such a GPU is the parser worth its time.
    from xml.etree import ElementTree as ET  # noqa: PLC0415

    # Complaints of a card that is gone stand before or behind the document.
    found = re.search(r"<nvidia_smi_log.*</nvidia_smi_log>", text, re.DOTALL)
    # The clocks that a GPU could have are most of it.
    body = re.sub(r"<supported_clocks>.*?</supported_clocks>", "", found.group(), flags=re.DOTALL) if found else ""
    try:
        root = ET.fromstring(body)  # noqa: S314 - the node's own driver wrote it
    except ET.ParseError:
        said = text.strip().splitlines()
        raise OddOutputError("nvidia-smi -q -x gave no XML" + (f": {said[0][:200]}" if said else "")) from None
    return [_nvidia_gpu(index, gpu) for index, gpu in enumerate(root.iter("gpu"))]


def _nvidia_gpu(index: int, gpu: Any) -> Facts:
    def text(*paths: str) -> Optional[str]:
        return next((found for found in (gpu.findtext(path) for path in paths) if found is not None), None)

    recovery = (text("gpu_recovery_action") or "").strip()
    if switch(text("gpu_reset_status/reset_required")):
        recovery = "Reset"
    return {
        "index": index,
        "uuid": (text("uuid") or "").strip(),
        "model": (text("product_name") or "").strip(),
        "architecture": (text("product_architecture") or "").strip(),
        "pci": pci_address(gpu.get("id") or text("pci/pci_bus_id") or ""),
        "vbios": (text("vbios_version") or "").strip(),
        "persistence": switch(text("persistence_mode")),
        "compute_mode": (text("compute_mode") or "").strip(),
        "mig": switch(text("mig_mode/current_mig")),
        "mig_slices": len(gpu.findall("mig_devices/mig_device")),
        "recovery": "" if recovery in ("None", "N/A") else recovery,
        "fabric_state": _known(text("fabric/state", "gpu_fabric/state")),
        "fabric_status": _known(text("fabric/status", "gpu_fabric/status")),
        "pcie_width": _whole(text("pci/pci_gpu_link_info/link_widths/current_link_width")),
        "pcie_width_most": _whole(text("pci/pci_gpu_link_info/link_widths/max_link_width")),
        "throttle": _nvidia_throttle(gpu),
        "temperature_c": figure(text("temperature/gpu_temp")),
        "memory_temperature_c": figure(text("temperature/memory_temp")),
        "power_limit_w": figure(text("gpu_power_readings/current_power_limit", "power_readings/power_limit")),
        "power_default_w": figure(text("gpu_power_readings/default_power_limit", "power_readings/default_power_limit")),
        "ecc": switch(text("ecc_mode/current_ecc")),
        "ecc_uncorrected": _uncorrected(gpu.find("ecc_errors/volatile")),
        "ecc_uncorrected_ever": _uncorrected(gpu.find("ecc_errors/aggregate")),
        **_nvidia_rows(text),
    }


def _known(text: Optional[str]) -> str:
    word = (text or "").strip()
    return "" if word in ("N/A", "[N/A]", "Not Supported") else word


def _whole(text: Optional[str]) -> Optional[int]:
    value = figure(text)
    return None if value is None else int(value)


def _nvidia_throttle(gpu: Any) -> Optional[List[str]]:
    # Renamed with driver 535: throttle reasons are event reasons now.
    reasons = gpu.find("clocks_event_reasons")
    reasons = gpu.find("clocks_throttle_reasons") if reasons is None else reasons
    if reasons is None:
        return None
    names = [re.sub(r"^clocks_(event|throttle)_reason_", "", one.tag) for one in reasons if switch(one.text)]
    return names if any(switch(one.text) is not None for one in reasons) else None


def _uncorrected(errors: Any) -> Optional[int]:
    """Sum what no code could correct: by memory since Ampere, in one total before."""
    if errors is None:
        return None
    total = _whole(errors.findtext("double_bit/total"))
    if total is not None:
        return total
    counts = [_whole(one.text) for one in errors if "uncorrectable" in one.tag]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _nvidia_rows(text: Any) -> Facts:
    pending = [
        switch(text("remapped_rows/remapped_row_pending")),
        switch(text("retired_pages/pending_retirement", "retired_pages/pending_blacklist")),
        switch(text("ecc_errors/channel_repair_pending")),
        switch(text("ecc_errors/tpc_repair_pending")),
    ]
    known = [one for one in pending if one is not None]
    rows = _whole(text("remapped_rows/remapped_row_unc"))
    pages = _whole(text("retired_pages/double_bit_retirement/retired_count"))
    return {
        "rows_failed": switch(text("remapped_rows/remapped_row_failure")),
        "rows_pending": any(known) if known else None,
        "rows_uncorrected": pages if rows is None else rows,
    }


def parse_nvlinks(text: str) -> Dict[str, Facts]:
    """Read nvidia-smi nvlink -s: links that are up and down, by UUID; a GPU without NVLink is not in it."""
    found: Dict[str, Facts] = {}
    uuid = ""
    for line in text.splitlines():
        head, link = _HEAD.match(line), _LINK.match(line)
        if head is not None:
            uuid = head.group(1)
        elif uuid and "all links are inactive" in line.lower():
            # So it is for a card without a bridge, and for one that lost all of them: the peers tell.
            found[uuid] = {"links_up": 0, "links_down": 0}
        elif uuid and link is not None:
            counts = found.setdefault(uuid, {"links_up": 0, "links_down": 0})
            counts["links_down" if "inactive" in link.group(1).lower() else "links_up"] += 1
    return found


def _value(entry: Any, *keys: str) -> Optional[float]:
    value = read_inner(entry, *keys)
    return figure(str(value.get("value") if isinstance(value, dict) else value))


def parse_amd_health(listed: str, static: str, metric: str, pages: str = "") -> List[Facts]:
    """Read amd-smi list, static --limit --vbios, metric and bad-pages, each --json.

    Raises:
        OddOutputError: the list is not JSON.
    """
    statics, metrics, bad = _by_gpu(static), _by_gpu(metric), _by_gpu(pages)
    found = []
    for entry in read_entries(listed):
        index = whole(entry.get("gpu"))
        if index is None:
            continue
        more, now = statics.get(index, {}), metrics.get(index, {})
        uncorrected = _value(now, "ecc", "total_uncorrectable_count")
        power = _value(more, "limit", "power_cap") or _value(more, "limit", "ppt0", "power_cap")
        most = _value(more, "limit", "default_power_cap") or _value(more, "limit", "ppt0", "default_power_cap")
        hottest = [_value(now, "temperature", place) for place in ("hotspot", "edge")]
        found.append(
            {
                "index": index,
                "uuid": str(entry.get("uuid", "")),
                "pci": pci_address(str(entry.get("bdf", ""))),
                "vbios": str(read_inner(more, "vbios", "version") or ""),
                "throttle": amd_throttle(now),
                "temperature_c": next((one for one in hottest if one is not None), None),
                "memory_temperature_c": _value(now, "temperature", "mem"),
                "power_limit_w": power,
                "power_default_w": most,
                "ecc_uncorrected": None if uncorrected is None else int(uncorrected),
                "rows_pending": _amd_pages(bad[index], "pending") if index in bad else None,
            }
        )
    return found


def _by_gpu(text: str) -> Dict[int, Facts]:
    try:
        return {int(entry["gpu"]): entry for entry in read_entries(text) if "gpu" in entry}
    except (OddOutputError, ValueError):
        return {}


def amd_throttle(now: Facts) -> Optional[List[str]]:
    """Give the reasons for slow clocks that are active; None where the tool does not tell."""
    told = read_inner(now, "throttle")
    if isinstance(told, dict):
        known = {key: switch(str(told.get(key))) for key in AMD_REASONS}
        if any(value is not None for value in known.values()):
            return sorted({AMD_REASONS[key] for key, value in known.items() if value})
    # MI200 and older say only that they are slowed down, not why.
    word = str(read_inner(now, "power", "throttle_status") or "").strip().upper()
    return {"THROTTLED": ["sw_thermal_slowdown"], "UNTHROTTLED": []}.get(word)


def _amd_pages(entry: Facts, kind: str) -> Optional[bool]:
    # "No bad pages found." or a list of them.
    value = entry.get(kind)
    return None if value is None else isinstance(value, list) and bool(value)


def parse_rocm_health(text: str) -> List[Facts]:
    """Read rocm-smi --showuniqueid --showbus --showtemp --showmaxpower --json.

    Raises:
        OddOutputError: it is not JSON.
    """
    found = []
    for name, card in read_json(text, "rocm-smi").items():
        match = re.match(r"card(\d+)$", name)
        if match is None or not isinstance(card, dict):
            continue
        found.append(
            {
                "index": int(match.group(1)),
                "uuid": str(card.get("Unique ID", "")),
                "pci": pci_address(str(card.get("PCI Bus", ""))),
                "temperature_c": figure(str(card.get("Temperature (Sensor junction) (C)"))),
                "memory_temperature_c": figure(str(card.get("Temperature (Sensor memory) (C)"))),
                "power_limit_w": figure(str(card.get("Max Graphics Package Power (W)"))),
            }
        )
    return sorted(found, key=lambda gpu: int(gpu["index"]))
