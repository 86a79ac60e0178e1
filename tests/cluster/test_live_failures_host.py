"""What the machine does to a rank: signals, memory, disks, limits. The verdict names family, rank and node."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_failures import HOST, Live, parametrize, play

pytestmark = pytest.mark.namespaces


@parametrize(HOST)
def test_failure(row: Live, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    play(row, lambda: request.getfixturevalue("nodes3"), tmp_path)
