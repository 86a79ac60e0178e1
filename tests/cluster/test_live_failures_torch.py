"""The same with the real torchrun and real process groups, whose other ranks fail because of the first."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_failures import COLLECTIVES, TORCH_WAYS, Live, parametrize, play

pytestmark = pytest.mark.namespaces


@parametrize((*COLLECTIVES, *TORCH_WAYS))
def test_failure(row: Live, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    play(row, lambda: request.getfixturevalue("nodes3"), tmp_path)
