from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import Story

from orchestrator.diagnosis.logs.tracebacks import address_in_use, parse_blame, parse_error_file, parse_failure

BOOM = """noise before
Traceback (most recent call last):
  File "/w/train.py", line 88, in forward
    y = self.f(x)
  File "/w/workload/model.py", line 41, in f
    return torch.add(x, y)
  File "/v/lib/python3.11/site-packages/torch/x.py", line 5, in add
    raise RuntimeError("boom")
RuntimeError: boom: tried to allocate 2.5 GiB
"""
RESET = """Traceback (most recent call last):
  File "/w/train.py", line 90, in step
    dist.all_reduce(t)
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4711
"""
BLOCK = """
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-27_23:20:41
  host      : node1
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4711
============================================================
"""


def ended_story(code: int = 1) -> Story:
    story = Story(2, 2)
    story.all_run()
    story.rank_ends(3, code=code)
    return story


def test_the_exception_and_the_deepest_own_frame_are_named() -> None:
    verdict = ended_story().verdict(err={3: BOOM})
    first = verdict.first_failure
    assert first is not None
    assert (first.rank, first.local_rank, first.node, first.exit_code) == (3, 1, "node1", 1)
    assert first.error == "RuntimeError: boom: tried to allocate 2.5 GiB"
    assert first.traceback == "/w/workload/model.py:41 in f"
    assert verdict.cause == first.error
    assert verdict.stopped == (0, 1, 2)


def test_a_consequence_that_is_told_first_does_not_win() -> None:
    story = Story(1, 1)
    story.all_run()
    story.rank_ends(0, at=5.0, code=1)
    story.rank_ends(1, at=5.4, code=1)
    first = story.verdict(err={0: RESET, 1: BOOM}).first_failure
    assert first is not None
    assert first.rank == 1


def test_a_cause_that_ends_only_after_our_stop_still_wins_over_a_consequence() -> None:
    story = Story(1, 1)
    story.all_run()
    story.rank_ends(0, at=5.0, code=1)
    story.rank_ends(1, at=6.0, code=1, after_stop=True)
    first = story.verdict(err={0: RESET, 1: BOOM}).first_failure
    assert first is not None
    assert first.rank == 1


def test_a_rank_that_we_stopped_is_never_the_cause() -> None:
    story = Story(1, 1)
    story.all_run()
    story.rank_ends(0, at=5.0, code=1)
    story.rank_ends(1, at=5.1, code=None, signal=15, after_stop=True)
    verdict = story.verdict(err={0: RESET, 1: "last line of progress"})
    assert verdict.first_failure is None or verdict.first_failure.rank != 1
    assert verdict.confidence == "unknown"


def test_a_killed_rank_is_named_by_its_signal_and_not_by_its_last_line() -> None:
    story = Story(1, 1)
    story.all_run()
    story.rank_ends(1, at=5.0, code=None, signal=9)
    story.rank_ends(0, at=5.1, code=1)
    verdict = story.verdict(err={0: RESET, 1: "loss 3.1"})
    first = verdict.first_failure
    assert first is not None
    assert (first.rank, first.signal, first.error) == (1, "SIGKILL", "")
    assert verdict.cause == "killed by SIGKILL"


def test_an_error_file_is_the_better_word() -> None:
    document = {
        "message": {"message": "ValueError: from the file", "extraInfo": {"py_callstack": BOOM, "timestamp": "1"}}
    }
    first = ended_story().verdict(err={3: "something else"}, files={3: json.dumps(document).encode()}).first_failure
    assert first is not None
    assert first.error == "ValueError: from the file"
    assert first.traceback == "/w/workload/model.py:41 in f"


def test_a_rank_that_was_never_seen_is_found_in_torchruns_own_block() -> None:
    story = Story(2, 2)
    story.all_run()
    story.tell("agent_exit", 1, code=1, signal=None)
    first = story.verdict(agents={1: BLOCK}).first_failure
    assert first is not None
    assert (first.rank, first.local_rank, first.signal) == (3, 1, "SIGKILL")


def test_an_agent_that_was_killed_is_named_itself() -> None:
    story = Story(1, 1)
    story.all_run()
    story.tell("agent_exit", 0, code=None, signal=9)
    verdict = story.verdict()
    assert verdict.first_failure is not None
    assert verdict.first_failure.rank is None
    assert verdict.cause == "the agent was killed by SIGKILL"


def test_an_agent_that_could_not_start_says_why() -> None:
    story = Story(1)
    story.tell("agent_exit", 0, code=127, signal=None, error="/no/python: no such file")
    story.tell("final", 0, state="failed", survivors=[])
    assert story.verdict().cause == "/no/python: no such file"


def test_no_traceback_gives_the_last_line() -> None:
    failure = parse_failure("one\ntwo: it went wrong\n\n")
    assert failure is not None
    assert (failure.error, failure.line) == ("two: it went wrong", 2)
    assert parse_failure(" \n\n") is None


def test_the_last_of_chained_tracebacks_counts() -> None:
    text = RESET + "\nDuring handling of the above exception, another exception occurred:\n\n" + BOOM
    failure = parse_failure(text)
    assert failure is not None
    assert failure.error.startswith("RuntimeError: boom")


def test_torchs_rank_prefix_is_no_part_of_the_error() -> None:
    failure = parse_failure("\n".join("[rank3]: " + line for line in BOOM.splitlines()))
    assert failure is not None
    assert failure.error == "RuntimeError: boom: tried to allocate 2.5 GiB"


def test_blame_is_read_from_the_block_and_nothing_else() -> None:
    blame = parse_blame(BLOCK)
    assert blame is not None
    assert (blame.rank, blame.local_rank, blame.code, blame.signal) == (3, 1, None, 9)
    assert parse_blame("no such block") is None


def test_a_taken_port_is_known_by_torchruns_words() -> None:
    assert address_in_use("DistNetworkError: The server socket has failed to listen ... EADDRINUSE, port: 29500")
    assert not address_in_use("connection refused")


@given(st.binary(max_size=400))
def test_no_error_file_breaks_us(data: bytes) -> None:
    failure = parse_error_file(data)
    assert failure is None or failure.error is not None


@given(st.text(max_size=400))
def test_no_stderr_breaks_us(text: str) -> None:
    failure = parse_failure("Traceback (most recent call last):\n" + text)
    assert failure is None or failure.error


def test_a_node_that_went_silent_after_the_failure_is_named_and_keeps_the_run_on_the_list() -> None:
    story = ended_story()
    story.node_ends(1, code=1, state="failed")
    story.tell("lost", 0, at=70.0, why="no answer")
    verdict = story.verdict(err={3: BOOM})
    assert (verdict.state, verdict.exit_code, verdict.unasked) == ("failed", 1, ("node0",))
    assert "aorta-launch kill run" in verdict.remedy


WAITED = """Traceback (most recent call last):
  File "/w/train.py", line 90, in step
    dist.all_reduce(t)
RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 9000ms for recv operation to complete
"""
STACK = """Current thread 0x00007f0000000000 (most recent call first):
  File "/w/data.py", line 31 in fetch_block
  File "/w/train.py", line 88 in step
  File "/w/train.py", line 99 in <module>
"""


def test_a_rank_that_never_complained_is_told_with_what_it_did_when_it_was_stopped() -> None:
    story = Story(1, 2)
    story.all_run()
    story.rank_ends(0, at=5.0, code=1)
    story.rank_ends(1, at=5.2, code=1)
    story.rank_ends(2, at=5.4, code=None, signal=15, after_stop=True)
    look = {"rank": 2, "state": "S", "wchan": "hrtimer_nanosleep", "text": STACK}
    verdict = story.verdict(err={0: WAITED, 1: WAITED}, told={1: {"looks": [{"ranks": [look]}]}})
    first = verdict.first_failure
    assert first is not None
    assert (verdict.family, first.rank, first.node_rank) == ("HANG", 2, 1)
    assert "fetch_block" in verdict.reason
    assert first.traceback == "/w/data.py:31 in fetch_block"
    assert first.exit_code is None
    assert first.signal is None


def test_an_agent_whose_end_was_missed_and_that_we_had_stopped_is_not_stopped_from_outside() -> None:
    story = Story(1, 2)
    story.all_run()
    story.rank_ends(0, at=5.0, code=1)
    story.rank_ends(1, at=5.2, code=1)
    story.rank_ends(2, at=5.4, code=None, signal=15, after_stop=True)
    story.tell("final", 1, 8.0, state="stopped", reason="failure", killed=1, survivors=[])
    told = "W1128 torch/distributed/elastic/agent/server/api.py:739] Received 15 death signal, shutting down workers\n"
    verdict = story.verdict(err={0: WAITED, 1: WAITED}, agents={0: told, 1: told})
    assert (verdict.family, verdict.first_failure.rank if verdict.first_failure else None) == ("HANG", 2)


OWN = """Traceback (most recent call last):
  File "/w/train.py", line 12, in <module>
    raise ValueError("batch is empty")
ValueError: batch is empty
"""
QUOTA = """Traceback (most recent call last):
  File "/w/train.py", line 40, in on_term
    save()
OSError: [Errno 122] Disk quota exceeded
"""
LOADER = """Traceback (most recent call last):
  File "/w/train.py", line 40, in <module>
    for batch in loader:
RuntimeError: DataLoader worker (pid 123) is killed by signal: Terminated.
"""


@pytest.mark.parametrize(
    ("code", "err"), [(143, ""), (1, QUOTA), (1, LOADER), (1, OWN.replace("batch is empty", "stopped"))]
)
def test_whatever_a_rank_does_because_of_our_stop_is_not_what_broke_first(code: int, err: str) -> None:
    story = Story(2, 2)
    story.all_run()
    story.rank_ends(0, at=5.0, code=1)
    story.rank_ends(2, at=6.0, code=code, after_stop=True)
    verdict = story.verdict(err={0: OWN, 2: err})
    assert verdict.first_failure is not None
    assert (verdict.family, verdict.first_failure.rank) == ("CODE", 0)
    assert "the first to end" in verdict.reason


@pytest.mark.parametrize("err", [QUOTA, LOADER, ""])
def test_where_only_victims_ended_before_our_stop_what_came_after_it_is_never_certain(err: str) -> None:
    story = Story(2, 2)
    story.all_run()
    story.rank_ends(0, at=5.0, code=1)
    story.rank_ends(2, at=6.0, code=1 if err else 143, after_stop=True)
    verdict = story.verdict(err={0: RESET, 2: err})
    assert verdict.confidence != "certain"
    assert verdict.family not in ("KILLED", "DATA")


SURVIVED = """Traceback (most recent call last):
  File "/w/train.py", line 12, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
retrying with a smaller batch
""" + "".join(f"step {number}: loss 1.5\n" for number in range(100))


@pytest.mark.parametrize(
    ("code", "signal", "family"),
    [(1, None, ("UNKNOWN", "CODE")), (3, None, ("CODE", "UNKNOWN")), (None, 11, ("CRASH",))],
)
def test_an_exception_that_was_survived_is_not_what_a_rank_ended_of(
    code: int | None, signal: int | None, family: tuple[str, ...]
) -> None:
    story = Story(1, 1)
    story.all_run()
    story.rank_ends(0, at=5.0, code=code, signal=signal)
    verdict = story.verdict(err={0: SURVIVED})
    assert verdict.family in family
    assert "memory" not in verdict.cause


def test_an_exception_that_a_script_dealt_with_before_it_chose_its_exit_code_is_likely() -> None:
    story = Story(1, 1)
    story.all_run()
    story.rank_ends(0, at=5.0, code=3)
    verdict = story.verdict(err={0: SURVIVED.partition("retrying")[0] + "giving up at step 12\n"})
    assert (verdict.family, verdict.confidence) == ("OOM_GPU", "likely")


IN_REDUCE = """Current thread 0x00007f0000000000 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/w/train.py", line {line} in step
"""


def silent_story(others: int) -> Story:
    story = Story(1, others)
    story.all_run()
    for rank in range(others):
        story.rank_ends(rank, at=5.0, code=1)
    story.rank_ends(others, at=5.4, code=None, signal=15, after_stop=True)
    return story


@pytest.mark.parametrize(("line", "family", "rank"), [(90, "HANG", None), (26, "MISMATCH", 2)])
def test_a_silent_rank_that_waited_as_well_is_not_the_one_that_all_waited_for(
    line: int, family: str, rank: int | None
) -> None:
    look = {"rank": 2, "state": "S", "wchan": "futex_wait", "text": IN_REDUCE.format(line=line)}
    verdict = silent_story(2).verdict(err={0: WAITED, 1: WAITED}, told={1: {"looks": [{"ranks": [look]}]}})
    assert (verdict.family, verdict.first_failure.rank if verdict.first_failure else None) == (family, rank)
    assert verdict.confidence == ("unknown" if rank is None else "likely")


def test_of_two_ranks_the_one_that_gave_up_later_is_not_surely_the_one_that_hung() -> None:
    verdict = silent_story(1).verdict(err={0: WAITED})
    assert (verdict.family, verdict.confidence) == ("HANG", "unknown")


@pytest.mark.parametrize("data", [b'{"message":' + b"[" * 100_000, b'{"message": [1]}', b"[]", b'{"message": {}}'])
def test_an_error_file_that_a_rank_wrote_by_hand_breaks_nothing(data: bytes) -> None:
    assert parse_error_file(data) is None


def test_of_a_rank_that_nobody_understands_the_last_lines_are_shown() -> None:
    story = Story(1, 1)
    story.all_run()
    story.rank_ends(1, at=5.0, code=5)
    verdict = story.verdict(err={1: "one\ntwo\nthree says why\n==========\n"})
    assert verdict.last_lines == ("one", "two", "three says why", "==========")
    assert verdict.first_failure is not None
    assert verdict.first_failure.error == "three says why"


def test_what_lies_far_back_is_not_what_a_rank_ended_of() -> None:
    story = Story(1, 1)
    story.all_run()
    story.rank_ends(0, at=5.0, code=1)
    said = "loss: nan\n[Errno 28] No space left on device, continuing\n" + "step 3: loss 1.5\n" * 300
    verdict = story.verdict(outs={0: said}, err={0: ""})
    assert verdict.family in ("UNKNOWN", "CODE")
    assert "nan" not in verdict.cause
    assert verdict.confidence != "certain"


def test_a_thousand_ranks_cost_no_more_than_the_few_that_broke() -> None:
    read: list[int] = []

    class Counting(dict[int, str]):
        def get(self, rank: int, default: str = "") -> str:  # type: ignore[override]
            read.append(rank)
            return super().get(rank, default)

    story = Story(*([8] * 128))
    story.all_run()
    story.rank_ends(700, at=5.0, code=1)
    for rank in (rank for rank in range(1024) if rank != 700):
        story.rank_ends(rank, at=5.4, code=None, signal=15, after_stop=True)
    first = story.verdict(err=Counting({700: BOOM})).first_failure
    assert first is not None
    assert first.rank == 700
    assert set(read) == {700}


def test_what_the_interpreter_ignores_is_not_what_a_rank_ended_of() -> None:
    said = """step 3
Exception ignored in: <function Pool.__del__ at 0x7f>
Traceback (most recent call last):
  File "/w/pool.py", line 9, in __del__
ImportError: sys.meta_path is None, Python is likely shutting down
"""
    story = Story(1, 1)
    story.all_run()
    story.rank_ends(0, at=5.0, code=3)
    verdict = story.verdict(err={0: said})
    assert "meta_path" not in verdict.cause
    assert verdict.rule == "exit"
