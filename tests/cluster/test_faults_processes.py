"""The run's own processes end or stand still: rows of docs/faults.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_table import PROCESSES, Fault, parametrize, play

pytestmark = pytest.mark.namespaces


@parametrize(PROCESSES)
def test_fault(fault: Fault, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    play(fault, lambda: request.getfixturevalue("nodes3"), tmp_path)
