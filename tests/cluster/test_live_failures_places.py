"""What is wrong with one node, with its network or with its copy of the code. The verdict names family, rank and node."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_failures import PLACES, Live, parametrize, play

pytestmark = pytest.mark.namespaces


@parametrize(PLACES)
def test_failure(row: Live, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    play(row, lambda: request.getfixturevalue("nodes3"), tmp_path)
