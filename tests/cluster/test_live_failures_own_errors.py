"""What a script does to itself: exceptions, exit codes, words on the command line, what it finds or does not find. The verdict names family, rank and node."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_failures import OWN_ERRORS, Live, parametrize, play

pytestmark = pytest.mark.namespaces


@parametrize(OWN_ERRORS)
def test_failure(row: Live, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    play(row, lambda: request.getfixturevalue("nodes3"), tmp_path)
