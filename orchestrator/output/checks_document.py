"""The JSON document of a check; checks_schema.py says what it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.facts import Survey
from orchestrator.output.checks_text import is_ready
from orchestrator.typed_json import to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.facts import Facts
    from orchestrator.values import Finding, Node


def checks_document(
    nodes: Sequence[Node],
    facts: Sequence[Facts],
    findings: Sequence[Finding],
    *,
    strict: bool = False,
    survey: Survey | None = None,
) -> dict[str, Any]:
    """Build the JSON document of a check."""
    found: dict[int | None, list[dict[str, str]]] = {None: []}
    for finding in findings:
        found.setdefault(finding.node_rank, []).append(_finding_document(finding))
    return {
        "schema": 1,
        "ready": is_ready(findings, strict=strict),
        "nodes": [
            {
                "node": node.name,
                "node_rank": node_rank,
                "facts": to_json(fact),
                "findings": found.get(node_rank, []),
            }
            for node_rank, (node, fact) in enumerate(zip(nodes, facts, strict=True))
        ],
        "cluster": found[None],
        "survey": to_json(survey or Survey()),
    }


def _finding_document(finding: Finding) -> dict[str, str]:
    return {
        "check": finding.check,
        "status": finding.status,
        "detail": finding.detail,
        "remedy": finding.remedy,
        "why": finding.why,
        "reason": finding.reason,
    }
