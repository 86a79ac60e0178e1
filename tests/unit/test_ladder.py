"""Each rung on a run that we watched: exact ends, and who was stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.diagnosis.case import Case, Judgement, NodeStory, Odd, RankStory
from orchestrator.diagnosis.cause import Cause, Hit
from orchestrator.diagnosis.ladder.judge import judge
from orchestrator.diagnosis.logs.scan import scan_text
from orchestrator.diagnosis.logs.tracebacks import Failure

CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4711. This is"
WAITED = (
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation to complete"
)
FINGERPRINT = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is running collective: "
    "CollectiveFingerPrint(SequenceNumber=2, OpType=ALLREDUCE, TensorShape=[{1}], TensorDtypes=Float), "
    "but Rank {2} is running collective: CollectiveFingerPrint(SequenceNumber=2, OpType=ALLREDUCE, TensorShape=[{3}], "
    "TensorDtypes=Float)."
)


def rank(number: int, said: str = "", *, at: float = 10.0, **more: Any) -> RankStory:
    """One of two ranks a node; what it said is its last exception."""
    values: dict[str, Any] = {"code": 1, "time": at, "exact": True, "pid": 1000 + number}
    if said:
        where = str(more.pop("where", "/w/train.py:41 in step"))
        values["failure"] = Failure(error=said.splitlines()[-1], where=where, line=3, frames=(where,))
        values["hits"] = scan_text(said)
    return RankStory(
        rank=number, node_rank=number // 2, local_rank=number % 2, file=f"logs/rank_{number}.err", **{**values, **more}
    )


def stopped(number: int, said: str = "", *, at: float = 10.5) -> RankStory:
    return rank(number, said, at=at, code=None, signal=15, stopped=True)


def case(*ranks: RankStory, kernel: str = "", agents: Sequence[str] = (), **more: Any) -> Case:
    words = [*agents, *[""] * 2]
    nodes = [
        NodeStory(
            node_rank=number,
            name=f"n{number}",
            ranks=(2 * number, 2 * number + 1),
            agent_code=1 if words[number] else None,
            hits=scan_text(words[number]),
            kernel=scan_text(kernel, kernel=True) if number == 1 else (),
            file=f"logs/agent_{number}.err",
        )
        for number in range(2)
    ]
    values: dict[str, Any] = {"watched": True, "world_size": 4, "node_count": 2}
    return Case(nodes=nodes, ranks=ranks, **{**values, **more})


def told(judgement: Judgement) -> tuple[str, int | None, str]:
    return judgement.family, judgement.rank, judgement.rule


def test_the_rank_that_raised_first_is_to_blame() -> None:
    judgement = judge(
        case(
            rank(0, CLOSED, at=9.0),
            stopped(1),
            rank(2, "KeyError: 'tokens'", at=10.2),
            rank(3, "KeyError: 'x'", at=10.1),
        )
    )
    assert told(judgement) == ("CODE", 3, "exception")
    assert judgement.ranks == (3,)
    assert judgement.node_rank == 1
    assert judgement.confidence == "likely"


def test_a_known_cause_is_certain_where_only_one_rank_has_one() -> None:
    judgement = judge(case(rank(0, CLOSED), rank(1, "ModuleNotFoundError: No module named 'flashy'"), stopped(2)))
    assert told(judgement) == ("ENV", 1, "cause")
    assert judgement.confidence == "certain"
    assert "flashy" in judgement.cause
    assert judgement.evidence[0].file == "logs/rank_1.err"


def test_a_crash_told_a_moment_after_an_exception_that_nobody_knows_is_its_cause() -> None:
    odd = rank(0, "RuntimeError: something went away", at=10.0)
    assert judge(case(odd, rank(2, code=None, signal=11, at=11.0), stopped(1))).rank == 2
    assert judge(case(odd, rank(2, code=None, signal=11, at=40.0), stopped(1))).rank == 0


@pytest.mark.parametrize(
    ("ending", "family"),
    [
        ({"code": None, "signal": 9}, "KILLED"),
        ({"code": 137}, "KILLED"),
        ({"code": None, "signal": 11}, "CRASH"),
        ({"code": 139}, "CRASH"),
        ({"code": None, "signal": 15}, "KILLED"),
        ({"code": 7}, "CODE"),
    ],
)
def test_ends_that_need_no_words(ending: dict[str, Any], family: str) -> None:
    judgement = judge(case(rank(0, CLOSED, at=11.0), rank(2, at=10.0, **ending), stopped(1), stopped(3)))
    assert judgement.family == family
    assert (judgement.rank, judgement.rule) == (2, "exit")
    assert "rank 0 lost it after that" in judgement.reason


def test_a_rank_that_its_own_agent_ended_was_not_killed_by_a_stranger() -> None:
    failed = rank(2, CLOSED, at=10.0)
    judgement = judge(case(failed, rank(3, at=10.2, code=None, signal=15), stopped(0), rank(1, at=9.0, code=0)))
    assert told(judgement) == ("EARLY_EXIT", 1, "absence")


def test_what_was_said_before_the_stop_does_not_make_a_stopped_rank_the_first() -> None:
    judgement = judge(case(rank(1, "KeyError: 'a'", at=10.0), stopped(0, "KeyError: 'a'", at=9.0)))
    assert judgement.rank == 1


OOM = (
    "[9.1] Memory cgroup out of memory: Killed process {pid} (python3) total-vm:9kB, anon-rss:8kB, file-rss:0kB, UID:1"
)


def test_the_kernel_names_the_pid_of_the_rank() -> None:
    killed = rank(2, code=None, signal=9)
    judgement = judge(case(rank(0, CLOSED), killed, kernel=OOM.format(pid=1002)))
    assert told(judgement) == ("OOM_HOST", 2, "kernel")
    assert judgement.confidence == "certain"


def test_a_line_about_a_neighbours_process_confirms_nothing() -> None:
    judgement = judge(case(rank(0, CLOSED), rank(2, code=None, signal=9), kernel=OOM.format(pid=4242)))
    assert told(judgement) == ("KILLED", 2, "exit")


def test_the_ranks_own_memory_counter_is_proof_without_a_kernel_log() -> None:
    judgement = judge(case(rank(0, CLOSED), rank(2, code=None, signal=9, oom_kills=1)))
    assert told(judgement) == ("OOM_HOST", 2, "kernel")
    assert judge(case(rank(2, "KeyError: 'a'", oom_kills=1))).family == "CODE"


def test_fingerprints_name_the_rarer_one() -> None:
    said = [FINGERPRINT.format(one, 1024, 2, 2048) for one in (0, 1, 3)]
    judgement = judge(
        case(rank(0, said[0]), rank(1, said[1]), rank(2, FINGERPRINT.format(2, 2048, 0, 1024)), rank(3, said[2]))
    )
    assert told(judgement) == ("MISMATCH", 2, "named")
    assert judgement.confidence == "certain"


def test_two_fingerprints_against_each_other_blame_nobody() -> None:
    judgement = judge(case(rank(0, FINGERPRINT.format(0, 1, 1, 2)), rank(1, FINGERPRINT.format(1, 2, 0, 1))))
    assert told(judgement) == ("MISMATCH", None, "named")
    assert judgement.confidence != "certain"


BARRIER = "RuntimeError: Rank 3 failed to pass monitoredBarrier in 12000 ms"


def test_a_barrier_names_who_did_not_come_unless_that_rank_had_died() -> None:
    waiting = [rank(0, BARRIER, at=20.0), stopped(1), stopped(2)]
    assert told(judge(case(*waiting, stopped(3)))) == ("HANG", 3, "named")
    assert told(judge(case(*waiting, rank(3, code=None, signal=9, at=10.0)))) == ("KILLED", 3, "exit")


def test_who_waited_in_vain_leads_to_who_never_complained() -> None:
    judgement = judge(case(rank(0, WAITED), rank(1, WAITED), stopped(2), rank(3, WAITED)))
    assert told(judgement) == ("HANG", 2, "silence")
    assert judgement.reason == "3 of 4 ranks waited in vain; rank 2 never complained"


def test_two_silent_ranks_on_one_node_blame_the_node_alone() -> None:
    more = [replace(rank(number, WAITED), node_rank=1) for number in (4, 5, 6)]
    judgement = judge(case(rank(0, WAITED), rank(1, WAITED), stopped(2), stopped(3), *more))
    assert (judgement.family, judgement.rank, judgement.confidence) == ("HANG", None, "unknown")


def test_where_all_were_stopped_the_silence_still_tells() -> None:
    judgement = judge(case(stopped(0, WAITED), stopped(1, WAITED), stopped(2), stopped(3, WAITED)))
    assert told(judgement) == ("HANG", 2, "silence")


def test_one_at_another_line_was_in_another_collective() -> None:
    judgement = judge(
        case(rank(0, WAITED), rank(1, WAITED, where="/w/train.py:26 in step"), rank(2, CLOSED), rank(3, WAITED))
    )
    assert told(judgement) == ("MISMATCH", 1, "minority")


def test_one_that_left_with_code_0_left_early() -> None:
    judgement = judge(case(rank(0, CLOSED), rank(1, CLOSED), rank(2, CLOSED), rank(3, code=0, at=9.0)))
    assert told(judgement) == ("EARLY_EXIT", 3, "absence")


PROGRESS = (
    "[E1128 13:09:07.88 ProcessGroupNCCL.cpp:689] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=15000) ran for 15011 milliseconds\n"
    "[E1128 13:09:07.88 ProcessGroupNCCL.cpp:2303] [PG ID 0 PG GUID 0(default_pg) Rank {0}]  failure detected by "
    "watchdog at work sequence id: 4 PG status: last enqueued work: 7, last completed work: 3"
)
RELAY = (
    "[E1128 13:09:08.35 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump signal "
    "due to a collective timeout from  rank 0 and we will try our best to dump the debug info. "
    "Last enqueued NCCL work: 3, last completed NCCL work: 3."
)


def test_a_watchdog_tells_who_never_came() -> None:
    def story(number: int, text: str) -> RankStory:
        return replace(stopped(number), hits=scan_text(text))

    judgement = judge(case(story(0, PROGRESS.format(0)), story(1, RELAY.format(1))))
    assert told(judgement) == ("HANG", 1, "watchdog")
    assert "it enqueued 3 collectives, others 7" in judgement.reason


def test_the_key_that_all_miss_names_the_rank_that_never_came() -> None:
    missed = "torch.distributed.DistStoreError: wait timeout after 15000ms, keys: /default_pg/0//cpu//0/3"
    judgement = judge(case(rank(0, missed), rank(1, missed), rank(2, missed)))
    assert (judgement.rank, judgement.node_rank) == (3, 1)
    assert judgement.confidence != "certain"


ODD = Odd(family="HANG", ranks=(2,), rule="stacks", confidence="certain", cause="3 wait, rank 2 sleeps")


def test_stacks_tell_what_time_outs_do_not_and_never_outdo_a_rank_that_broke() -> None:
    waiting = [rank(number, WAITED) for number in range(4)]
    assert told(judge(case(*waiting, odd=ODD))) == ("HANG", 2, "stacks")
    assert judge(case(*waiting)).rank is None
    assert told(judge(case(rank(0, "KeyError: 'a'"), *waiting[1:], odd=ODD))) == ("CODE", 0, "exception")


def test_who_got_too_much_is_only_the_receiver() -> None:
    said = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at pair.cc:456] "
        "op.preamble.length <= op.nbytes. 1024 vs 512. Received data size doesn't match expected size."
    )
    receiver = replace(rank(1, code=None, signal=6), hits=scan_text(said))
    judgement = judge(case(rank(0, CLOSED), receiver))
    assert told(judgement) == ("MISMATCH", None, "receiver")
    assert told(judge(case(rank(0, CLOSED), receiver, odd=replace(ODD, family="MISMATCH"))))[1] == 2


@pytest.mark.parametrize("words", ["RuntimeError: Unable to find address for: eth7", "DNS"])
def test_a_setting_that_all_were_given_blames_no_rank(words: str) -> None:
    said = words if words != "DNS" else "RuntimeError: Distributed package doesn't have NCCL built in"
    judgement = judge(case(rank(0, said), rank(1, said), rank(2, said), stopped(3, said)))
    assert judgement.rank is None
    assert len(judgement.ranks) == 4
    assert judge(case(rank(0, CLOSED), rank(1, CLOSED), rank(2, said), stopped(3))).rank == 2


def test_a_resource_that_all_lack_blames_the_first() -> None:
    said = "RuntimeError: Too many open files. Communication with the workers is no longer possible."
    judgement = judge(case(rank(0, said, at=11.0), rank(1, said, at=10.0)))
    assert told(judgement) == ("LIMITS", 1, "cause")
    assert judgement.ranks == (0, 1)


def test_an_agent_that_cannot_listen_says_so_itself() -> None:
    words = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29511, code: -98, name: EADDRINUSE, message: address already in use"
    judgement = judge(case(agents=[words]))
    assert (judgement.family, judgement.node_rank, judgement.rule) == ("PORT", 0, "agent")


def test_a_node_that_was_lost_explains_whoever_lost_it() -> None:
    known = case(rank(0, CLOSED), rank(1, CLOSED))
    nodes = [known.nodes[0], replace(known.nodes[1], lost="no answer")]
    judgement = judge(replace(known, nodes=nodes))
    assert (judgement.family, judgement.node_rank, judgement.rank) == ("NODE_LOST", 1, None)


def test_what_nobody_knows_stays_unknown() -> None:
    judgement = judge(case(rank(1), stopped(0)))
    assert (judgement.family, judgement.confidence, judgement.rank) == ("UNKNOWN", "unknown", 1)
    judgement = judge(case(rank(0, CLOSED), rank(1, CLOSED)))
    assert (judgement.family, judgement.rank) == ("UNKNOWN", None)


def test_the_first_exception_of_a_rank_counts_and_what_follows_from_it_does_not() -> None:
    both = rank(2, f"{CLOSED}\nOSError: [Errno 28] No space left on device")
    judgement = judge(case(both, rank(1, "KeyError: 'a'", at=12.0)))
    assert judgement.rank == 1


def test_an_xid_counts_for_a_rank_that_failed_on_its_gpu() -> None:
    xid = Cause(id="x.y", family="GPU_HW", role="confirm", priority=97, title="Xid 79")
    known = case(rank(2, "torch.AcceleratorError: CUDA error: unspecified launch failure"), rank(0, CLOSED))
    nodes = [known.nodes[0], replace(known.nodes[1], kernel=(Hit(cause=xid, text="Xid"),))]
    assert told(judge(replace(known, nodes=nodes))) == ("GPU_HW", 2, "kernel")
    other = case(rank(2, "KeyError: 'a'"), rank(0, CLOSED))
    assert judge(replace(other, nodes=nodes)).family == "CODE"


def test_one_that_came_when_the_others_had_given_up_is_why_they_did() -> None:
    waiting = [rank(0, WAITED, at=20.0), rank(1, WAITED, at=20.5), rank(3, WAITED, at=20.1)]
    assert told(judge(case(*waiting, rank(2, CLOSED, at=60.0)))) == ("HANG", 2, "lateness")
    assert judge(case(*waiting, rank(2, CLOSED, at=21.0))).rank is None


def test_a_watchdog_that_saw_its_peer_end_did_not_wait_in_vain() -> None:
    said = (
        "[E1128 13:07:35.58 ProcessGroupNCCL.cpp:612] [Rank 0] Collective WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=4, "
        "NumelOut=4, Timeout(ms)=15000) raised the following async exception: NCCL error: remote process exited or there "
        "was a network error, NCCL version 2.28.9\n" + PROGRESS.format(0).splitlines()[1]
    )
    aborted = replace(rank(0, code=None, signal=6, at=70.0), hits=scan_text(said))
    assert told(judge(case(aborted, rank(2, code=0, at=9.0)))) == ("EARLY_EXIT", 2, "absence")
    assert told(judge(case(aborted, stopped(2))))[0] == "UNKNOWN"
    assert told(judge(case(aborted, rank(2, code=None, signal=9, at=9.0)))) == ("KILLED", 2, "exit")
