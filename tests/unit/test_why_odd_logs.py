"""Logs that are not what one expects: survived errors, good ends, other encodings, schedulers' own lines."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main as cli
from orchestrator.phases.foreign import lines as foreign_lines
from orchestrator.phases.foreign.lines import read_parts

TRACE = """Traceback (most recent call last):
  File "/home/u/proj/train.py", line 88, in <module>
    main()
  File "/home/u/proj/train.py", line 41, in main
    out = model(x)
RuntimeError: shape '[4, 8]' is invalid for input of size 16
"""
STEPS = "".join(f"step {step} loss {1 / (step + 1):.3f}\n" for step in range(50))


def label(mark: str, text: str) -> str:
    return "".join(f"{mark}{line}\n" for line in text.splitlines())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "d").mkdir()


def page(folder: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert cli(["why", str(folder)]) == code
    told = capsys.readouterr()
    return told.out + told.err


def why(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli(["why", str(folder), "--json"]) == 0
    verdict: dict[str, Any] = json.loads(capsys.readouterr().out)["verdict"]
    return verdict


@pytest.mark.parametrize(
    "text",
    [
        STEPS,
        "hello\n",
        f"{STEPS}ERROR:root:could not fetch sample 12\n{TRACE}{STEPS}",
        f"{STEPS}{TRACE}{STEPS}CUDA out of memory recovered: retrying with batch size 4\n{STEPS}Training finished. done\n",
        f"{STEPS}ERROR: upload failed\n{TRACE}training done, final loss 0.1\n",
        f"{STEPS}{TRACE}{STEPS}{TRACE}{STEPS}",
        f"[rank0] hello\n[rank1] hello\n{STEPS}",
        f"{STEPS}done\nException ignored in: <function Foo.__del__ at 0x7f>\n{TRACE}",
        f"{STEPS}--- Logging error ---\n{TRACE}Call stack:\n  File \"/w/a.py\", line 3, in f\nMessage: 'x'\n",
    ],
)
def test_a_log_that_tells_of_no_end_is_not_said_to_have_failed(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d" / "node-a.log").write_text(text)
    verdict = why(tmp_path / "d", capsys)
    assert (verdict["family"], verdict["confidence"], verdict["rule"]) == ("UNKNOWN", "unknown", "no sign")
    assert verdict["first_failure"]["rank"] is verdict["first_failure"]["exit_code"] is None
    assert not verdict["stopped"]
    assert page(tmp_path / "d", capsys).startswith(
        "UNDECIDED · nothing in these logs tells of a failure, or of an end\n"
    )


@pytest.mark.parametrize(
    "after",
    [
        "",
        "\n" * 9,
        "wandb: Run history: loss 0.1\nwandb: step 3\nwandb: done\n",
        "error at step 3, loss 0.2\nsaving at step 3 failed\n",
        "/opt/lib/resource_tracker.py: UserWarning: leaked semaphore objects\n  warnings.warn(\n" * 6,
    ],
)
def test_what_the_dying_say_is_no_sign_of_life(after: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d" / "node-a.log").write_text(STEPS + TRACE + after)
    verdict = why(tmp_path / "d", capsys)
    assert verdict["first_failure"]["rank"] == 0
    assert verdict["first_failure"]["exit_code"] is None
    assert "shape" in verdict["cause"]


def test_of_many_exceptions_that_nobody_signed_the_last_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d" / "node-a.log").write_text(
        "".join(TRACE.replace("shape", f"sorry {number}") for number in range(9))
    )
    verdict = why(tmp_path / "d", capsys)
    assert (verdict["family"], verdict["rule"], verdict["confidence"]) == ("UNKNOWN", "undecided", "unknown")
    assert "sorry 8" in verdict["cause"]
    assert verdict["evidence"][0]["line"] == 54


@pytest.mark.parametrize("way", ["colours", "utf-16", "utf-8-sig", "nuls", "stray"])
def test_in_whatever_way_a_log_is_written_it_is_read(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "".join(f"\x1b[31m{line}\x1b[0m\n" for line in TRACE.splitlines()) if way == "colours" else TRACE
    data = text.encode(way) if way.startswith("utf") else text.encode()
    before = {"nuls": b"\0" * 9999, "stray": b"\xff\xfe\x80 start \xc3\x28\n"}.get(way, b"")
    (tmp_path / "d" / "node-a.log").write_bytes(before + data)
    verdict = why(tmp_path / "d", capsys)
    assert verdict["first_failure"]["rank"] == 0
    assert verdict["first_failure"]["error"].startswith("RuntimeError: shape")


def test_a_wide_log_has_the_same_lines_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_lines, "CHUNK", 101)
    (tmp_path / "a.log").write_text(TRACE, encoding="utf-16")
    (tmp_path / "b.log").write_text(TRACE)
    parts = [list(read_parts(tmp_path / f"{name}.log")) for name in "ab"]
    assert [[line for _, lines in one for line in lines if line] for one in parts] == [TRACE.splitlines()] * 2


def test_packed_files_and_bytes_are_no_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "d"
    (folder / "x.log").write_bytes(gzip.compress(TRACE.encode()))
    told = page(folder, capsys, 2)
    assert "x.log" in told
    assert "gzip" in told
    assert "gzip" in page(folder / "x.log", capsys, 2)
    (folder / "node-b.log").write_bytes(os.urandom(9000))
    assert "x.log" in page(folder, capsys, 2)
    (folder / "node-a.log.gz").write_bytes(gzip.compress(TRACE.encode()))
    (folder / "node-c.log").write_text(TRACE)
    told = page(folder, capsys)
    assert "rank 0" in told.splitlines()[0]
    (unread,) = [line for line in told.splitlines() if "not read" in line]
    assert all(name in unread for name in ("x.log (gzip)", "node-b.log (binary)", "node-a.log.gz"))


def test_of_a_log_full_of_tracebacks_a_part_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"CHUNK": 1000, "HEAD": 1000, "TAIL": 1000, "WHOLE": 0, "MOST_MIDDLE": 5000}
    for name, size in sizes.items():
        monkeypatch.setattr(foreign_lines, name, size)
    (tmp_path / "a.log").write_text(TRACE * 1000)
    parts = list(read_parts(tmp_path / "a.log"))
    assert sum(len(lines) for _, lines in parts) < 300
    assert parts[-1][0] + len(parts[-1][1]) == 6001


LABELLED = "".join(f"{task}: step {step}\n" for step in range(20) for task in range(4))
OOM_KILL = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the step tasks have been OOM Killed.\n"
)
CANCELLED = "slurmstepd: error: *** STEP 123.0 ON node-a CANCELLED AT 2026-11-27T23:20:00 ***\n"


def test_what_a_task_raised_goes_before_what_the_scheduler_did_because_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d" / "slurm-123.out").write_text(
        f"{LABELLED}{label('3: ', TRACE)}srun: error: node-b: task 3: Exited with exit code 1\n{CANCELLED}"
        f"srun: Terminating StepId=123.0\n0: {CANCELLED}srun: error: node-a: tasks 0-2: Terminated\n"
    )
    verdict = why(tmp_path / "d", capsys)
    first = verdict["first_failure"]
    assert (first["rank"], first["node"], first["exit_code"]) == (3, "task 3", 1)
    assert first["error"].startswith("RuntimeError: shape")


@pytest.mark.parametrize(
    ("lines", "family", "node"),
    [
        (
            f"{OOM_KILL}srun: error: node-b: task 2: Out Of Memory\nsrun: error: node-a: tasks 0-1: Terminated\n",
            "OOM_HOST",
            "task 2",
        ),
        (CANCELLED.replace(" ***\n", " DUE TO TIME LIMIT ***\n"), "TIME_LIMIT", None),
        (CANCELLED, "KILLED", None),
    ],
)
def test_the_schedulers_own_lines_are_read(
    lines: str, family: str, node: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d" / "slurm-123.out").write_text(LABELLED + lines)
    verdict = why(tmp_path / "d", capsys)
    assert (verdict["family"], verdict["first_failure"]["node"]) == (family, node)
    assert verdict["evidence"][0]["line"] == 81


@pytest.mark.parametrize("mark", ["[default3]:", "[default3]:[rank3]: "])
def test_torchruns_marks_tell_the_local_rank(mark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = "".join(f"[default{rank}]:step {step}\n" for step in range(5) for rank in range(4))
    (tmp_path / "d" / "node-a.log").write_text(steps + label(mark, TRACE))
    first = why(tmp_path / "d", capsys)["first_failure"]
    assert (first["rank"], first["local_rank"], first["node"]) == (3, 3, "node-a")


def test_words_in_brackets_are_no_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d" / "node-a.log").write_text("".join(f"[epoch{n}]: loss 0.1\n" for n in range(5)) + TRACE)
    assert why(tmp_path / "d", capsys)["first_failure"]["rank"] == 0


def test_a_fifo_for_a_record_is_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "d" / "run.json")
    (tmp_path / "d" / "a.log").write_text(TRACE)
    assert why(tmp_path / "d", capsys)["first_failure"]["rank"] == 0
    assert "is no file" in page(tmp_path / "d" / "run.json", capsys, 2)
    assert "is no file" in page(Path("/dev/null"), capsys, 2)


@pytest.mark.parametrize(
    "record",
    [
        '{"state": "failed", "run_id": 5, "nodes": "abc", "plan": [], "verdict": "x"}',
        '{"state": "failed", "run_id": "a-b", "nodes": [{"name": "a", "host": "a"}], "plan": {}, "verdict": {"state": 1}}',
        '{"state": "failed", "run_id": [], "nodes": 7, "plan": 9}',
        '{"state": ' + "[" * 99999,
    ],
)
def test_beside_a_record_that_is_none_the_logs_tell(
    record: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d" / "run.json").write_text(record)
    (tmp_path / "d" / "a.log").write_text(TRACE)
    assert why(tmp_path / "d", capsys)["first_failure"]["rank"] == 0


def test_what_may_be_a_secret_is_not_on_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token, key = "hf_" + "Abcdefgh" * 4, "0123456789abcdef" * 2
    (tmp_path / "d" / "a.log").write_text(
        TRACE.replace("RuntimeError: ", f"ValueError: {token} https://me:pa55word@host/x WANDB_API_KEY={key} ")
    )
    told = page(tmp_path / "d", capsys)
    assert not any(word in told for word in (token, "pa55word", key))
    assert "WANDB_API_KEY=***" in told


GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/w/a.py", line 10, in <module>
  |     raise ExceptionGroup("many", errors)
  | ExceptionGroup: many (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/w/a.py", line 5, in f
    |     raise KeyError("tokens")
    | KeyError: 'tokens'
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/w/a.py", line 6, in g
    |     raise TypeError("two")
    | TypeError: two
    +------------------------------------
"""


@pytest.mark.parametrize("after", ["", "bye\n", f"{STEPS}{TRACE}"])
def test_of_a_group_of_exceptions_the_first_is_told(
    after: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d" / "a.log").write_text(f"{STEPS}  | a | table |\n{GROUP}{after}")
    first = why(tmp_path / "d", capsys)["first_failure"]
    if after.endswith(TRACE):
        assert first["error"].startswith("RuntimeError")
    else:
        assert (first["error"], first["traceback"]) == ("KeyError: 'tokens'", "/w/a.py:5 in f")


def test_addresses_are_labels_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = "".join(f"10.0.0.{node}: step {step}\n" for step in range(20) for node in (1, 2))
    (tmp_path / "d" / "ds.log").write_text(steps + label("10.0.0.2: ", TRACE))
    assert why(tmp_path / "d", capsys)["first_failure"]["node"] == "10.0.0.2"


def test_a_rank_that_goes_on_after_an_exception_has_not_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = "".join(f"[rank{rank}]: step {step}\n" for step in range(3) for rank in range(2))
    (tmp_path / "d" / "a.log").write_text(steps + label("[rank1]: ", TRACE) + steps)
    assert why(tmp_path / "d", capsys)["rule"] == "no sign"


def test_beside_a_torn_record_our_own_log_of_the_launch_is_no_log_of_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d" / "run.json").write_text('{"state": "fai')
    (tmp_path / "d" / "launch.log").write_text("FAILED after 3.0s · rank 2\n")
    (tmp_path / "d" / "logs").mkdir()
    (tmp_path / "d" / "logs" / "node_1_b.txt").write_text(label("[rank 2] ", TRACE))
    first = why(tmp_path / "d", capsys)["first_failure"]
    assert (first["rank"], first["node"]) == (2, "b")


def test_what_turns_the_direction_of_the_text_is_not_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d" / "a.log").write_text(TRACE.replace("shape", "\u202eepahs\u2066"), encoding="utf-8")
    told = page(tmp_path / "d", capsys)
    assert "epahs" in told
    assert not {"\u202e", "\u2066"} & set(told)
