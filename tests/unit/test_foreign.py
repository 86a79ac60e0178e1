from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main as cli
from orchestrator.diagnosis.ladder.judge import judge
from orchestrator.phases.foreign import lines as foreign_lines
from orchestrator.phases.foreign.lines import read_parts
from orchestrator.phases.foreign.read import read_jobs

FAILURES = Path(__file__).parent.parent / "data" / "failures"
ORDINARY = b"[rank1] step 120 loss=0.53 lr=0.0003 tokens/s=123456 grad_norm=0.33 mem=12.3GiB\n"


def why(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli(["why", str(path), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    verdict: dict[str, Any] = document["verdict"]
    return verdict


def test_the_document_has_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = why(FAILURES / "s25_cgroup_oom_kill", capsys)
    assert (verdict["state"], verdict["family"], verdict["confidence"], verdict["rule"]) == (
        "failed",
        "OOM_HOST",
        "certain",
        "kernel",
    )
    first = verdict["first_failure"]
    assert {name: first[name] for name in ("node", "node_rank", "rank", "local_rank", "exit_code", "signal")} == {
        "node": "node-b",
        "node_rank": 1,
        "rank": 3,
        "local_rank": 1,
        "exit_code": None,
        "signal": "SIGKILL",
    }
    assert first["time"] == "2026-11-27T22:36:28.000Z"
    assert verdict["stopped"] == [0, 1, 2]
    assert verdict["evidence"][0] == {"file": "node-b.kernel.txt", "line": 10}
    assert verdict["remedy"]
    assert verdict["cause_id"] == "host.oomk"


def test_a_run_that_went_well_is_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = why(FAILURES / "s00_ok", capsys)
    assert (verdict["state"], verdict["family"], verdict["first_failure"]) == ("succeeded", "OK", None)


def test_where_no_node_is_to_blame_the_keys_are_there_and_empty(capsys: pytest.CaptureFixture[str]) -> None:
    first = why(FAILURES / "s31_localhost_endpoint", capsys)["first_failure"]
    assert first["node"] is first["node_rank"] is first["rank"] is None


def test_a_rank_whose_node_nobody_tells_has_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    first = why(FAILURES / "s45_fr_gloo_sleep", capsys)["first_failure"]
    assert (first["rank"], first["node"], first["node_rank"]) == (2, None, None)


def test_the_page_has_a_headline_and_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["why", str(FAILURES / "s11_import_error_one_node")]) == 0
    page = capsys.readouterr().out
    assert page.startswith("FAILED · rank 3 (node 1 node-b, local rank 1) · ")
    for word in ("first failure", "where", "others", "reason", "evidence", "to do", "docs/failures.md#"):
        assert word in page


def test_of_two_jobs_the_one_that_failed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = why(FAILURES / "s20_second_job_same_rdzv_id", capsys)
    assert (verdict["job"], verdict["family"]) == ("job2", "CONFIG")


def test_stdout_and_stderr_of_a_node_are_one_log(tmp_path: Path) -> None:
    shutil.copy(FAILURES / "s11_import_error_one_node" / "node-a.log", tmp_path / "n1.out")
    shutil.copy(FAILURES / "s11_import_error_one_node" / "node-b.log", tmp_path / "n2.err")
    (tmp_path / "n2.out").write_text("hello\n")
    (job,) = read_jobs(tmp_path)
    assert [node.name for node in job.case.nodes] == ["n1", "n2"]
    assert judge(job.case).rank == 3


def test_files_of_one_rank_each_are_told_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "rank_0000.out").write_text("step 1\n")
    trace = 'Traceback (most recent call last):\n  File "/w/a.py", line 3, in f\n    x\n'
    (tmp_path / "rank_0000.err").write_text(
        f"{trace}RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4711.\n"
    )
    (tmp_path / "rank_0001.err").write_text(f"{trace}KeyError: 'tokens'\n")
    (job,) = read_jobs(tmp_path)
    judgement = judge(job.case)
    assert (judgement.rank, judgement.family) == (1, "CODE")


@pytest.mark.parametrize("words", [["why", "/no/such/place"], ["why", "no-such-run"], ["why", "--json", "gone.log"]])
def test_what_is_not_there_cannot_be_judged(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(words) == 2
    told = capsys.readouterr()
    assert "no run" in told.out + told.err


def test_a_folder_without_logs_cannot_be_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.bin").write_bytes(b"1")
    assert cli(["why", str(tmp_path)]) == 2
    assert "no log lies there" in capsys.readouterr().err


def test_an_empty_log_and_bytes_that_are_no_text_are_no_trouble(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.log").write_bytes(b"")
    (tmp_path / "b.log").write_bytes(b"\xff\xfe\x00\x1b[31m" * 500)
    assert why(tmp_path, capsys)["family"] in ("OK", "UNKNOWN")


def test_progress_bars_end_where_they_stood_last(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"  0%|\r 50%|\r100%|##\r\n[rank0]: KeyError: 1")
    assert list(read_parts(file)) == [(1, ["100%|##"]), (2, ["[rank0]: KeyError: 1"])]


def test_a_large_log_is_read_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("CHUNK", 1 << 14), ("HEAD", 1 << 16), ("TAIL", 1 << 16), ("WHOLE", 1 << 18)):
        monkeypatch.setattr(foreign_lines, name, size)
    lines = (FAILURES / "s07_rank_exception_norecord" / "node-b.log").read_bytes().split(b"\n")
    cut = next(number for number, line in enumerate(lines) if b"Traceback" in line)
    with (tmp_path / "a.log").open("wb") as file:
        file.write(b"\n".join([*lines[:cut], ORDINARY * 50_000]))
        file.write(b"\n".join([*lines[cut : cut + 9], ORDINARY * 50_000, *lines[cut + 9 :]]))
    tracemalloc.start()
    given = sum(len(part) for _, part in read_parts(tmp_path / "a.log"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert given < 5_000
    numbers = [(first, len(part)) for first, part in read_parts(tmp_path / "a.log")]
    assert numbers[-1][0] + numbers[-1][1] - 1 == (tmp_path / "a.log").read_bytes().count(b"\n")
    (job,) = read_jobs(tmp_path)
    judgement = judge(job.case)
    assert (judgement.family, judgement.rank) == ("CODE", 2)
    assert judgement.evidence[0].line is not None
    assert judgement.evidence[0].line > 50_000


def test_counts_of_nccls_own_service_beside_the_logs_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for node in (0, 1):
        (tmp_path / f"n{node}.log").write_text(f"[rank{node}]:[W1128 13:07:34.2 x.cpp:1] hello\nexit code: 143\n")
    (tmp_path / "nccl_ras.txt").write_text(
        "#0-0 (0d2acf9f5d3e0ba9) MISMATCH\n"
        "  Communicator ranks have different AllReduce operation counts\n"
        "  Rank 0 has launched up to operation 7 -- GPU 0 managed by process 4487 on node 10.78.9.1\n"
        "  Rank 1 has launched up to operation 3 -- GPU 0 (NVML 1) managed by process 4486 on node 10.78.9.2\n\n"
    )
    verdict = why(tmp_path, capsys)
    assert verdict["evidence"][0]["file"] == "nccl_ras.txt"
    assert verdict["rule"] == "NCCL RAS"
    assert verdict["first_failure"]["rank"] == 1
    assert verdict["first_failure"]["node"] == "n1"


def test_one_file_of_a_parallel_shell_is_taken_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = FAILURES / "s07_rank_exception_norecord"
    both = [(folder / f"node-{name}.log").read_text().splitlines() for name in "ab"]
    woven = [f"{task}: {line}" for pair in zip(*both, strict=False) for task, line in enumerate(pair)]
    rest = [f"{task}: {line}" for task, lines in enumerate(both) for line in lines[min(map(len, both)) :]]
    (tmp_path / "slurm-42.out").write_text("\n".join([*woven, *rest]) + "\n")
    verdict = why(tmp_path / "slurm-42.out", capsys)
    assert (verdict["family"], verdict["first_failure"]["rank"], verdict["first_failure"]["node"]) == (
        "CODE",
        2,
        "task 1",
    )
    place = verdict["evidence"][0]
    assert "bad sample" in (tmp_path / place["file"]).read_text().splitlines()[place["line"] - 1]


@pytest.mark.parametrize("stamp", ["2026-11-27T22:14:42.391Z ", "2026-11-27 22:14:42,391 ", "Nov 27 22:14:42 ", "n7: "])
def test_a_collectors_mark_before_every_line_is_looked_through(
    stamp: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "ab":
        lines = (FAILURES / "s15_rank_hang_timeout" / f"node-{name}.log").read_text().splitlines()
        (tmp_path / f"{name}.log").write_text("\n".join(stamp + line for line in lines) + "\n")
    verdict = why(tmp_path, capsys)
    assert (verdict["family"], verdict["first_failure"]["rank"], verdict["first_failure"]["node"]) == ("HANG", 2, "b")


def test_of_the_middle_of_a_large_log_every_traceback_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("CHUNK", 1000), ("HEAD", 0), ("TAIL", 0), ("WHOLE", 0), ("BEFORE", 50), ("AFTER", 400)):
        monkeypatch.setattr(foreign_lines, name, size)
    trace = ["Traceback (most recent call last):", '  File "/w/a.py", line 3, in f', "    x", "KeyError: 'a'"]
    for shift in range(0, 1100, 37):
        lines = ["a" * 20] * 30 + ["b" * shift] + trace + ["c" * 20] * 200
        file = tmp_path / "a.log"
        file.write_text("\n".join(lines) + "\n")
        parts = list(read_parts(file))
        given = {first + number: line for first, part in parts for number, line in enumerate(part)}
        assert [given.get(32 + number) for number in range(4)] == trace, shift
        assert all(lines[number - 1] == line for number, line in given.items())
        assert len(given) < 100
