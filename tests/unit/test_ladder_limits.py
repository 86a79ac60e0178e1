"""What is not enough to blame a rank for, and what is: the network of a script, old lines of a kernel, another line of code."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_ladder import CLOSED, WAITED, case, rank, stopped, told

from orchestrator.diagnosis.case import Case, RankStory
from orchestrator.diagnosis.cause import Cause, Hit
from orchestrator.diagnosis.ladder.judge import judge
from orchestrator.diagnosis.logs.scan import scan_text
from orchestrator.diagnosis.logs.tracebacks import Failure

ABORTED = "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))"
OF_THE_SCRIPT = [
    ABORTED,
    "BrokenPipeError: [Errno 32] Broken pipe",
    "OSError: image file read error",
    "ConnectionRefusedError: [Errno 111] Connection refused",
    "psycopg2.OperationalError: connection to server at db failed: Connection refused",
    'botocore.exceptions.ReadTimeoutError: Read timeout on endpoint URL: "https://s3/x"',
    "TimeoutError: The read operation timed out",
]
OF_THE_GROUP = [
    CLOSED,
    "torch.distributed.DistNetworkError: Connection reset by peer",
    "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
    "RuntimeError: Broken pipe",
]


@pytest.mark.parametrize("words", OF_THE_SCRIPT)
def test_a_server_that_a_script_speaks_with_is_no_peer(words: str) -> None:
    judgement = judge(case(rank(1, words, at=9.0), rank(0, "KeyError: 'x'", at=9.4), rank(2, CLOSED), stopped(3)))
    assert (judgement.rank, judgement.rule) == (1, "exception")
    assert judgement.confidence == "likely"
    assert judgement.family in ("NET", "CODE")
    assert judge(case(rank(1, words), stopped(0), stopped(2), stopped(3))).rank == 1


@pytest.mark.parametrize("words", OF_THE_GROUP)
def test_a_peer_that_went_is_why_a_rank_failed(words: str) -> None:
    assert judge(case(rank(0, words, at=9.0), rank(1, "KeyError: 'x'", at=9.4))).rank == 1
    assert judge(case(rank(0, words), rank(1, words), stopped(2), stopped(3))).rank is None


def test_the_only_rank_that_failed_lost_nobody() -> None:
    judgement = judge(case(rank(0, CLOSED), stopped(1), stopped(2), stopped(3)))
    assert (judgement.family, judgement.rank, judgement.confidence) == ("UNKNOWN", 0, "unknown")
    assert "Connection closed by peer" in judgement.cause
    missed = rank(3, code=None, stopped=True, time=None)
    assert judge(case(rank(0, CLOSED), stopped(1), stopped(2), missed)).rank is None


def test_who_lost_a_peer_before_the_culprit_ended_did_not_lose_it_after_that() -> None:
    judgement = judge(case(rank(0, CLOSED, at=9.0), rank(1, "KeyError: 'x'", at=9.4), rank(2, CLOSED, at=9.1)))
    assert judgement.reason == "it stands in the last words of rank 1; ranks 0 and 2 lost their peers"


XID = Cause(id="x.y", family="GPU_HW", role="confirm", priority=97, title="Xid 79")
LAUNCH = "torch.AcceleratorError: CUDA error: unspecified launch failure"


def with_xid(known: Case, age_s: float | None) -> Case:
    """On the second node."""
    hit = Hit(cause=XID, text="Xid", groups={} if age_s is None else {"age_s": str(age_s)})
    return replace(known, nodes=[known.nodes[0], replace(known.nodes[1], kernel=(hit,))])


@pytest.mark.parametrize(("age_s", "rule"), [(12.5, "kernel"), (None, "kernel"), (3000.0, "exception")])
def test_what_a_kernel_said_long_before_is_not_what_a_rank_ended_of(age_s: float | None, rule: str) -> None:
    judgement = judge(with_xid(case(rank(2, LAUNCH), rank(0, CLOSED)), age_s))
    assert judgement.rank == 2
    assert (judgement.rule == "kernel") == (rule == "kernel")


def test_the_age_of_a_line_counts_from_the_first_end() -> None:
    late = case(rank(0, "KeyError: 'x'", at=10.0), rank(2, LAUNCH, at=65.0))
    assert told(judge(with_xid(late, 20.0)))[1:] == (0, "exception")


def test_the_gpu_of_a_rank_that_felt_another_one_end_is_not_why_that_one_did() -> None:
    felt = rank(2, f"{CLOSED}\n{LAUNCH}", at=10.4)
    assert judge(with_xid(case(rank(0, "KeyError: 'x'", at=10.0), felt), 1.0)).rank == 0
    asked = rank(2, LAUNCH, at=10.4, late=True)
    assert judge(with_xid(case(rank(0, "KeyError: 'x'", at=10.0), asked), 1.0)).rank == 0


@pytest.mark.parametrize(
    "words", ["ValueError: CUDA device index out of config", "RuntimeError: expected CUDA 12.8 in the lock file"]
)
def test_the_bare_name_of_cuda_is_no_word_of_a_gpu(words: str) -> None:
    assert judge(with_xid(case(rank(2, words)), 1.0)).rule == "exception"


def waiting(number: int, line: int, op: str = "") -> RankStory:
    story = rank(number, WAITED, where=f"/w/train.py:{line} in step")
    said = f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType={op}, NumelIn=4)"
    return replace(story, hits=(*story.hits, *scan_text(said))) if op else story


def test_the_rank_that_leads_a_collective_calls_it_from_a_line_of_its_own() -> None:
    judgement = judge(case(waiting(0, 60), waiting(1, 64), waiting(2, 64), waiting(3, 64)))
    assert (judgement.family, judgement.rank, judgement.confidence) == ("HANG", None, "unknown")
    assert told(judge(case(waiting(0, 64), waiting(1, 64), waiting(2, 60), waiting(3, 64)))) == (
        "MISMATCH",
        2,
        "minority",
    )


@pytest.mark.parametrize(("op", "family", "culprit"), [("BROADCAST", "HANG", None), ("ALLREDUCE", "MISMATCH", 0)])
def test_collectives_that_are_named_decide(op: str, family: str, culprit: int | None) -> None:
    others = [waiting(number, 64, "BROADCAST") for number in (1, 2, 3)]
    judgement = judge(case(waiting(0, 60, op), *others))
    assert (judgement.family, judgement.rank) == (family, culprit)


STAGE = (
    "[E1128 13:09:08.35 ProcessGroupNCCL.cpp:1914] [PG ID 1 PG GUID {guid} Rank 0] Received a dump signal due to a "
    "collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: {enq}, "
    "last completed NCCL work: 3."
)
TIMED_OUT = (
    "[E1128 13:09:07.88 ProcessGroupNCCL.cpp:2303] [PG ID 1 PG GUID {guid} Rank 0]  failure detected by watchdog at work "
    "sequence id: {seq} PG status: last enqueued work: {enq}, last completed work: 3"
)


@pytest.mark.parametrize(("guid", "late"), [("3(stage_1)", None), ("2(stage_0)", 2)])
def test_groups_are_told_apart_by_the_name_that_all_ranks_share(guid: str, late: int | None) -> None:
    slow = replace(stopped(2), hits=scan_text(STAGE.format(guid=guid, enq=3)))
    others = [
        replace(stopped(number), hits=scan_text(TIMED_OUT.format(guid="2(stage_0)", seq=90, enq=95)))
        for number in (0, 1)
    ]
    judgement = judge(case(*others, slow))
    assert judgement.rank == late
    assert (judgement.rule == "watchdog") == (late is not None)


def silent(number: int, last_line: str, at: float = 10.0) -> RankStory:
    return replace(rank(number, at=at), failure=Failure(error=last_line, line=9))


def test_a_script_that_says_in_one_line_why_it_stops_is_named_with_it() -> None:
    judgement = judge(case(silent(1, "dataset /data/x is not there", at=9.0), rank(0, CLOSED), stopped(2)))
    assert told(judgement) == ("CODE", 1, "exit")
    assert (judgement.confidence, judgement.cause) == ("likely", "dataset /data/x is not there")
    assert judgement.reason == "it ended by itself with exit code 1, and raised nothing; rank 0 lost it after that"


def test_the_last_line_of_one_that_ended_after_another_explains_nothing() -> None:
    quiet = silent(2, "step 7", at=30.0)
    judgement = judge(case(rank(0, WAITED), rank(1, WAITED), rank(3, WAITED), quiet))
    assert told(judgement) == ("HANG", 2, "silence")


def test_what_a_rank_prints_on_its_way_is_no_headline() -> None:
    judgement = judge(case(replace(silent(1, "start 2"), file="logs/rank_1.out")))
    assert (judgement.cause, judgement.last_lines) == ("the script ended with exit code 1", ("start 2",))


@pytest.mark.parametrize("first", [rank(0, at=5.0), silent(0, "loading", at=5.0)])
def test_a_rank_that_went_without_a_word_went_before_those_that_answered_to_our_stop(first: RankStory) -> None:
    answered = rank(2, "RuntimeError: terminated by SIGTERM", at=5.3, late=True)
    judgement = judge(case(first, answered, stopped(1), stopped(3)))
    assert judgement.rank == 0
    assert judge(case(rank(0, CLOSED, at=5.0), answered, stopped(1))).rank == 2
