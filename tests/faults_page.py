"""docs/faults.md: made from the rows that the tests of the cluster play."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).parent / "cluster"))

from fault_table import GROUPS

if TYPE_CHECKING:
    from fault_table import Fault, Group

__all__ = ["GROUPS", "PAGE", "WRITES", "build_page"]
PAGE = Path(__file__).parents[1] / "docs" / "faults.md"
WRITES = bool(os.environ.get("AORTA_TESTS_WRITE"))
INTRO = """# Faults

What can go wrong in mid-run, what you see of it, how the run ends, and what you do next. Every row is a test that
starts a real launch on real sshd nodes and makes the fault happen; the page is made from the same rows. After each of
them the whole process table of every node is what it was before the run, and the rank files in the experiment
directory hold the very bytes that the ranks wrote; where a row says that something is left, that holds after `kill`.

How a run ends is what `run.json` says of it. The exit code is that of the launch, or of the verb in "What to do" where the launch
itself is gone.

10.0.0.11, 10.0.0.12 and 10.0.0.13 are the nodes; a fault strikes 10.0.0.12 where nothing else is said. `tests/cluster/` is
left out before the names of tests.
"""
HEAD = ("What happens", "What you see", "How it ends", "The other nodes", "What to do", "Test")


def build_page() -> str:
    """Build the whole page."""
    return "\n".join([INTRO, *(build_section(group) for group in GROUPS)])


def build_section(group: Group) -> str:
    """Build one table."""
    lines = [f"## {group.title}", "", group.about, "", f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    return "\n".join([*lines, *(build_row(group, fault) for fault in group.faults), ""])


def build_row(group: Group, fault: Fault) -> str:
    """Build one row."""
    happens = " ".join(filter(None, (fault.happens, fault.note)))
    says = "<br>".join(f"`{re.sub(r'{node([0-9])}', r'10.0.0.1' + chr(92) + '1', words)}`" for words in fault.says)
    ends = f"{fault.state or 'not started'}, exit code {fault.exit_code}"
    others = str(fault.others)
    test = f"`{group.file}::test_fault[{fault.id}]`"
    cells = (happens, says, ends, others, fault.do, test)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
