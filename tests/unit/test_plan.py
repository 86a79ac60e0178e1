from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, NotReadyError, UsageError
from orchestrator.facts import Facts, Gpu
from orchestrator.phases.script import check_script
from orchestrator.plan.build import build_plan, build_run_id
from orchestrator.plan.environment import check_env_value
from orchestrator.plan.placeholders import replace_placeholders
from orchestrator.plan.ranks import count_processes
from orchestrator.plan.torchrun import place_script
from orchestrator.settings import Settings
from orchestrator.values import EnvValue, Node, NodePlan, Plan


@dataclass(frozen=True)
class Place:
    address: str
    interface: str


def make_settings(**changed: Any) -> Settings:
    values: dict[str, Any] = {
        "script": "train.py",
        "origins": {"args": "command line"},
        "nproc_per_node": "2",
        "project": Path("/home/me/project"),
    }
    return Settings(**(values | changed))


def make_facts(node_rank: int = 0, **changed: Any) -> Facts:
    values: dict[str, Any] = {"node_rank": node_rank, "home": "/home/u", "python": "/usr/bin/python3", "cores": 16}
    return Facts(**(values | changed))


def make_gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(index=index, uuid=f"GPU-{index}", model="H100") for index in range(count))


def make_plan(
    *nodes: Node, facts: tuple[Facts, ...] = (), env: tuple[EnvValue, ...] = (), attempt: int = 0, **changed: Any
) -> Plan:
    listed = nodes or (Node(name="a", host="a"),)
    return build_plan(
        run_id="run-1",
        attempt=attempt,
        settings=make_settings(**changed),
        nodes=listed,
        facts=facts or tuple(make_facts(rank) for rank in range(len(listed))),
        master_addr="10.0.0.1",
        master_port=29500,
        places=[Place(f"10.0.0.{rank + 1}", "eth1") for rank in range(len(listed))],
        env=env,
        workdirs=["/home/u/.aorta/code/project"] * len(listed),
    )


def env_of(node: NodePlan) -> dict[str, str]:
    return {value.name: value.value for value in node.env}


def origin_of(node: NodePlan, name: str) -> str:
    return next(value.origin for value in node.env if value.name == name)


def test_uneven_nodes_get_ranks_in_list_order() -> None:
    plan = make_plan(*(Node(name=name, host=name, slots=slots) for name, slots in (("a", 1), ("b", 3), ("c", 2))))
    assert [list(node.ranks) for node in plan.nodes] == [[0], [1, 2, 3], [4, 5]]
    assert plan.world_size == 6
    assert [node.argv[node.argv.index("--nproc-per-node") + 1] for node in plan.nodes] == ["1", "3", "2"]


def test_the_agents_line_is_the_design_s() -> None:
    node = Node(name="a", host="a")
    facts = make_facts(torchrun_flags=("--shutdown-timeout", "--signals-to-handle"))
    plan = make_plan(node, facts=(facts,), args=("--lr", "3e-4"), attempt=2)
    assert " ".join(plan.nodes[0].argv) == (
        "/usr/bin/python3 -m torch.distributed.run --nnodes 1 --node-rank 0 --nproc-per-node 2 --master-addr 10.0.0.1"
        " --master-port 29500 --rdzv-id run-1.a2 --rdzv-conf timeout=180 --max-restarts 0 --monitor-interval 0.1"
        " --redirects 3 --log-dir /home/u/.aorta/runs/run-1/0/ranks --shutdown-timeout 30"
        " --signals-to-handle SIGTERM,SIGINT -- train.py --lr 3e-4"
    )
    assert plan.script == ("train.py", "--lr", "3e-4")


def test_flags_that_this_torch_does_not_know_are_left_out() -> None:
    assert not {"--shutdown-timeout", "--signals-to-handle"} & set(make_plan().nodes[0].argv)


def test_auto_counts_gpus_and_a_node_without_any_runs_one_process() -> None:
    three = make_facts(gpus=make_gpus(3))
    nodes = (Node(name="a", host="a"), Node(name="b", host="b"))
    plan = make_plan(*nodes, facts=(three, make_facts()), nproc_per_node="auto")
    assert [node.processes for node in plan.nodes] == [3, 1]


def test_gpu_counts_gpus_and_names_every_node_without() -> None:
    three = make_facts(gpus=make_gpus(3))
    nodes = (Node(name="a", host="a"), Node(name="b", host="b", gpus=("0", "2")))
    plan = make_plan(*nodes, facts=(three, three), nproc_per_node="gpu")
    assert [node.processes for node in plan.nodes] == [3, 2]
    with pytest.raises(NotReadyError) as caught:
        make_plan(*nodes[:1], Node(name="c", host="c"), facts=(make_facts(), make_facts()), nproc_per_node="gpu")
    assert caught.value.where == "a, c"
    assert "--nproc-per-node" in caught.value.remedy


def test_auto_counts_only_the_gpus_that_the_given_environment_leaves_visible() -> None:
    node = Node(name="a", host="a")
    facts = (make_facts(gpus=make_gpus(3)),)
    env = (EnvValue(name="CUDA_VISIBLE_DEVICES", value="0,2", origin="--env"),)
    assert make_plan(node, facts=facts, env=env, nproc_per_node="auto").nodes[0].processes == 2
    hidden = (make_facts(gpus=make_gpus(1), hidden_gpus=2),)
    assert make_plan(node, facts=hidden, nproc_per_node="auto").nodes[0].processes == 1
    assert make_plan(node, facts=hidden, env=env, nproc_per_node="auto").nodes[0].processes == 2
    none = (EnvValue(name="CUDA_VISIBLE_DEVICES", value="", origin="--env"),)
    assert make_plan(node, facts=facts, env=none, nproc_per_node="auto").nodes[0].processes == 1
    with pytest.raises(NotReadyError):
        make_plan(node, facts=facts, env=none, nproc_per_node="gpu")


def test_cpu_takes_the_cores() -> None:
    assert make_plan(nproc_per_node="cpu").nodes[0].processes == 16


@pytest.mark.parametrize("wanted", ["0", "-1", "some", ""])
def test_no_number_of_processes_is_told(wanted: str) -> None:
    with pytest.raises(ConfigError, match="number of processes"):
        count_processes(Node(name="a", host="a"), make_facts(), wanted)


def test_defaults_give_way_to_the_user_and_the_user_to_the_node() -> None:
    node = Node(name="a", host="a", where="nodes.txt:3", env=(("GLOO_SOCKET_IFNAME", "ib0"),), slots=4)
    given_env = (
        EnvValue(name="OMP_NUM_THREADS", value="1", origin="--env"),
        EnvValue(name="GLOO_SOCKET_IFNAME", value="eth9", origin="config launch.env"),
        EnvValue(name="TOKEN", value="x", origin="--env-file", secret=True),
    )
    planned = make_plan(node, env=given_env).nodes[0]
    values = env_of(planned)
    assert values["OMP_NUM_THREADS"] == "1"
    assert origin_of(planned, "OMP_NUM_THREADS") == "--env"
    assert values["GLOO_SOCKET_IFNAME"] == "ib0"
    assert origin_of(planned, "GLOO_SOCKET_IFNAME") == "node list nodes.txt:3"
    assert values["NCCL_SOCKET_IFNAME"] == "=eth1"
    assert values["PYTHONUNBUFFERED"] == "1"
    assert next(value for value in planned.env if value.name == "TOKEN").secret
    assert len(values) == len(planned.env)


def test_threads_are_the_cores_shared_out() -> None:
    assert env_of(make_plan(Node(name="a", host="a", slots=4)).nodes[0])["OMP_NUM_THREADS"] == "4"
    assert env_of(make_plan(Node(name="a", host="a", slots=40)).nodes[0])["OMP_NUM_THREADS"] == "1"


def test_ranks_are_told_their_run() -> None:
    plan = make_plan(Node(name="a", host="a"), Node(name="b", host="b"), config=Path("c.yaml"))
    assert env_of(plan.nodes[1]) | {
        "AORTA_RUN_ID": "run-1",
        "AORTA_ATTEMPT": "0",
        "AORTA_NODE_RANK": "1",
        "AORTA_NNODES": "2",
        "AORTA_HOSTS": "10.0.0.1,10.0.0.2",
        "AORTA_OUTPUT_DIR": "/home/u/.aorta/runs/run-1/1/outputs",
        "AORTA_CONFIG": "/home/u/.aorta/runs/run-1/1/config.yaml",
        "TORCHELASTIC_ERROR_FILE": "/home/u/.aorta/runs/run-1/1/agent_error.json",
    } == env_of(plan.nodes[1])
    assert "AORTA_CONFIG" not in env_of(make_plan().nodes[0])


def test_gpus_of_the_list_become_visible_devices_of_their_kind() -> None:
    node = Node(name="a", host="a", gpus=("1", "3"))
    assert env_of(make_plan(node, facts=(make_facts(gpu_kind="amd"),)).nodes[0])["HIP_VISIBLE_DEVICES"] == "1,3"
    assert env_of(make_plan(node, facts=(make_facts(gpu_kind="nvidia"),)).nodes[0])["CUDA_VISIBLE_DEVICES"] == "1,3"


@pytest.mark.parametrize("name", ["RANK", "MASTER_ADDR", "AORTA_RUN_ID", "PET_TEE", "TORCHELASTIC_ERROR_FILE"])
def test_a_variable_of_the_launcher_is_refused_with_its_origin(name: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        make_plan(env=(EnvValue(name=name, value="1", origin="--env"),))
    assert caught.value.where == "--env"
    with pytest.raises(ConfigError, match=name) as caught:
        make_plan(Node(name="a", host="a", where="nodes.txt:7", env=((name, "1"),)))
    assert "nodes.txt:7" in caught.value.where


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "É", "A\n"])
def test_a_name_that_no_program_reads_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="environment variable"):
        check_env_value(EnvValue(name=name, value="1", origin="--env"))


def test_placeholders_stand_in_what_the_config_says_and_nowhere_else() -> None:
    words = ("--out", "{output_dir}/x", '{"a": {"node_rank": {node_rank}}}', "{{run_id}}", "{other}")
    from_config = make_plan(args=words, origins={"args": "config /c.yaml"}).nodes[0].argv
    assert from_config[-5:] == (
        "--out",
        "/home/u/.aorta/runs/run-1/0/outputs/x",
        '{"a": {"node_rank": 0}}',
        "{run_id}",
        "{other}",
    )
    assert make_plan(args=words).nodes[0].argv[-5:] == words
    env = (
        EnvValue(name="A", value="{run_id}", origin="config launch.env"),
        EnvValue(name="B", value="{run_id}", origin="--env"),
    )
    assert env_of(make_plan(env=env).nodes[0]) | {"A": "run-1", "B": "{run_id}"} == env_of(make_plan(env=env).nodes[0])


@given(st.text(alphabet='{}abconfig_" :,1'))
def test_text_without_a_known_name_is_untouched(text: str) -> None:
    if any(f"{{{name}}}" in text for name in ("config", "output_dir", "run_id", "node_rank")):
        return
    assert replace_placeholders(text, {}) == text


def test_scripts_are_placed_relative_to_the_project() -> None:
    assert place_script("./train.py", "/p") == "train.py"
    assert place_script("/p/src/../train.py", "/p") == "train.py"
    assert place_script("src/train.py", ".") == "src/train.py"
    for outside in ("../train.py", "/other/train.py", "src/../../train.py"):
        with pytest.raises(ConfigError, match="outside the project") as caught:
            place_script(outside, "/p")
        assert caught.value.exit_code == 2
    assert place_script("..name.py", "/p") == "..name.py"


def test_without_push_paths_are_passed_as_they_are() -> None:
    assert make_plan(script="/srv/train.py", push=False).nodes[0].argv[-1] == "/srv/train.py"


def test_a_missing_script_is_told_before_anything_is_contacted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    check_script(make_settings(project=tmp_path))
    check_script(make_settings(project=tmp_path, script=None, module="a.b"))
    check_script(make_settings(project=tmp_path, script="/srv/x.py", push=False))
    with pytest.raises(UsageError, match=r"tran\.py") as caught:
        check_script(make_settings(project=tmp_path, script="tran.py"))
    assert caught.value.remedy == "did you mean train.py?"
    with pytest.raises(UsageError, match="directory"):
        check_script(make_settings(project=tmp_path.parent, script=tmp_path.name))
    with pytest.raises(UsageError, match="nothing to run"):
        check_script(make_settings(script=None))


def test_a_home_is_no_project_by_accident_and_the_root_folder_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match="HOME is no project"):
        check_script(make_settings(project=tmp_path))
    check_script(make_settings(project=tmp_path, push=False))
    check_script(make_settings(project=tmp_path, origins={"project": "config.yaml:2"}))
    with pytest.raises(UsageError, match="the root folder"):
        check_script(make_settings(project=Path("/"), origins={"project": "config.yaml:2"}, module="a", script=None))


def test_nothing_that_a_process_cannot_be_given() -> None:
    with pytest.raises(ConfigError, match="NUL"):
        make_plan(env=(EnvValue(name="A", value="\0", origin="--env"),))


def test_a_node_without_an_interpreter_is_not_ready() -> None:
    with pytest.raises(NotReadyError, match="Python") as caught:
        make_plan(Node(name="a", host="a"), facts=(make_facts(python=""),))
    assert caught.value.where == "a"


def test_a_run_is_named_by_label_time_and_token() -> None:
    now = datetime(2026, 11, 27, 22, 3, 31, tzinfo=UTC)
    assert build_run_id("multinode", now, "k3f9") == "multinode_20261127_220331-k3f9"
    assert "/" not in build_run_id("../my run", now, "k3f9")


WORDS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12), max_size=4)
TRAPS = st.sampled_from(["--", "-h", "--nnodes", "3", "-1", "-m", "--l", "--r", "--node-rank=7", "-", "", "@f"])


@pytest.mark.torch
@settings(max_examples=60, deadline=None)
@given(words=st.lists(TRAPS, max_size=5) | WORDS, module=st.booleans())
@example(words=["--"], module=False)
@example(words=["--", "--", "a"], module=True)
@example(words=["--log", "1"], module=False)
@example(words=["-h"], module=False)
def test_torchrun_hands_every_word_on_untouched(*, words: list[str], module: bool) -> None:
    run = pytest.importorskip("torch.distributed.run", reason="PyTorch is not installed")
    named: dict[str, Any] = {"script": None, "module": "pkg.mod"} if module else {}
    facts = make_facts(torchrun_flags=("--shutdown-timeout",))
    node = make_plan(Node(name="a", host="a"), facts=(facts,), args=tuple(words), **named).nodes[0]
    parsed = run.parse_args(list(node.argv[3:]))
    assert parsed.training_script_args == words
    assert parsed.training_script == ("pkg.mod" if module else "train.py")
    assert parsed.module is module
    assert (parsed.nnodes, parsed.node_rank, parsed.nproc_per_node) == ("1", 0, "2")
    assert (parsed.rdzv_id, parsed.rdzv_conf, parsed.redirects) == ("run-1.a0", "timeout=180", "3")
    assert (parsed.master_addr, parsed.master_port, parsed.max_restarts) == ("10.0.0.1", 29500, 0)


def test_a_variable_of_the_node_list_with_a_secret_name_is_secret() -> None:
    node = Node(name="a", host="a", where="nodes.txt:3", env=(("HF_TOKEN", "hf_x"), ("LR", "1")))
    secret = {value.name for value in make_plan(node).nodes[0].env if value.secret}
    assert secret == {"HF_TOKEN"}


def recorder_of(version: str | None, *given: str) -> dict[str, str]:
    env = tuple(EnvValue(name=name, value="mine", origin="--env") for name in given)
    planned = make_plan(facts=(make_facts(torch_version=version),), env=env).nodes[0]
    return {value.name: value.value for value in planned.env if value.name.startswith(("TORCH_FR", "TORCH_NCCL"))}


def test_flight_recorders_write_into_the_run_folder_by_the_names_that_a_torch_knows() -> None:
    room = "/home/u/.aorta/runs/run-1/0/diagnosis"
    common = {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{room}/nccl_pipe_rank_",
    }
    old = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{room}/nccl_trace_rank_"}
    assert recorder_of("2.13.0+cpu") == common | {"TORCH_FR_DUMP_TEMP_FILE": f"{room}/nccl_trace_rank_"}
    assert recorder_of("2.11.0a0+git12") == recorder_of("2.13.0+cpu")
    for version in ("2.9.1", None, "unknown"):
        assert recorder_of(version) == common | old
    planned = make_plan().nodes[0]
    assert origin_of(planned, "TORCH_FR_BUFFER_SIZE") == "aorta-launch"


@pytest.mark.parametrize("version", ["2.13.0", "2.6.0"])
def test_a_recorder_that_the_user_sets_by_either_name_is_the_users(version: str) -> None:
    # A default under the newer name would win over the user's 0 under the older one.
    for name, twin in (
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"),
        ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
    ):
        found = recorder_of(version, name)
        assert found[name] == "mine"
        assert twin not in found
    assert recorder_of(version, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE")["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == "mine"
