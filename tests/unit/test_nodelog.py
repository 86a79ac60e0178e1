from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.diagnosis.case import Case
from orchestrator.diagnosis.ladder.judge import judge
from orchestrator.diagnosis.logs.build import build_log_case, find_layout, natural_key
from orchestrator.diagnosis.logs.nodelog import AGENT, ANYONE, NodeLog, last_words, read_node_log, split_speaker

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 46, in <module>',
    "    body()",
    '  File "/v/lib/python3.11/site-packages/torch/x.py", line 5, in wrapper',
    "    return f(*args)",
)
BLOCK = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-27_22:20:10
  host      : localhost
  rank      : 2 (local_rank: 0)
  exitcode  : -15 (pid: 4411)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 4411
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-27_22:20:11
  host      : localhost
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 4412)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4412
============================================================"""
STOPPING = "W1127 22:20:10.296000 4392 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 4411 closing signal SIGTERM"


def read(*lines: str, name: str = "a") -> NodeLog:
    return read_node_log([line for text in lines for line in text.split("\n")], name, f"{name}.log")


def case(*logs: NodeLog) -> Case:
    return build_log_case(logs)


@pytest.mark.parametrize(
    ("line", "speaker", "words", "sure"),
    [
        ("[rank3]: KeyError: 'a'", ("rank", 3), "KeyError: 'a'", True),
        ("[rank3]:[E1127 22:14:42.3 x.cpp:1] boom", ("rank", 3), "[E1127 22:14:42.3 x.cpp:1] boom", True),
        ("[rank3] loss nan", ("rank", 3), "loss nan", False),
        ("[rank 3] [rank3]: KeyError: 'a'", ("rank", 3), "KeyError: 'a'", True),
        ("[rank 3 …] rest of a long line", ("rank", 3), "rest of a long line", True),
        ("[agent] exiting", AGENT, "exiting", True),
        ("[default1]:hello", ("local", 1), "hello", True),
        ("[1,5]<stderr>:hello", ("rank", 5), "hello", True),
        (
            "[E ProcessGroupNCCL.cpp:475] [Rank 6] Watchdog caught",
            ("rank", 6),
            "[E ProcessGroupNCCL.cpp:475] [Rank 6] Watchdog caught",
            True,
        ),
        ("h:12:34 [2] NCCL WARN boom", ("local", 2), "h:12:34 [2] NCCL WARN boom", False),
        (STOPPING, AGENT, STOPPING, True),
        ("step 3 [rank0] loss=1", ANYONE, "step 3 [rank0] loss=1", False),
    ],
)
def test_who_speaks(line: str, speaker: tuple[str, int], words: str, sure: bool) -> None:  # noqa: FBT001
    assert split_speaker(line) == (speaker, words, sure)


def test_the_agents_list_tells_ends_pids_and_times() -> None:
    claims = read(BLOCK).agent.claims
    assert [(one.rank, one.local_rank, one.code, one.signal, one.pid, one.root) for one in claims] == [
        (2, 0, None, 15, 4411, False),
        (3, 1, None, 9, 4412, True),
    ]
    assert claims[1].time is not None
    assert claims[0].time == claims[1].time - 1


def test_whom_the_agent_stopped_is_stopped() -> None:
    ranks = case(read(STOPPING, BLOCK)).ranks
    assert [(story.rank, story.stopped) for story in ranks] == [(2, True), (3, False)]


def test_a_rank_that_no_list_names_ended_well() -> None:
    alone = BLOCK.replace("rank      : 3 (local_rank: 1)", "rank      : 4 (local_rank: 2)")
    ranks = case(read("[rank3] data exhausted", alone)).ranks
    assert {story.rank: story.code for story in ranks}[3] == 0


def test_one_line_reports_stand_in_for_a_list() -> None:
    failed = "E1127 22:20:10.4 4392 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 4412) of binary: python3"
    story = case(read("[rank2] ready", "[rank3] ready", failed)).ranks[1]
    assert (story.rank, story.signal, story.pid) == (3, 9, 4412)


def test_events_tell_who_ended_well() -> None:
    event = '[INFO] {"name": "torchelastic.worker.status.SUCCEEDED", "source": "WORKER", "timestamp": 0, "metadata": {"global_rank": 3, "worker_id": "4412", "state": "SUCCEEDED"}}'
    log = read("[rank3] ready", event)
    assert log.agent.ended_well == {3}
    assert case(log).ranks[0].code == 0
    assert case(log).ranks[0].pid == 4412


def test_an_error_file_in_the_agents_list_is_read() -> None:
    told = (
        '  traceback : Traceback (most recent call last):\n    File "/w/train.py", line 17, in body\n      raise X\n'
        "  ValueError: bad sample\n"
    )
    text = BLOCK.replace("  traceback : Signal 9 (SIGKILL) received by PID 4412\n", told)
    failure = case(read(text)).ranks[1].failure
    assert failure is not None
    assert (failure.error, failure.where) == ("ValueError: bad sample", "/w/train.py:17 in body")


def test_a_traceback_with_lines_of_others_in_between() -> None:
    lines: list[str] = []
    for line in (*TRACEBACK, "KeyError: 'a'"):
        lines += [f"[rank1]: {line}", "step 5 done", "Traceback: none", "INFO: all well"]
    said = read(*lines).speeches[("rank", 1)].utterances
    assert [one.failure.error for one in said] == ["KeyError: 'a'"]
    assert said[0].failure.frames == ("/w/train.py:46 in <module>",)


def test_two_tracebacks_without_a_name_woven_into_each_other() -> None:
    woven = [line for line in TRACEBACK for _ in range(2)]
    said = read(*woven, "ImportError: one", "ImportError: two").speeches[ANYONE].utterances
    assert [one.failure.error for one in said] == ["ImportError: one", "ImportError: two"]


def test_tracebacks_without_a_name_go_to_the_ranks_that_failed() -> None:
    text = BLOCK.replace("exitcode  : -9 (pid: 4412)  (SIGKILL)", "exitcode  : 1 (pid: 4412)")
    ranks = case(read(*TRACEBACK, "ModuleNotFoundError: No module named 'flashy'", STOPPING, text)).ranks
    assert [story.failure and story.failure.error for story in ranks] == [
        None,
        "ModuleNotFoundError: No module named 'flashy'",
    ]


def test_the_last_exception_of_a_chain_counts_with_what_the_first_one_knew() -> None:
    speech = last_words(
        "\n".join(
            (
                *TRACEBACK,
                "OSError: [Errno 28] No space left on device",
                "",
                "The above exception was the direct cause of the following exception:",
                "",
                *TRACEBACK,
                "RuntimeError: cannot save",
            )
        )
    )
    (said,) = speech.utterances
    assert said.failure.error == "RuntimeError: cannot save"
    assert "disk.enospc" in [hit.cause.id for hit in said.hits]


def test_a_plain_exception_that_was_handled_explains_nothing() -> None:
    speech = last_words(
        "\n".join(
            (
                *TRACEBACK,
                "KeyError: 11",
                "",
                "During handling of the above exception, another exception occurred:",
                "",
                *TRACEBACK,
                "OddWindowError: window of 11 tokens",
            )
        )
    )
    assert "py.key" not in [hit.cause.id for hit in speech.utterances[-1].hits]


def test_a_workers_own_exception_is_the_ranks() -> None:
    speech = last_words(
        "\n".join(
            (
                *TRACEBACK,
                "RuntimeError: Caught RuntimeError in DataLoader worker process 0.",
                "Original Traceback (most recent call last):",
                '  File "/w/data.py", line 7, in __getitem__',
                "    x",
                "RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)",
            )
        )
    )
    (said,) = speech.utterances
    assert said.failure.error.startswith("RuntimeError: unable to allocate")
    assert said.failure.frames == ("/w/train.py:46 in <module>", "/w/data.py:7 in __getitem__")


def test_a_quoted_line_of_code_is_no_message() -> None:
    quoted = '    if "CUDA out of memory" in text: raise KeyError(1)'
    speech = last_words("\n".join((*TRACEBACK[:2], quoted, "KeyError: 1")))
    assert [hit.cause.id for hit in speech.utterances[-1].hits] == ["py.key"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("[launcher] agent exit code: 137", 137),
        ("agent finished with exit code 1", 1),
        ("srun: error: node-b: task 3: Exited with exit code 2", 2),
        ("torchrun exited with status 0", 0),
        ("Process returned 1.", 1),
        ("rc=143", 143),
        ("child terminated: -9", -9),
        ("exit status: 255", 255),
        ("everything returned to normal at 3", None),
        ("step 12 returned", None),
    ],
)
def test_how_a_launcher_may_say_that_it_is_over(line: str, code: int | None) -> None:
    assert read("hello", line).exit_code == code


def test_gaps_in_the_layout_are_filled_between_nodes() -> None:
    def claims(name: str, rank: int) -> NodeLog:
        return read(
            BLOCK.replace("rank      : 3 (local_rank: 1)", f"rank      : {rank} (local_rank: 1)").replace(
                "rank      : 2 (local_rank: 0)", f"rank      : {rank - 1} (local_rank: 0)"
            ),
            name=name,
        )

    layout = find_layout([claims("a", 1), claims("b", 5)])
    assert layout == {"a": (0, 1, 2, 3), "b": (4, 5)}


def test_names_are_sorted_as_people_count() -> None:
    assert sorted(["n10", "n2", "b"], key=natural_key) == ["b", "n2", "n10"]


@given(
    st.lists(
        st.sampled_from([*TRACEBACK, *BLOCK.split("\n"), STOPPING, "KeyError: 'a'", "", "[rank1]: x"]), max_size=60
    )
)
def test_any_mix_of_lines_is_read(lines: Sequence[str]) -> None:
    log = read_node_log(lines, "a")
    assert log.lines <= len(lines)
    assert build_log_case([log]).nodes[0].name == "a"


def test_the_last_lines_are_the_ranks_and_not_its_agents() -> None:
    agents = (
        TRACEBACK[0],
        '  File "/v/lib/python3.11/site-packages/torch/distributed/run.py", line 1028, in main',
        "    run(args)",
    )
    log = read("fatal: shard 7 is empty", *agents, BLOCK)
    speech = log.speech(ANYONE)
    assert speech is not None
    assert list(speech.last_lines) == ["fatal: shard 7 is empty"]


def test_a_rank_that_its_agent_did_not_stop_was_told_to_end_by_somebody() -> None:
    root = BLOCK.replace("exitcode  : -9 (pid: 4412)  (SIGKILL)", "exitcode  : -15 (pid: 4412)  (SIGTERM)")
    judgement = judge(case(read(STOPPING, root)))
    assert (judgement.family, judgement.rank, judgement.cause) == ("KILLED", 3, "killed by SIGTERM")


def test_an_exception_that_was_followed_by_much_else_was_survived() -> None:
    raised = "\n".join((*TRACEBACK, "KeyError: 'a'"))
    assert last_words(raised + "\nstep 1" * 100).utterances
    assert not last_words(raised + "\nstep 1" * 1000).utterances
