from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import orchestrator
from orchestrator.cli import HELP_OPTIONS, app, list_options, main
from orchestrator.errors import LinkError, NotReadyError, Several
from orchestrator.output.errors import render_error, render_error_json


class Actions(types.ModuleType):
    """Remembers what it was asked to do."""

    def __init__(self) -> None:
        super().__init__("orchestrator.actions")
        self.called: list[tuple[Any, ...]] = []
        self.outcome: int | BaseException = 0

    def _answer(self, *call: Any) -> int:
        self.called.append(call)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def launch(self, given: Any, dialled: object = None) -> int:
        del dialled
        return self._answer("launch", given)

    def check(self, given: Any, dialled: object = None) -> int:
        del dialled
        return self._answer("check", given)

    def kill(self, given: Any, *words: object) -> int:
        return self._answer("kill", given, *words)

    def attach(self, given: Any, run: str | None) -> int:
        return self._answer("attach", given, run)


@pytest.fixture
def actions(monkeypatch: pytest.MonkeyPatch) -> Actions:
    fake = Actions()
    monkeypatch.setitem(sys.modules, "orchestrator.actions", fake)
    monkeypatch.setattr(orchestrator, "actions", fake, raising=False)
    monkeypatch.setitem(sys.modules, "orchestrator.check_actions", fake)
    monkeypatch.setattr(orchestrator, "check_actions", fake, raising=False)
    monkeypatch.setitem(sys.modules, "orchestrator.run_actions", fake)
    monkeypatch.setattr(orchestrator, "run_actions", fake, raising=False)
    return fake


def test_flags_reach_the_settings(actions: Actions) -> None:
    argv = (
        "--nodes f --user me --ssh-port 3 --identity k --connect-timeout 2s --fanout 5 --include a,b --exclude c "
        "--accept-new-host-keys --json -vv --color never --nproc-per-node 2 --master-port 4 --env A=1 --env B "
        "--env-file e --workdir w --label l --timeout 1h --grace 5 --ranks all --no-check --no-push --dry-run "
        "--print-commands --experiments-dir x --python /p train.py --grace 7"
    )
    assert main(argv.split()) == 0
    ((verb, got),) = actions.called
    assert verb == "launch"
    assert (got.nodes, got.user, got.ssh_port, got.identity) == (Path("f"), "me", 3, Path("k"))
    assert (got.connect_timeout_s, got.fanout, got.include, got.exclude) == (2.0, 5, ("a", "b"), ("c",))
    assert (got.accept_new_host_keys, got.json_output, got.verbosity, got.color) == (True, True, 2, "never")
    assert (got.nproc_per_node, got.master_port, got.flag_env, got.env_file) == ("2", 4, ("A=1", "B"), Path("e"))
    assert (got.workdir, got.label, got.timeout_s, got.grace_s, got.ranks) == ("w", "l", 3600.0, 5.0, "all")
    assert (got.check, got.push, got.dry_run, got.print_commands) == (False, False, True, True)
    assert (got.experiments_dir, got.python, got.script, got.args) == (Path("x"), "/p", "train.py", ("--grace", "7"))
    assert got.origins["check"] == "flag --check"


def test_flags_that_are_not_given_leave_the_defaults(actions: Actions) -> None:
    assert main(["train.py"]) == 0
    assert {key for key, origin in actions.called[0][1].origins.items() if origin != "default"} == {
        "script",
        "module",
        "args",
    }


def test_verbs(actions: Actions) -> None:
    actions.outcome = 3
    assert main(["--nodes", "f", "check", "-q", "--skip", "gpu,disk"]) == 3
    assert main(["kill", "run-1", "--yes"]) == 3
    assert main(["kill", "--all"]) == 3
    (_, checked), (_, _, *one), (_, _, *every) = actions.called
    assert (checked.nodes, checked.verbosity, checked.checks_skip) == (Path("f"), -1, ("gpu", "disk"))
    assert (one, every) == (["run-1", False, True, None], [None, True, False, None])
    assert main(["kill", "run-1", "--signal", "USR1"]) == 3
    assert actions.called[-1][2:] == ("run-1", False, False, "USR1")
    assert main(["attach", "run-1", "--ranks", "all"]) == 3
    assert (actions.called[-1][0], actions.called[-1][2]) == ("attach", "run-1")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8), max_size=5))
def test_the_scripts_words_arrive_equal(actions: Actions, words: list[str]) -> None:
    actions.called.clear()
    for start in (["train.py"], ["-m", "my.mod"], ["--", "odd"]):
        assert main([*start, *words, "--", "--help", ""]) == 0
    assert {call[1].args for call in actions.called} == {(*words, "--", "--help", "")}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("chek", "did you mean check?"),
        ("", "nothing to run"),
        ("--nodes", "requires an argument"),
        ("check --grace 5", "No such option: --grace"),
        ("kill a b", "unexpected extra argument"),
        ("kill a --all", "a and --all"),
        ("-q -v a.py", "-q and -v"),
        ("--config nowhere.yaml", "no such file"),
        ("--grace soon a.py", "a duration like"),
        ("-m", "name of a module"),
    ],
)
def test_usage_errors(actions: Actions, capsys: pytest.CaptureFixture[str], argv: str, words: str) -> None:
    assert main(argv.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    first, second = shown.err.rstrip().splitlines()
    assert first.startswith("error: ")
    assert words in first
    assert second.startswith("  → ")
    assert actions.called == []


def test_json_errors_are_one_document(actions: Actions, capsys: pytest.CaptureFixture[str]) -> None:
    actions.outcome = Several([LinkError("no route", "a", "look"), LinkError("no route", "b", "look")])
    assert main(["check", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["exit_code"]) == (1, 3)
    assert [(one["kind"], one["where"], one["what"]) for one in document["error"]] == [
        ("LinkError", "a", "no route"),
        ("LinkError", "b", "no route"),
    ]


def test_equal_errors_of_many_nodes_are_folded() -> None:
    errors = [LinkError("refused", f"node{n:02d}", "start sshd") for n in range(1, 5)]
    several = Several([*errors, NotReadyError("no torch", "node05")])
    assert render_error(several) == "error: node[01-04]: refused\n  → start sshd\nerror: node05: no torch"
    assert len(json.loads(render_error_json(several))["error"]) == 5


def test_interrupt_and_bugs(actions: Actions, capsys: pytest.CaptureFixture[str]) -> None:
    actions.outcome = KeyboardInterrupt()
    assert main(["check"]) == 130
    actions.outcome = ZeroDivisionError("oh\nno")
    assert main(["check"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: internal error: ZeroDivisionError: oh no, this is a bug; details in ")
    assert len(err.splitlines()) == 1
    details = Path(err.strip().rpartition(" ")[2])
    assert "Traceback" in details.read_text()
    details.unlink()


def test_ctrl_c_while_the_program_is_loaded_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {root!r}]; import orchestrator.__main__ as m; sys.exit(m.main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_has_closed_are_no_bug(closed: str) -> None:
    root = Path(__file__).parents[2]
    line = f'"$0" -m orchestrator chek {closed}'
    done = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, cwd=root)
    assert done.returncode == 2
    assert ("did you mean check" in done.stderr) == ("2>" not in closed)


def test_a_current_folder_that_was_deleted_is_told(
    actions: Actions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["check"]) == 2
    assert "the current folder has been deleted" in capsys.readouterr().err
    assert actions.called == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"aorta-launch {orchestrator.__version__}\n"


def test_the_options_that_split_a_call_are_those_of_the_parser() -> None:
    found: dict[str, dict[str, bool]] = {}
    for verb, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        options = dict.fromkeys(HELP_OPTIONS, False)
        for parameter in command.params:
            if parameter.param_type_name == "option":
                takes_value = not (parameter.is_flag or parameter.count)
                options |= dict.fromkeys((*parameter.opts, *parameter.secondary_opts), takes_value)
        found[verb] = options
    assert list_options() == found


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, time\nfrom orchestrator.cli import main\ncode = main(['--help'])\n"
        "heavy = {'torch', 'paramiko', 'fabric', 'pydantic', 'yaml'} & set(sys.modules)\n"
        "print(code, time.process_time(), sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0
    status, cpu_s, heavy = done.stderr.split(maxsplit=2)
    assert (status, heavy.strip()) == ("0", "[]")
    assert float(cpu_s) < 0.5
    assert all(verb in done.stdout for verb in ("launch", "check", "kill"))


@pytest.mark.parametrize(("verb", "flag"), [("launch", "--print-commands"), ("check", "--skip"), ("kill", "--all")])
def test_each_verb_explains_its_flags(capsys: pytest.CaptureFixture[str], verb: str, flag: str) -> None:
    assert main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert flag in shown
    assert "--nodes" in shown
