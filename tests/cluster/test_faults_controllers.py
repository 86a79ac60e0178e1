"""The controller is killed or stands still, and another one takes over: rows of docs/faults.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_table import CONTROLLERS, Fault, parametrize, play

pytestmark = pytest.mark.namespaces


@parametrize(CONTROLLERS)
def test_fault(fault: Fault, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    play(fault, lambda: request.getfixturevalue("nodes3"), tmp_path)
