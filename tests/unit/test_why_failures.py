"""Kept logs of real failures through the judge: family, rank and node, also with noise in between.

Tuned on: all folders here. The rungs were written from what each kind of failure leaves, and the noise lines below were
made while they were written; what was tried only afterwards stands in test_why_others.py.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.diagnosis.ladder.judge import judge
from orchestrator.diagnosis.logs.build import build_log_case
from orchestrator.diagnosis.logs.nodelog import read_node_log
from orchestrator.diagnosis.logs.verdict import build_foreign_verdict
from orchestrator.phases.foreign.read import read_jobs
from orchestrator.values import Verdict

FAILURES = Path(__file__).parent.parent / "data" / "failures"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FAILURES / "expected.json").read_text())
NOISE = (
    "step 120 loss=0.5312 lr=3e-4 tok/s=1234",
    "INFO: epoch 3 error rate 0.12",
    "2026-11-27 22:19:20,123 - trainer - INFO - saved checkpoint to /data/ckpt/step_100",
    "2026-11-27 22:19:20,123 WARNING trainer: Connection reset by peer, retrying (1/5)",
    "Connection refused (attempt 3), trying again",
    "loss: inf, skipping this step",
    "killed 3 stale workers",
    "CUDA out of memory. Retrying with batch size 8",
    "No space left on device while writing the cache; going on without",
    "node-a:3818:3900 [0] NCCL INFO Channel 00/02 : 0 1 2 3",
    "",
    "  0%|          | 0/100 [00:00<?, ?it/s]\r 50%|#####     | 50/100",
    "/opt/venv/lib/python3.11/site-packages/torch/x.py:12: UserWarning: something is deprecated",
    "  warnings.warn(",
    "RuntimeError was handled, going on",
    "Error: 0.0123 (validation)",
    "{'loss': 2.31, 'epoch': 0.1}",
    "[W1127 22:14:42.391736367 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
    "eval: exit status of tool 0",
    "data worker 3: Killed",
    "FileNotFoundError handled: using defaults",
    "Too many open files warning threshold 1024",
)
RANK_NOISE = (
    "loss: nan, skipped",
    "CUDA out of memory, retrying",
    "Connection reset by peer, retrying",
    "step 3 done",
    "Timed out waiting 100ms for recv operation, retry",
)
SURVIVED = (
    "Traceback (most recent call last):",
    '  File "/home/user/job/data.py", line 7, in fetch',
    "    return open(path)",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/x'",
    "retrying with the copy on the other disk",
)


def why(path: Path) -> Verdict:
    judged = [build_foreign_verdict(job.case, judge(job.case)) for job in read_jobs(path)]
    return next((verdict for verdict in judged if verdict.state != "succeeded"), judged[0])


def check(name: str, verdict: Verdict) -> None:
    want = EXPECTED[name]
    first = verdict.first_failure
    if not want["decided"]:
        assert verdict.family in (want["cls"], "UNKNOWN")
        assert verdict.confidence != "certain"
        assert first is None or first.rank is None or first.rank in want["ranks"]
        return
    assert verdict.family == want["cls"], verdict
    assert (first.rank if first else None) in (want["ranks"] or [None]), verdict
    # Who is absent has no log here that could name it.
    if first is not None and first.node and want["nodes"]:
        assert first.node in want["nodes"], verdict
    if want["ranks"] and want["nodes"] and list((FAILURES / name).glob("*.log")):
        assert first is not None
        assert first.node, verdict


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_each_kept_failure_has_its_family_and_rank(name: str) -> None:
    check(name, why(FAILURES / name))


def make_noisy(name: str, folder: Path, seed: int) -> Path:
    chance = random.Random(f"{name} {seed}")
    shutil.copytree(FAILURES / name, folder)
    for log in folder.glob("*.log"):
        text = log.read_text(encoding="utf-8", errors="replace")
        lines = text.split("\n")
        ranks = sorted(set(re.findall(r"^\[rank(\d+)\]", text, re.MULTILINE)))
        said = [*NOISE, *(f"[rank{rank}] {words}" for rank in ranks for words in RANK_NOISE)]
        trouble = re.compile("Traceback|failed \\(|Error")
        begins = next((number for number, line in enumerate(lines) if trouble.search(line)), 0)
        noisy: list[str] = []
        for number, line in enumerate(lines):
            if number < begins - 6 and chance.random() < 0.1:
                noisy += SURVIVED
            noisy.append(line)
            while number < len(lines) - 2 and chance.random() < 0.5:
                noisy.append(chance.choice(said))
        log.write_text("\n".join(noisy), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_noise_between_the_lines_changes_nothing(name: str, tmp_path: Path) -> None:
    for seed in range(3):
        check(name, why(make_noisy(name, tmp_path / str(seed), seed)))


@pytest.mark.parametrize("name", [name for name in sorted(EXPECTED) if not name.startswith(("s34", "s20"))])
def test_the_order_of_the_nodes_does_not_matter(name: str) -> None:
    files = sorted((FAILURES / name).glob("*.log"))
    logs = [read_node_log(file.read_text(errors="replace").splitlines(), file.stem, file.name) for file in files]
    assert judge(build_log_case(logs)) == judge(build_log_case(logs[::-1]))


@pytest.mark.parametrize("name", sorted(EXPECTED["s34_ssh_failures"]["files"]))
def test_each_ssh_and_rsync_message_is_known(name: str) -> None:
    verdict = why(FAILURES / "s34_ssh_failures" / f"{name}.log")
    assert verdict.cause_id == (EXPECTED["s34_ssh_failures"]["files"][name] or "")
    assert verdict.confidence != "certain"
    assert verdict.first_failure is None or verdict.first_failure.rank is None


def test_evidence_points_at_the_very_line() -> None:
    verdict = why(FAILURES / "s07_rank_exception_norecord")
    place = verdict.evidence[0]
    assert place.line is not None
    line = (FAILURES / "s07_rank_exception_norecord" / place.file).read_text().splitlines()[place.line - 1]
    assert "bad sample index 4711" in line


def test_where_points_into_the_users_own_code() -> None:
    first = why(FAILURES / "s07_rank_exception_norecord").first_failure
    assert first is not None
    assert first.traceback == "/home/user/job/train.py:17 in body"
    assert first.exit_code == 1
    assert first.local_rank == 0


def test_the_others_are_counted() -> None:
    assert why(FAILURES / "s07_rank_exception_norecord").stopped == (0, 1, 3)
