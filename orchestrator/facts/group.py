"""What every group of facts has in common: frozen values, each with a default that means "not known"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from orchestrator.errors import NodeError
from orchestrator.light_dataclass import dataclass
from orchestrator.typed_json import OddValueError, from_json

Group = TypeVar("Group", bound="FactGroup")


@dataclass_transform(frozen_default=True, kw_only_default=True)
class FactGroup:
    """A group of facts: each class below it is a frozen dataclass; what a newer or older probe says beside is left alone."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "ignore"}
    """For the JSON Schema."""

    def __init_subclass__(cls) -> None:
        """Make it one."""
        dataclass(frozen=True, kw_only=True)(cls)

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """Copy them with other values."""
        return replace(self, **update)  # type: ignore[type-var] # mypy knows of the classes below, not of this one


def parse_group(kind: type[Group], raw: Any, where: str) -> Group:
    """Turn the JSON of one group into its values.

    Raises:
        NodeError: a value has the wrong type.
    """
    try:
        return from_json(kind, {} if raw is None else raw)
    except OddValueError as error:
        raise NodeError(
            what=f"the probe's answer is odd: {kind.__name__} {error}",
            where=where,
            remedy="run the same command with -vv and report it",
        ) from None
