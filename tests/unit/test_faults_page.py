"""docs/faults.md says what the rows say; AORTA_TESTS_WRITE=1 writes it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from faults_page import GROUPS, PAGE, WRITES, build_page

FAULTS = [fault for group in GROUPS for fault in group.faults]
LEAST = 24


def test_the_page_is_made_from_the_rows() -> None:
    if WRITES:
        PAGE.write_text(build_page())
    assert PAGE.read_text() == build_page()


def test_every_row_has_a_name_of_its_own_and_says_all_that_a_user_needs() -> None:
    assert len(FAULTS) >= LEAST
    assert max(Counter(fault.id for fault in FAULTS).values()) == 1
    for fault in FAULTS:
        assert fault.says, fault.id
        assert fault.happens.endswith("."), fault.id
        assert fault.do.endswith(".") or fault.do.endswith("`"), fault.id


def test_every_group_is_played_by_its_file() -> None:
    folder = Path(__file__).parents[1] / "cluster"
    for group in GROUPS:
        assert "@parametrize(" in (folder / group.file).read_text(), group.file
