"""Bad input makes its rows of docs/errors.md; nobody is contacted."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from errors_page import build_row, check_names, check_row

from orchestrator.cli import main
from orchestrator.phases import dialled

TITLE = "Bad input"
NODES = "10.0.0.11\n10.0.0.12\n"


@dataclass(frozen=True)
class Case:
    """A command, the files that it finds, and variables."""

    name: str
    command: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


def config(text: str) -> dict[str, str | bytes]:
    return {"config.yaml": text}


def nodes(text: str | bytes) -> dict[str, str | bytes]:
    return {"nodes.txt": text}


def known_runs(*, live: bool) -> dict[str, str | bytes]:
    """Two runs that the launch host remembers; the experiment of neither is there."""
    files: dict[str, str | bytes] = {}
    for run_id in ("multinode_1", "multinode_2"):
        entry: dict[str, object] = {
            "run_id": run_id,
            "experiment": f"gone/{run_id}",
            "live": live,
            "nodes": [],
            "ssh": {},
        }
        files[f"../home/.aorta/launches/{run_id}.json"] = json.dumps(entry)
    return files


WITH_CONFIG = "--config config.yaml train.py"
CASES = [
    Case("no script", ""),
    Case("a misspelt verb", "chek"),
    Case("an unknown option", "check --nodez nodes.txt"),
    Case("an option of another verb", "check --timeout 5"),
    Case("an option without its value", "check --nodes"),
    Case("`-q` and `-v`", "check -q -v"),
    Case("`-m` without a name", "-m"),
    Case("no duration", "--timeout soon train.py"),
    Case("no count of processes", "--nproc-per-node many train.py"),
    Case("a port that cannot be", "--master-port 99999 train.py"),
    Case("no agent that there is", "--agent mpirun train.py"),
    Case("a command without its agent", "--command '{python} train.py'"),
    Case("an agent without its command", "--agent command"),
    Case("a command and a script", "--agent command --command '{python} train.py' train.py"),
    Case("an unknown name in a command", "--agent command --command '{python} train.py {master_adr}'"),
    Case("a command whose quote does not end", '--agent command --command "echo \'"'),
    Case("a label that is no word", "--label 'a b' train.py"),
    Case("no ranks", "--ranks first train.py"),
    Case("a check that there is not", "check --skip gpus-free"),
    Case("a variable of ours with a bad value", "train.py", env={"AORTA_LAUNCH_GRACE_S": "long"}),
    Case("no such config", "--config nowhere.yaml train.py"),
    Case("a config that is no YAML", WITH_CONFIG, config("launch:\n  args: [a\n")),
    Case("an unknown key in the config", WITH_CONFIG, config("launch:\n  nproc_per_nod: 2\n")),
    Case("a key twice in the config", WITH_CONFIG, config("launch:\n  label: a\n  label: b\n")),
    Case("a value of the wrong kind", WITH_CONFIG, config("launch:\n  fanout: wide\n")),
    Case("`--set` without a config", "--set training.lr=1 train.py"),
    Case("`--set` without a value", "--config config.yaml --set training.lr train.py", config("training: {lr: 1}\n")),
    Case("no such node list", "--nodes nowhere.txt train.py"),
    Case("an empty node list", "train.py", nodes("# none yet\n")),
    Case("a node twice", "train.py", nodes("10.0.0.11\n10.0.0.12\n10.0.0.11\n")),
    Case("an unknown key in the node list", "train.py", nodes("10.0.0.11 slot=8\n")),
    Case("a bad value in the node list", "train.py", nodes("10.0.0.11 slots=eight\n")),
    Case("a bad port in the node list", "train.py", nodes("10.0.0.11:ssh\n")),
    Case("a range without its end", "train.py", nodes("node[01-16\n")),
    Case("a node list that is no text", "train.py", nodes(b"\x80\x00\xff\n")),
    Case("no such node", "--include 10.0.0.13 train.py"),
    Case("no node is left", "--exclude 0-1 train.py"),
    Case("a misspelt script", "trian.py"),
    Case("a folder as script", "./lib"),
    Case("a script outside the project", "../other/train.py"),
    Case("no such env file", "--env-file nowhere.env train.py"),
    Case("a bad line in the env file", "--env-file my.env train.py", {"my.env": "A=1\nexport\n"}),
    Case("no name of a variable", "--env 1A=x train.py"),
    Case("a variable that is not set here", "--env NOT_SET_HERE train.py"),
    Case("no run to kill", "kill"),
    Case("an unknown run", "kill multinode_20261127"),
    Case("a run and `--all`", "kill multinode_20261127 --all"),
    Case("a run that is known twice", "kill multi", files=known_runs(live=False)),
    Case("two live runs", "attach", files=known_runs(live=True)),
    Case("no run to attach to", "attach"),
    Case("an empty id of a run", "kill ''"),
    Case("no signal", "kill --signal NONSENSE"),
    Case("a run whose record is gone", "attach multinode_1", files=known_runs(live=True)),
    Case("nothing to execute", "exec"),
    Case("nothing to note", "note multinode_1", files=known_runs(live=False)),
    Case("no number of runs to keep", "prune"),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    project = tmp_path / "project"
    (project / "lib").mkdir(parents=True)
    (project / "train.py").touch()
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    contacted: list[object] = []

    def connect(*words: object) -> list[object]:
        contacted.append(words)
        return []

    monkeypatch.setattr(dialled, "connect", connect)
    yield project
    assert contacted == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_told_with_its_remedy(
    case: Case, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in ({"nodes.txt": NODES} | dict(case.files)).items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.setenv("AORTA_LAUNCH_NODES", "nodes.txt")
    for name, value in case.env.items():
        monkeypatch.setenv(name, value)
    exit_code = main(shlex.split(case.command))
    shown = capsys.readouterr()
    assert exit_code == 2, shown.err
    assert shown.out == ""
    row = build_row(case.name, exit_code, shown.err, {str(place): "PROJECT", str(place.parent): "DIR"})
    check_row(TITLE, row)


def test_the_page_has_these_rows_and_no_others() -> None:
    check_names(TITLE, [case.name for case in CASES])
