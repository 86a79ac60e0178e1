"""The JSON Schema of a check's document; only who asks for it loads pydantic."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.facts import Facts, Survey
from orchestrator.values import Status


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


def checks_schema() -> dict[str, Any]:
    """Build the JSON Schema of the document."""
    return ChecksDocument.model_json_schema(mode="serialization")
