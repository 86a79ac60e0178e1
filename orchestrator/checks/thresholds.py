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
    "gpu-free": {"warn_mib": 1024},
    # A rank that has imported torch and done nothing holds about 0.22 GiB, and so does the agent.
    "heat": {"warn_c": 90},
    "host-link": {"seconds": 5, "warn_share": 0.9, "fail_share": 0.7},
    "links": {"warn_share": 0.5, "fail_share": 0.2, "enough_mbs": 200},
    "memory": {"warn_gib": 1, "fail_gib": 0.25},
    "memory-bandwidth": {"seconds": 5, "warn_share": 0.9, "fail_share": 0.8},
    "nofile": {"warn_files": 4096},
    "shm": {"warn_gib": 1},
    "torch-import": {"warn_s": 30},
}


def threshold(settings: Settings, check: str, name: str) -> float:
    """Give a figure of a check: as launch.checks sets it, else the default."""
    rule = settings.checks.get(check)
    changed = None if rule is None else rule.thresholds.get(name)
    return THRESHOLDS[check][name] if changed is None else changed
