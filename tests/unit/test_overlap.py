"""How much communication was hidden: traces made by hand, whose answer is known, and two of real GPUs."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from workload.overlap import gather_ranks, main, render_table  # noqa: E402 - found by the line above
from workload.overlap_stream import TraceError, stream_trace  # noqa: E402
from workload.overlap_trace import read_trace  # noqa: E402

TRACES = PROJECT / "tests" / "data" / "traces"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
RCCL = "rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"


def event(cat: str, name: str, begin: float, end: float, tid: Any = 7) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": begin, "dur": end - begin}


def step(number: int, begin: float, end: float) -> dict[str, Any]:
    return event("user_annotation", f"training_step#{number}", begin, end, tid=1)


def write(path: Path, events: list[dict[str, Any]], rank: int | None = None) -> Path:
    head = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank}, "host_name": f"node{rank}"}
    text = json.dumps({"schemaVersion": 1, **head, "traceEvents": events, "traceName": "x"}, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def figures(path: Path) -> tuple[float, float, float, float]:
    """Give compute, communication, hidden, exposed, in microseconds."""
    whole = read_trace(path).whole
    return whole.compute / 1e3, whole.communication / 1e3, whole.hidden / 1e3, whole.exposed / 1e3


@pytest.mark.parametrize(
    "name", [NCCL, RCCL, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "mscclKernel"]
)
def test_gpu_streams_that_run_at_once_count_once(tmp_path: Path, name: str) -> None:
    events = [
        step(1, 0, 100),
        event("kernel", GEMM, 10, 50, tid=7),
        event("kernel", GEMM, 30, 60, tid=8),  # with the one above: 10 to 60 is computed
        event("kernel", name, 40, 80, tid=9),
        event("kernel", name, 55, 90, tid=10),  # with the one above: 40 to 90 is communicated, 40 to 60 of it hidden
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 60, 90),
        event("cpu_op", "aten::mm", 0, 100),
    ]
    assert figures(write(tmp_path / "a.json", events)) == (50, 50, 20, 30)


def test_what_lies_outside_of_the_steps_does_not_count_and_each_step_has_its_own(tmp_path: Path) -> None:
    events = [
        step(4, 100, 200),
        step(5, 200, 300),
        event("user_annotation", "ProfilerStep#0", 0, 400),  # torch's own mark gives way to ours
        event("kernel", NCCL, 50, 120),  # 20 of it in step 4
        event("kernel", GEMM, 110, 210),  # 10 of it in step 5
        event("kernel", NCCL, 205, 350),  # 95 of it in step 5, 5 hidden
    ]
    trace = read_trace(write(tmp_path / "a.json", events, rank=3))
    assert (trace.rank, trace.host, trace.device, sorted(trace.steps)) == (3, "node3", "gpu", [4, 5])
    four, five = trace.steps[4], trace.steps[5]
    assert (four.duration, four.compute, four.communication, four.hidden) == (100_000, 90_000, 20_000, 10_000)
    assert (five.duration, five.compute, five.communication, five.hidden) == (100_000, 10_000, 95_000, 5_000)
    assert trace.whole == four + five
    assert trace.whole.share == pytest.approx(15 / 115)


def test_a_host_that_is_ahead_of_its_gpu_does_not_move_kernels_into_other_steps(tmp_path: Path) -> None:
    marks = [event("user_annotation", f"ProfilerStep#{n}", 10 * n, 10 * n + 10, tid=1) for n in (0, 1)]
    # The GPU's marks end with a step's forward part: what comes until the next one belongs to it.
    marks += [event("gpu_user_annotation", f"ProfilerStep#{n}", 1000 + 100 * n, 1030 + 100 * n) for n in (0, 1)]
    kernels = [event("kernel", GEMM, 1000, 1080), event("kernel", NCCL, 1060, 1090)]
    kernels += [event("kernel", GEMM, 1100, 1180), event("kernel", NCCL, 1170, 1195)]
    trace = read_trace(write(tmp_path / "a.json", marks + kernels))
    assert [(one.duration, one.communication, one.hidden) for one in trace.steps.values()] == [
        (100_000, 30_000, 20_000),
        (95_000, 25_000, 10_000),
    ]


def test_on_a_cpu_operators_compute_and_what_waits_inside_of_them_does_not(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000),
        event("cpu_op", "aten::linear", 0, 100, tid=1),
        event("cpu_op", "aten::addmm", 10, 90, tid=1),
        # A hook that waits inside of autograd's entry computes nothing.
        event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 100, 400, tid=1),
        event("cpu_op", "AddmmBackward0", 100, 400, tid=1),
        event("cpu_op", "aten::mm", 100, 200, tid=1),
        event("cpu_op", "c10d::allreduce_", 200, 210, tid=1),
        # An operator on sharded tensors that waits for the others inside.
        event("cpu_op", "aten::_foreach_norm", 400, 500, tid=1),
        event("cpu_op", "_c10d_functional::wait_tensor", 420, 480, tid=1),
        event("cpu_op", "aten::mul", 450, 470, tid=2),  # another thread computes meanwhile
        event("user_annotation", "gloo:all_reduce", 150, 300, tid=9),
        event("user_annotation", "gloo:all_gather", 410, 490, tid=10),
        event("user_annotation", "nccl:all_reduce", 600, 700, tid=1),  # a host's mark of GPU work: no GPU worked here
        event("user_annotation", "Optimizer.step#SGD.step", 700, 800, tid=1),
        event("user_annotation", "## Call CompiledFxGraph fdxe3crq", 900, 950, tid=1),  # its kernels leave no operators
    ]
    trace = read_trace(write(tmp_path / "a.json", events))
    assert trace.device == "cpu"
    assert figures(tmp_path / "a.json") == (100 + 100 + 40 + 20 + 50, 150 + 80, 50 + 20 + 20, 100 + 40)


def test_without_marks_the_whole_trace_is_one_and_the_rank_comes_from_the_name(tmp_path: Path) -> None:
    path = write(tmp_path / "rank_12_window_0.json", [event("kernel", GEMM, 5, 15), event("kernel", NCCL, 10, 30)])
    trace = read_trace(path)
    assert (trace.rank, trace.steps, trace.whole.steps) == (12, {}, 0)
    assert (trace.whole.duration, trace.whole.hidden, trace.whole.exposed) == (25_000, 5_000, 15_000)
    assert "no step is marked" in render_table(gather_ranks([trace]))


def test_an_experiment_is_searched_and_each_ranks_windows_are_put_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = tmp_path / "outputs"
    hidden = [step(1, 0, 100), event("kernel", GEMM, 0, 60), event("kernel", NCCL, 40, 60)]
    exposed = [step(2, 0, 100), event("kernel", GEMM, 0, 60), event("kernel", NCCL, 60, 100)]
    write(outputs / "traces" / "rank_00_window_0.json.gz", hidden, rank=0)
    write(outputs / "traces" / "rank_00_window_1.json.gz", exposed, rank=0)
    write(outputs / "traces" / "rank_01_window_0.json.gz", exposed, rank=1)
    (outputs / "traces" / "rank_01_window_1.json.part").write_text('{"schemaVersion": 1, "traceEv')
    (tmp_path / "run.json").write_text('{"schema": 1, "plan": {}}')
    assert main(["--json", str(tmp_path), str(outputs)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(rank["rank"], rank["host"], rank["steps"], len(rank["files"])) for rank in found["ranks"]] == [
        (0, "node0", 2, 2),
        (1, "node1", 1, 1),
    ]
    assert found["ranks"][0] | {"files": []} == {
        "rank": 0,
        "host": "node0",
        "device": "gpu",
        "files": [],
        "steps": 2,
        "step_ms": 0.2,
        "compute_ms": 0.12,
        "communication_ms": 0.06,
        "hidden_ms": 0.02,
        "exposed_ms": 0.04,
        "overlap_percent": 33.333,
    }
    assert found["total"]["exposed_ms"] == pytest.approx(0.08)
    assert (found["worst_rank"], found["errors"], found["schema"]) == (1, [], 1)
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["0", "node0", "gpu", "2", "0.20", "0.12", "0.06", "0.02", "0.04", "33.3", "%"]
    assert lines[3].split() == ["all", "3", "0.30", "0.18", "0.10", "0.02", "0.08", "20.0", "%"]
    assert lines[4] == "worst: rank 1, 0.04 ms of exposed communication a step"


def test_a_trace_without_communication_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.json", [step(1, 0, 100), event("kernel", GEMM, 0, 60)], rank=0)
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no communication in these traces"
    assert main(["--json", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["total"]["overlap_percent"], found["worst_rank"]) == (None, None)


BROKEN = {
    "cut.json": (b'{"schemaVersion": 1, "traceEvents": [{"ph": "X"', "ends in the middle"),
    "cut.json.gz": (gzip.compress(b'{"traceEvents": []}' * 500)[:-12], "end-of-stream"),
    "none.json": (b'{"schemaVersion": 1}', "no traceEvents"),
    "empty.json": (b"", "empty"),
    "text.json": (b"hello", "no Chrome trace"),
    "timeless.json": (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1}]}', "without name, time"),
    "deep.json": (b'{"traceEvents": [' + b"[" * 100_000, "cannot be read"),
    "digits.json": (b'{"traceEvents": [{"ph": "X", "ts": ' + b"9" * 5000 + b"}]}", "cannot be read"),
    "nothing.json": (b'{"traceEvents": [1, null, {}]}', "no event of any length"),
    "comma.json": (b'{"traceEvents": [{"ph": "X"} {"ph": "X"}]}', "expected"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_trace_is_named_and_the_others_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    content, said = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    write(tmp_path / "whole.json", [step(1, 0, 100), event("kernel", NCCL, 0, 60)], rank=0)
    assert main([str(tmp_path / name), str(tmp_path / "whole.json")]) == 1
    told = capsys.readouterr()
    assert told.err.startswith(f"overlap: {tmp_path / name}: ")
    assert said in told.err
    assert told.err.count("\n") == 1
    assert "worst: rank 0" in told.out


def test_where_there_is_no_trace_the_remedy_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert main([str(tmp_path)]) == 2
    assert "profiling.enabled" in capsys.readouterr().err
    assert main([str(tmp_path / "gone.json")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_other_traces_forms_are_read(tmp_path: Path) -> None:
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps([event("kernel", NCCL, 0, 10), "odd", {"ph": "M"}]))
    assert figures(listed) == (0, 10, 0, 10)
    odd = tmp_path / "odd.json"
    odd.write_bytes(b'{"traceEvents": [{"ph":"X","cat":"kernel","name":"nccl\x01\xff","ts":0,"dur":1.5}], "n": 12}')
    assert figures(odd) == (0, 1.5, 0, 1.5)
    about: dict[str, Any] = {}
    assert len(list(stream_trace(odd, about))) == 1
    assert about == {"n": 12}
    with pytest.raises(TraceError, match=r"Is a directory"):
        list(stream_trace(tmp_path, about))


def test_two_real_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    # DDP on two H200: ours with its marks, and torch's own marks with a host that runs ahead of its GPU.
    assert main(["--json", str(TRACES)]) == 0
    own, others = json.loads(capsys.readouterr().out)["ranks"]
    assert (own["rank"], own["device"], own["steps"], others["rank"], others["steps"]) == (0, "gpu", 2, 1, 3)
    assert (own["overlap_percent"], others["overlap_percent"]) == (
        pytest.approx(92.3, abs=0.1),
        pytest.approx(91.4, abs=0.1),
    )
    for rank in (own, others):
        # Both ran the same steps: 64 ms of compute each.
        assert rank["compute_ms"] / rank["steps"] == pytest.approx(62.8, abs=0.2)
        assert rank["hidden_ms"] + rank["exposed_ms"] == pytest.approx(rank["communication_ms"])


def test_the_script_needs_the_standard_library_alone() -> None:
    command = [sys.executable, "-S", str(PROJECT / "scripts" / "overlap"), "--json", str(TRACES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["total"]["steps"] == 5
