from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import NodeError
from orchestrator.facts import Address, Gpu, Leftover, find_gpu, parse_facts, visible_gpus

DATA = Path(__file__).parents[1] / "data" / "facts"
GPUS = tuple(
    Gpu(index=index, uuid=f"GPU-{name}", model="H100") for index, name in enumerate(("aa1", "aa2", "bb1", "cc1"))
)


def read_answer(name: str, **changed: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    answer["facts"] |= changed
    return answer


def test_a_captured_cpu_node() -> None:
    facts = parse_facts(3, read_answer("cpu_node"), (0.25, 0.001))
    assert facts.node_rank == 3
    assert (facts.torch_version, facts.torch_cuda, facts.torch_hip) == ("2.13.0+cpu", None, None)
    assert facts.torchrun_flags == ("--shutdown-timeout", "--signals-to-handle")
    assert Address(interface="eth0", address="192.0.2.2", mtu=1400) in facts.addresses
    assert facts.interface_of("192.0.2.2") == "eth0"
    assert facts.interface_of("192.0.2.9") == ""
    assert (facts.clock_offset_s, facts.clock_error_s) == (0.25, 0.001)
    assert facts.gpus == ()
    assert facts.unknown == ()


def test_a_captured_h100_node() -> None:
    facts = parse_facts(0, read_answer("h100_node"))
    assert (facts.torch_version, facts.torch_cuda, facts.nccl_version) == ("2.11.0+cu130", "13.0", "2.28.9")
    assert facts.gpu_kind == "nvidia"
    assert facts.gpus[0].memory_total_mib == 81559
    assert facts.torchrun_flags == ("--signals-to-handle",)


def test_what_is_missing_is_unknown_and_never_an_error() -> None:
    facts = parse_facts(0, {"facts": {}, "unknown": {"disk": "no answer within 5 s"}})
    assert facts.disk_free_gib is None
    assert facts.home_writable is None
    assert facts.cores == 1
    assert facts.why_unknown("disk") == "no answer within 5 s"
    assert facts.why_unknown("gpus") == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cores", "2"),
        ("hostname", 7),
        ("gpus", {}),
        ("gpus", [{"index": "0"}]),
        ("home_writable", 1),
        ("disk_free_gib", "much"),
        ("limits", {"nofile": "1024"}),
    ],
)
def test_a_wrong_type_is_an_error_that_names_the_node_and_the_fact(name: str, value: object) -> None:
    with pytest.raises(NodeError, match="the probe's answer is odd") as caught:
        parse_facts(0, read_answer("cpu_node", **{name: value}), None, "node-c")
    assert caught.value.where == "node-c"
    assert caught.value.exit_code == 3


def test_a_whole_number_is_a_figure_too() -> None:
    assert parse_facts(0, read_answer("cpu_node", disk_free_gib=7)).disk_free_gib == 7.0


def test_leftovers() -> None:
    leftover = {"run_id": "r", "pid": 5, "command": "python", "supervised": True}
    facts = parse_facts(0, read_answer("cpu_node", leftovers=[leftover]))
    assert facts.leftovers == (Leftover(run_id="r", pid=5, command="python", supervised=True),)


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        ({}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "3, 1"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "0,9,1"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bb,GPU-cc1"}, [2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa"}, []),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, [3]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, []),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0,1"}, [0]),
    ],
)
def test_the_variables_of_the_session_limit_the_gpus_as_cuda_and_hip_do(
    visible: dict[str, str], indices: list[int]
) -> None:
    assert [gpu.index for gpu in visible_gpus(GPUS, visible)] == indices


def test_a_session_that_is_shown_a_part_of_the_gpus_names_them_by_their_own_numbers() -> None:
    assert [gpu.index for gpu in visible_gpus(GPUS[2:], {"CUDA_VISIBLE_DEVICES": "3,2"})] == [3, 2]
    both = {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}
    assert [gpu.index for gpu in visible_gpus(GPUS[2:], both)] == [3]


def test_each_mig_slice_is_a_gpu_of_its_own() -> None:
    slices = visible_gpus(GPUS, {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"})
    assert [(gpu.index, gpu.uuid) for gpu in slices] == [(0, "MIG-1"), (1, "MIG-2")]


def test_hidden_gpus_are_counted() -> None:
    facts = parse_facts(0, read_answer("h100_node", visible_devices={"CUDA_VISIBLE_DEVICES": ""}))
    assert (len(facts.gpus), facts.hidden_gpus) == (0, 1)


def test_the_node_list_names_a_gpu_by_its_own_index_also_among_hidden_ones() -> None:
    seen = GPUS[2:]
    assert find_gpu(seen, "3") == GPUS[3]
    assert find_gpu(seen, "0") is None
    assert find_gpu(seen, "gpu-BB1") == GPUS[2]
    assert find_gpu(seen, "") is None
