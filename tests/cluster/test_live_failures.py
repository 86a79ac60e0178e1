"""Failures that are made for real: the verdict names the family, the rank, the node and how it ended, and nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_failures import HOST, OWN_ERRORS, PLACES, Live, parametrize, play

pytestmark = pytest.mark.namespaces


@parametrize((*OWN_ERRORS, *HOST, *PLACES))
def test_failure(row: Live, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    play(row, lambda: request.getfixturevalue("nodes3"), tmp_path)
