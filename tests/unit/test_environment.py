from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.environment import parse_env_file, parse_flag_env, settings_env
from orchestrator.errors import ConfigError, UsageError
from orchestrator.node import agent
from orchestrator.plan.environment import CLEARED, named_interfaces
from orchestrator.settings import build_settings
from orchestrator.values import EnvValue, Node

if TYPE_CHECKING:
    from pathlib import Path


def values(text: str) -> dict[str, str]:
    return {value.name: value.value for value in parse_env_file(text, "f")}


def test_env_file_reads_as_a_shell_would_but_expands_nothing() -> None:
    text = (
        '# top\r\nA=1\r\nexport B = two words # note\nC=\'$HOME #x\'\nD="a\\nb \\"q\\" \\$x" # c\nE=\nF=#\n'
        'G=a#b\nPEM="-----\nline 2\n-----"\nH=last=1'
    )
    assert values(text) == {
        "A": "1",
        "B": "two words",
        "C": "$HOME #x",
        "D": 'a\nb "q" $x',
        "E": "",
        "F": "",
        "G": "a#b",
        "PEM": "-----\nline 2\n-----",
        "H": "last=1",
    }
    found = {value.name: value for value in parse_env_file(text, "f")}
    assert all(value.secret for value in found.values())
    assert found["H"].origin == "env file f:12"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("A=1\nhunter2", "f:2", "expected NAME=VALUE"),
        ("A=1\n2X=hunter2", "f:2", "expected NAME=VALUE"),
        ("A='hunter2\nB=1\n", "f:1", "quote of A is never closed"),
        ('A="hunter2" x', "f:1", "after the closing quote"),
        ("A=1\n\nA=hunter2", "f:3", "stands here and in line 1"),
    ],
)
def test_bad_env_files_name_the_line_and_keep_the_secret(text: str, place: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_env_file(text, "f")
    assert caught.value.where == place
    assert words in caught.value.what
    assert "hunter2" not in f"{caught.value} {caught.value.remedy}"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r'"), max_size=20))
def test_single_quoted_values_arrive_equal(value: str) -> None:
    assert values(f"X='{value}'\nY=1") == {"X": value, "Y": "1"}


def test_flag_env_takes_a_value_or_ours() -> None:
    found = parse_flag_env(["A=x=y", "B", "E="], {"B": "ours"})
    assert [(value.name, value.value) for value in found] == [("A", "x=y"), ("B", "ours"), ("E", "")]
    for word in ("MISSING", "=x", "a b=hunter2", ""):
        with pytest.raises(UsageError) as caught:
            parse_flag_env([word], {})
        assert "hunter2" not in str(caught.value)


def test_the_last_word_wins_and_is_named(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("launch:\n  env: {NCCL_A: 2, ONE: 1.0e-4, HF_TOKEN: t}\n  forward_env: [NCCL_*]\n")
    env_file = tmp_path / "e"
    env_file.write_text("FILE=3\nONE=3\n")
    environ = {"NCCL_A": "1", "NCCL_B": "1", "NCCL_SOCKET_IFNAME": "eth0", "HIP_VISIBLE_DEVICES": "0", "OTHER": "1"}
    flags = {"config": str(config), "env_file": str(env_file), "flag_env": ["ONE=4", "OTHER"]}
    found = {value.name: value for value in settings_env(build_settings(flags, environ), environ)}
    assert {name: value.value for name, value in found.items()} == {
        "NCCL_B": "1",
        "NCCL_A": "2",
        "HF_TOKEN": "t",
        "FILE": "3",
        "ONE": "4",
        "OTHER": "1",
    }
    assert found["NCCL_A"].origin == f"config {config}:2"
    assert found["FILE"].origin == f"env file {env_file}:1"
    assert found["ONE"].origin == "flag --env"
    assert {name for name, value in found.items() if value.secret} == {"HF_TOKEN", "FILE"}


def test_what_names_this_machines_devices_never_travels() -> None:
    environ = {"NCCL_SOCKET_IFNAME": "a", "GLOO_SOCKET_IFNAME": "a", "HIP_VISIBLE_DEVICES": "0", "NCCL_DEBUG": "INFO"}
    assert [value.name for value in settings_env(build_settings({}, {}), environ)] == ["NCCL_DEBUG"]


def test_what_the_shell_of_a_node_exports_and_a_run_cannot_bear_is_kept_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harmful = ("RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PET_NNODES", "PYTHONINSPECT")
    for name in (*harmful, "PYTHONPATH"):
        monkeypatch.setenv(name, "1")
    environ = agent.environment_of({"cleared": list(CLEARED), "env": {"RANK_LIMIT": "3"}})
    assert not set(harmful) & set(environ)
    assert (environ["PYTHONPATH"], environ["RANK_LIMIT"]) == ("1", "3")


def test_torch_is_given_no_pipe_that_it_could_not_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It would end the rank.
    monkeypatch.chdir(tmp_path)
    name = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
    order = {"cleared": [], "env": {name: f"{tmp_path}/diagnosis/nccl_pipe_rank_", "A": "1"}}
    assert agent.environment_of(order)[name] == f"{tmp_path}/diagnosis/nccl_pipe_rank_"
    assert list((tmp_path / "diagnosis").iterdir()) == []
    (tmp_path / "diagnosis").rmdir()
    (tmp_path / "diagnosis").write_text("in the way")
    environ = agent.environment_of(order)
    assert name not in environ
    assert environ["A"] == "1"
    assert agent.environment_of({"cleared": [], "env": {name: "/nowhere/mine_"}})[name] == "/nowhere/mine_"


def test_interfaces_that_are_named_are_those_of_the_node() -> None:
    told = [
        EnvValue(name="GLOO_SOCKET_IFNAME", value="eth{node_rank}", origin="config launch.env"),
        EnvValue(name="NCCL_SOCKET_IFNAME", value="ib{node_rank}", origin="flag --env"),
        EnvValue(name="OTHER", value="x", origin="flag --env"),
    ]
    node = Node(name="a", host="a", env=(("NCCL_SOCKET_IFNAME", "=ib7"), ("OTHER", "y")))
    assert named_interfaces(node, 2, told) == {"GLOO_SOCKET_IFNAME": "eth2", "NCCL_SOCKET_IFNAME": "=ib7"}
    assert named_interfaces(Node(name="b", host="b"), 0, told)["NCCL_SOCKET_IFNAME"] == "ib{node_rank}"
    assert named_interfaces(Node(name="b", host="b"), 0, []) == {}
