"""What every group of facts has in common: frozen values, each with a default that means "not known"."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.errors import NodeError

Group = TypeVar("Group", bound="FactGroup")


class FactGroup(BaseModel):
    """A group of facts; what a newer or older probe says beside them is left alone."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


def parse_group(kind: type[Group], raw: Any, where: str) -> Group:
    """Turn the JSON of one group into its values.

    Raises:
        NodeError: a value has the wrong type.
    """
    try:
        # Strict as JSON is: a list is what a tuple comes as, and a text is never a number.
        return kind.model_validate_json(json.dumps({} if raw is None else raw))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise NodeError(
            what=f"the probe's answer is odd: {kind.__name__} {place}: {first['msg']}, not {first['input']!r}",
            where=where,
            remedy="run the same command with -vv and report it",
        ) from None
