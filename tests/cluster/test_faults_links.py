"""Links break, sshd ends or hangs: rows of docs/faults.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_table import LINKS, Fault, parametrize, play

pytestmark = pytest.mark.namespaces


@parametrize(LINKS)
def test_fault(fault: Fault, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    play(fault, lambda: request.getfixturevalue("nodes3"), tmp_path)
