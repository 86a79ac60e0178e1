"""The figures at which a check warns or fails; launch.checks can change each of them by name."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.settings import Settings

THRESHOLDS: Mapping[str, Mapping[str, float]] = {
    "clock": {"warn_s": 1, "fail_s": 5},
    "disk": {"warn_gib": 5, "fail_gib": 1, "fail_inodes": 1000},
    "gpu-free": {"warn_mib": 1024},
    # A rank that has imported torch and done nothing holds about 0.22 GiB, and so does the agent.
    "memory": {"warn_gib": 1, "fail_gib": 0.25},
    "nofile": {"warn_files": 4096},
    "shm": {"warn_gib": 1},
}


def threshold(settings: Settings, check: str, name: str) -> float:
    """Give a figure of a check: as launch.checks sets it, else the default."""
    rule = settings.checks.get(check)
    changed = None if rule is None else rule.thresholds.get(name)
    return THRESHOLDS[check][name] if changed is None else changed
