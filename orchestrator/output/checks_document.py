"""The JSON document of a check, and its JSON Schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from orchestrator.facts import Facts, Survey
from orchestrator.output.checks_text import is_ready
from orchestrator.values import Finding, Node, Status

_FACTS: TypeAdapter[Facts] = TypeAdapter(Facts)


class FindingDocument(BaseModel):
    """What one check says."""

    model_config = ConfigDict(extra="forbid")

    check: str = Field(description="Name of the check; aorta-launch check --list tells them all.")
    status: Status
    detail: str = Field(description="What was seen.")
    remedy: str = Field(description="What to type; empty where nothing is wrong.")
    why: str = Field(description="What would happen at a launch; empty where nothing is wrong.")
    reason: str = Field(description="Why launch.checks judges it otherwise.")


class NodeDocument(BaseModel):
    """One node, in the order of the node list."""

    model_config = ConfigDict(extra="forbid")

    node: str
    node_rank: int
    facts: Facts
    findings: list[FindingDocument]


class ChecksDocument(BaseModel):
    """What check --json prints and checks.json holds."""

    model_config = ConfigDict(extra="forbid", title="aorta-launch check")

    schema_: Literal[1] = Field(1, alias="schema")
    ready: bool = Field(description="Nothing fails; with --strict, nothing warns.")
    nodes: list[NodeDocument]
    cluster: list[FindingDocument] = Field(description="What is said of all nodes together.")
    survey: Survey = Field(description="What was measured between the nodes and under load.")


def checks_document(
    nodes: Sequence[Node],
    facts: Sequence[Facts],
    findings: Sequence[Finding],
    *,
    strict: bool = False,
    survey: Survey | None = None,
) -> dict[str, Any]:
    """Build the JSON document of a check."""
    return {
        "schema": 1,
        "ready": is_ready(findings, strict=strict),
        "nodes": [
            {
                "node": node.name,
                "node_rank": node_rank,
                "facts": _FACTS.dump_python(fact, mode="json"),
                "findings": [_finding_document(finding) for finding in findings if finding.node_rank == node_rank],
            }
            for node_rank, (node, fact) in enumerate(zip(nodes, facts, strict=True))
        ],
        "cluster": [_finding_document(finding) for finding in findings if finding.node_rank is None],
        "survey": (survey or Survey()).model_dump(mode="json"),
    }


def _finding_document(finding: Finding) -> dict[str, str]:
    return {name: getattr(finding, name) for name in FindingDocument.model_fields}


def checks_schema() -> dict[str, Any]:
    """Build the JSON Schema of the document."""
    return ChecksDocument.model_json_schema(mode="serialization")
