"""Which run a word means."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.phases.known_runs import KnownRun, choose_runs


def known(run_id: str, *, live: bool = True) -> KnownRun:
    return KnownRun(run_id=run_id, entry=Path(run_id), experiment="e", live=live, nodes=(), ssh={})


def test_a_run_is_found_by_a_unique_beginning_and_an_empty_word_means_none() -> None:
    runs = [known("multinode_1-aaaa", live=False), known("multinode_1-bbbb")]
    assert choose_runs(runs, "multinode_1-b", all_runs=False) == runs[1:]
    assert choose_runs(runs, None, all_runs=False) == runs[1:]
    with pytest.raises(UsageError, match="beginning of 2 runs"):
        choose_runs(runs, "multi", all_runs=False)
    with pytest.raises(UsageError, match="empty"):
        choose_runs(runs[1:], "", all_runs=False)
