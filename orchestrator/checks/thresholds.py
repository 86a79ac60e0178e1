"""The figures at which a check warns or fails; launch.checks can change each of them by name."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.settings import Settings

THRESHOLDS: Mapping[str, Mapping[str, float]] = {
    "alone": {"warn_share": 0.7},
    "bandwidth": {"warn_share": 0.3, "most_gbs": 1.25},
    "clock": {"warn_s": 1, "fail_s": 5},
    "compute": {"seconds": 20, "warn_share": 0.95, "fail_share": 0.85},
    "disk": {"warn_gib": 5, "fail_gib": 1, "fail_inodes": 1000},
    "gpu-ecc": {"fail_errors": 1},
    "gpu-errors": {"window_h": 2},
    "gpu-free": {"warn_mib": 1024},
    "gpu-power": {"warn_share": 0.99},
    "gpu-rows": {"warn_rows": 1},
    # The oldest driver that runs any release of that CUDA, as NVIDIA's release notes have it.
    "gpu-runtime": {"cuda_11": 450.80, "cuda_12": 525.60, "cuda_13": 580.65},
    "gpu-temperature": {"warn_c": 84, "over_c": 15, "least_peers": 2},
    "heat": {"warn_c": 90},
    "host-link": {"seconds": 5, "warn_share": 0.9, "fail_share": 0.7},
    "hostname": {"warn_s": 2},
    "kernel-log": {"warn_hours": 24, "memory_hours": 2},
    "latency": {"warn_ms": 10, "warn_times": 4, "warn_mbs": 20, "warn_share": 0.3},
    "link-errors": {"warn_per_million": 10, "warn_changes": 50},
    "links": {"warn_share": 0.5, "fail_share": 0.2, "enough_mbs": 200},
    "load": {"warn_per_core": 0.5},
    "memlock": {"fail_mib": 64},
    # A rank that has imported torch and done nothing holds about 0.22 GiB, and so does the agent.
    "memory": {"warn_gib": 1, "fail_gib": 0.25},
    "memory-bandwidth": {"seconds": 5, "warn_share": 0.9, "fail_share": 0.8},
    "nofile": {"warn_files": 4096},
    "processes": {"warn_free": 4096},
    "selinux": {"warn_hours": 24},
    "shm": {"warn_gib": 1},
    "shm-stale": {"warn_gib": 0.25},
    "swap": {"warn_gib": 1},
    "tmp": {"warn_gib": 1, "fail_gib": 0.1},
    "torch-import": {"warn_s": 30},
}


def threshold(settings: Settings, check: str, name: str) -> float:
    """Give a figure of a check: as launch.checks sets it, else the default."""
    rule = settings.checks.get(check)
    changed = None if rule is None else rule.thresholds.get(name)
    return THRESHOLDS[check][name] if changed is None else changed
