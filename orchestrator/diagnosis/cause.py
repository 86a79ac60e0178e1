"""What can be wrong: one entry of the catalogue of causes, and one place where it was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from orchestrator.light_dataclass import dataclass

Family = Literal[
    "OK",
    "CKPT",
    "CODE",
    "CONFIG",
    "CRASH",
    "DATA",
    "DEPLOY",
    "DISK",
    "EARLY_EXIT",
    "ENV",
    "FABRIC",
    "GPU_HW",
    "GPU_SW",
    "HANG",
    "INFO",
    "KILLED",
    "LIMITS",
    "MISMATCH",
    "NET",
    "NODE_LOST",
    "NOISE",
    "OOM_GPU",
    "OOM_HOST",
    "PORT",
    "RDZV",
    "SESSION",
    "SHM",
    "SSH",
    "TIME_LIMIT",
    "UNKNOWN",
]
Role = Literal["cause", "victim", "confirm", "hint", "noise"]
"""A cause speaks of itself, a victim of somebody else's end, the kernel confirms, a hint needs a second fact."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One entry of the catalogue."""

    id: str
    """Topic and name, "gpu.oom"."""
    family: Family
    role: Role
    priority: int
    """Which of several on one rank is the word that counts: 0 to 99, higher wins within a role."""
    title: str
    """The headline, short; {name} is what the pattern's group of that name found, and is left out where it found nothing."""
    explanation: str = ""
    remedy: str = ""
    """What to do, with {name} as above."""
    patterns: tuple[str, ...] = ()
    """Expressions that are searched in one line."""
    signals: tuple[int, ...] = ()
    """Signals that mean this where no words say otherwise."""
    codes: tuple[int, ...] = ()
    """Exit codes that mean this where no words say otherwise."""
    source: str = ""
    """Where it was seen: a log of ours, or the project whose words these are."""
    section: str = ""
    """The section of docs/failures.md; empty: one of its own, made of the title."""

    @property
    def anchor(self) -> str:
        """Its place in the docs."""
        return f"docs/failures.md#{self.section or self.id.replace('.', '-')}"


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One place where the words of a cause stand."""

    cause: Cause
    text: str
    """The line, without its end and its rank prefix."""
    line: int | None = None
    """Its number in the file, from 1."""
    groups: Mapping[str, str] = field(default_factory=dict)
