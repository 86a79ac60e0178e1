"""The list of all checks, for people and as JSON."""

from __future__ import annotations

from typing import Any

from orchestrator.checks.catalogue import CATALOGUE
from orchestrator.checks.check import Check


def render_catalogue() -> str:
    """Render every check with what it looks at, and when it fails or warns."""
    lines = []
    for check in CATALOGUE:
        lines.append(f"{check.name}  (level {check.level})")
        lines.append(f"  looks at  {check.looks_at}")
        lines += [
            f"  {word:<9} {when}" for word, when in (("fail", fails_when(check)), ("warn", warns_when(check))) if when
        ]
    return (
        "\n".join(lines) + f"\n{len(CATALOGUE)} checks; launch.checks changes severity, thresholds or skips by name\n"
    )


def fails_when(check: Check) -> str:
    """Say when it fails, with its figures."""
    return check.fails.format(**check.thresholds)


def warns_when(check: Check) -> str:
    """Say when it warns, with its figures."""
    return check.warns.format(**check.thresholds)


def catalogue_document() -> dict[str, Any]:
    """Build the same as JSON."""
    return {
        "schema": 1,
        "checks": [
            {
                "check": check.name,
                "level": check.level,
                "looks_at": check.looks_at,
                "why": check.why,
                "fail": fails_when(check),
                "warn": warns_when(check),
                "thresholds": dict(check.thresholds),
            }
            for check in CATALOGUE
        ],
    }
