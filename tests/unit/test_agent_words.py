"""What starts the ranks of a node: the words of accelerate and of a command, and what is refused before a start."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from test_plan import env_of, make_facts, make_gpus, make_plan, make_settings, origin_of

from orchestrator.errors import ConfigError, NotReadyError, UsageError
from orchestrator.output.plan_text import render_commands, render_environment, render_plan
from orchestrator.phases.script import ask_of_script, check_script
from orchestrator.phases.start import build_order
from orchestrator.plan.command import find_script
from orchestrator.plan.placeholders import COMMAND_NAMES, replace_in_command
from orchestrator.settings import build_settings
from orchestrator.values import EnvValue, Node

NODES = (Node(name="a", host="a", slots=2), Node(name="b", host="b", slots=2))
TCP = ("{python}", "t.py", "--init", "tcp://{master_addr}:{master_port}", "--rank", "{node_rank}", "{nnodes}")


def make_command(*words: str, **changed: Any) -> dict[str, Any]:
    return {"agent": "command", "command": words, "script": None, **changed}


def test_accelerate_gets_the_world_and_asks_nobody() -> None:
    flags = ("--shutdown-timeout", "--signals-to-handle")
    facts = tuple(make_facts(rank, torchrun_flags=flags) for rank in range(2))
    plan = make_plan(*NODES, facts=facts, agent="accelerate", args=("--lr", "1"), grace_s=7.0)
    assert shlex.join(plan.nodes[1].argv) == (
        "/usr/bin/python3 -m accelerate.commands.launch --config_file /home/u/.aorta/runs/run-1/1/accelerate.yaml"
        " --num_machines 2 --machine_rank 1 --num_processes 4 --main_process_ip 10.0.0.1 --main_process_port 29500"
        " --gpu_ids all --rdzv_backend static --rdzv_conf timeout=180 --max_restarts 0 --monitor_interval 0.1"
        " --log_dir /home/u/.aorta/runs/run-1/1/ranks --mixed_precision no --dynamo_backend no --multi_gpu"
        " --same_network train.py --lr 1"
    )
    env = env_of(plan.nodes[1])
    assert (env["PET_RDZV_ID"], env["PET_REDIRECTS"], env["PET_SHUTDOWN_TIMEOUT"]) == ("run-1.a0", "3", "7")
    assert not plan.agents_are_commands
    ((name, text),) = plan.nodes[0].files
    assert name == "accelerate.yaml"
    order = build_order(plan, plan.nodes[0], make_settings(agent="accelerate"))
    assert (order["files"], order["is_command"]) == ({name: text}, False)
    assert f"printf %s {shlex.quote(text)} > /home/u/.aorta/runs/run-1/0/accelerate.yaml" in render_commands(plan)


def test_accelerate_of_one_process_makes_no_group_and_is_watched_as_a_command() -> None:
    plan = make_plan(agent="accelerate", nproc_per_node="1", module="pack.train", script=None)
    assert "--multi_gpu" not in plan.nodes[0].argv
    assert plan.nodes[0].argv[-2:] == ("--module", "pack.train")
    assert plan.agents_are_commands


@pytest.mark.parametrize("changed", [{"agent": "accelerate"}, {"equal_nodes": True}])
def test_unequal_nodes_are_refused_by_name(changed: dict[str, Any]) -> None:
    nodes = (NODES[0], Node(name="b", host="b", slots=4), Node(name="c", host="c", slots=2))
    with pytest.raises(NotReadyError) as caught:
        make_plan(*nodes, **changed)
    assert "2 on a, c; 4 on b" in caught.value.what
    assert "slots=" in caught.value.remedy
    assert make_plan(*nodes).world_size == 8
    assert make_plan(*NODES, **changed).world_size == 4


def test_a_command_gets_its_words_without_a_shell_and_its_environment() -> None:
    words = (*TCP, "{first_rank}/{world_size}/{nproc_per_node}", '{"a": 1}', "{{run_id}}", "{run_id}", "$HOME; {}")
    plan = make_plan(*NODES, **make_command(*words))
    assert plan.nodes[1].argv == (
        *("/usr/bin/python3", "t.py", "--init", "tcp://10.0.0.1:29500", "--rank", "1", "2"),
        *("2/4/2", '{"a": 1}', "{run_id}", "run-1", "$HOME; {}"),
    )
    assert plan.script == words
    assert plan.agents_are_commands
    env = env_of(plan.nodes[1])
    wanted = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "NNODES": "2", "NODE_RANK": "1", "NPROC_PER_NODE": "2"}
    assert {name: env.get(name) for name in wanted} == wanted
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & set(env)
    assert env["TORCHELASTIC_ERROR_FILE"].endswith("/ranks/run-1.a0_command/attempt_0/0/error.json")
    with pytest.raises(ConfigError, match="NODE_RANK is set by the launcher"):
        make_plan(*NODES, env=(EnvValue(name="NODE_RANK", value="7", origin="--env"),), **make_command("true"))
    make_plan(*NODES, env=(EnvValue(name="NODE_RANK", value="7", origin="--env"),))


def test_a_plan_shows_the_command_as_it_was_given_and_as_each_node_gets_it() -> None:
    plan = make_plan(*NODES, **make_command("run", "{first_rank}", "{world_size} of"))
    assert "runs run '{first_rank}' '{world_size} of'" in render_plan(plan).plain
    assert "NODE_RANK" in render_environment(plan).plain
    last = render_commands(plan).splitlines()[-1]
    assert "NODE_RANK=1" in last
    assert last.endswith(" run 2 '4 of'")


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("tcp://{master_addr}:{master_port}", "tcp://[fd00::1]:29500"),
        ("{master_addr}:1", "[fd00::1]:1"),
        ("http://{master_addr}/x", "http://[fd00::1]/x"),
        ("{master_addr}", "fd00::1"),
        ("--host={master_addr}", "--host=fd00::1"),
        ("[{master_addr}]:{master_port}", "[fd00::1]:29500"),
        ("{{master_addr}}:1", "{master_addr}:1"),
    ],
)
def test_an_ipv6_address_gets_brackets_where_it_stands_in_a_url_or_before_a_port(word: str, wanted: str) -> None:
    assert replace_in_command(word, {"master_addr": "fd00::1", "master_port": "29500"}) == wanted


def test_a_name_that_there_is_not_is_refused_with_the_nearest_and_where_it_stands(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("launch:\n  agent: command\n  command: run --to {master_adr}:{master_port}\n")
    settings = build_settings({"config": str(config)}, {})
    assert settings.command == ("run", "--to", "{master_adr}:{master_port}")
    with pytest.raises(ConfigError) as caught:
        check_script(settings)
    assert "there is no {master_adr}, did you mean {master_addr}?" in caught.value.what
    assert caught.value.where.endswith("c.yaml:3")
    assert all(f"{{{name}}}" in caught.value.remedy for name in COMMAND_NAMES)


@pytest.mark.parametrize(
    ("flags", "words", "text"),
    [
        ({"command": "true"}, (), "the agent is torchrun"),
        ({"agent": "command"}, (), "none is given"),
        ({"agent": "command", "command": "true"}, ("train.py", "x"), "a script and a command are both given"),
        ({"agent": "command", "command": "{python} none.py"}, (), "there is no such script"),
        ({"agent": "command", "command": "{python} -u ../out.py"}, (), "lies outside the project"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    flags: dict[str, str], words: tuple[str, ...], text: str, tmp_path: Path
) -> None:
    settings = build_settings(flags, {"AORTA_LAUNCH_PROJECT": str(tmp_path)}, words)
    with pytest.raises(UsageError, match=text) as caught:
        check_script(settings)
    assert caught.value.remedy
    assert caught.value.where


@pytest.mark.parametrize("raw", ["echo 'no end", 3, ["a", 1], {"a": 1}])
def test_odd_commands_and_agents_are_refused(raw: Any) -> None:
    with pytest.raises(ConfigError, match="words"):
        build_settings({"command": raw}, {})
    with pytest.raises(ConfigError, match="torchrun, accelerate or command"):
        build_settings({"agent": "mpirun"}, {})


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("{python} t.py --x", ("t.py",)),
        ("{python} -u -X dev -m pack.mod", ("-m", "pack.mod")),
        ("{python} -c pass", ()),
        ("bash t.sh", ()),
        ("{python}", ()),
        ("{python} {config}", ()),
    ],
)
def test_the_script_of_a_command_is_checked_as_any_other(command: str, script: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import numpy, orchestrator.distributed\n")
    settings = make_settings(**make_command(*command.split()), project=tmp_path)
    assert find_script(settings) == script
    asked = ask_of_script(settings, ())
    assert asked["script"] == shlex.join(script)
    if script == ("t.py",):
        assert asked["imports"]["needed"] == ["numpy", "orchestrator"]


def test_ranks_without_a_gpu_are_told_to_accelerate_and_the_user_wins() -> None:
    plan = make_plan(*NODES, facts=(make_facts(0), make_facts(1, gpus=make_gpus(2))))
    assert env_of(plan.nodes[0])["ACCELERATE_USE_CPU"] == "true"
    assert origin_of(plan.nodes[0], "ACCELERATE_USE_CPU") == "aorta-launch"
    assert "ACCELERATE_USE_CPU" not in env_of(plan.nodes[1])
    given = (EnvValue(name="ACCELERATE_USE_CPU", value="no", origin="--env"),)
    assert env_of(make_plan(env=given).nodes[0])["ACCELERATE_USE_CPU"] == "no"


def test_the_ranks_are_told_how_the_config_is_called() -> None:
    env = env_of(make_plan(config=Path("configs/two_nodes.v2.yaml")).nodes[0])
    assert env["AORTA_CONFIG_NAME"] == "two_nodes.v2"
    assert env["AORTA_CONFIG"] == "/home/u/.aorta/runs/run-1/0/config.yaml"
    assert "AORTA_CONFIG_NAME" not in env_of(make_plan().nodes[0])


def test_the_page_names_every_placeholder_and_variable() -> None:
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
    named = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `{")]
    assert sorted(named) == sorted(f"{{{name}}}" for name in COMMAND_NAMES)
    env = make_plan(*NODES, **make_command("true")).nodes[0].env
    plain = {value.name for value in make_plan(*NODES).nodes[0].env}
    told = page.partition("The environment holds ")[2].partition(", and no ")[0]
    assert {value.name for value in env} - plain == set(told.replace(" and ", ", ").split(", "))
