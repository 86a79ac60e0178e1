"""What a stop has to reach and what it must not touch: rows of docs/faults.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_table import STOPS, Fault, parametrize, play

pytestmark = pytest.mark.namespaces


@parametrize(STOPS)
def test_fault(fault: Fault, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    play(fault, lambda: request.getfixturevalue("nodes3"), tmp_path)
