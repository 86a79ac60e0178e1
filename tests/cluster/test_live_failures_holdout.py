"""Failures that no rule was made for."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_failures.holdout import HOLDOUT
from live_failures.play import parametrize, play
from live_failures.row import Live

pytestmark = [pytest.mark.namespaces, pytest.mark.long]


@parametrize(HOLDOUT)
def test_failure(row: Live, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if row.torch:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    play(row, lambda: request.getfixturevalue("nodes3"), tmp_path)
