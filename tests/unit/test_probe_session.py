"""What the node side says of its session: log-out, places to write, programs, limits that the agent raises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.node import probe_disk, probe_session, processes

as_anybody = pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")


def test_settings_of_logind() -> None:
    text = "[Login]\n#KillUserProcesses=no\nKillUserProcesses=Yes\n ; x\nRemoveIPC = no\n"
    assert probe_session.parse_settings(text) == {"KillUserProcesses": "Yes", "RemoveIPC": "no"}


@pytest.mark.parametrize(
    ("said", "user", "kills"),
    [
        ({}, "ada", False),
        ({"KillUserProcesses": "Yes"}, "ada", True),
        ({"KillUserProcesses": "on"}, "root", False),
        ({"KillUserProcesses": "yes", "KillExcludeUsers": "bob"}, "root", True),
        ({"KillUserProcesses": "yes", "KillExcludeUsers": "bob ada"}, "ada", False),
        ({"KillUserProcesses": "yes", "KillOnlyUsers": "bob"}, "ada", False),
        ({"KillUserProcesses": "yes", "KillOnlyUsers": "Ada"}, "Ada", True),
    ],
)
def test_who_loses_his_processes_at_log_out(*, said: dict[str, str], user: str, kills: bool) -> None:
    logind = {"KillUserProcesses": "no", "RemoveIPC": "yes", **said}
    assert probe_session.kills_at_logout(logind, user) is kills
    assert probe_session.kills_at_logout({}, user) is None


def test_shared_memory_goes_at_log_out_for_users_and_not_for_the_system() -> None:
    logind = {"KillUserProcesses": "no", "RemoveIPC": "yes"}
    assert probe_session.removes_ipc(logind, 1000) is True
    assert probe_session.removes_ipc(logind, 0) is False
    assert probe_session.removes_ipc({**logind, "RemoveIPC": "false"}, 1000) is False
    assert probe_session.removes_ipc({}, 1000) is None


def test_drop_ins_of_logind_win_by_their_names_and_etc_over_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etc, lib = tmp_path / "etc", tmp_path / "lib"
    for folder, name, value in (
        (etc, "logind.conf", "no"),
        (lib, "logind.conf.d/50-site.conf", "yes"),
        (etc, "logind.conf.d/40-old.conf", "no"),
        (lib, "logind.conf.d/90-last.conf", "yes"),
        (etc, "logind.conf.d/90-last.conf", "maybe"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"[Login]\nKillUserProcesses={value}\n")
    monkeypatch.setattr(probe_session, "FOLDERS", (str(etc), str(lib)))
    monkeypatch.setattr(os.path, "isdir", lambda _: True)
    assert probe_session.read_logind() == {"KillUserProcesses": "maybe", "RemoveIPC": "yes"}


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: path.write_text(""), "no folder"),
        (lambda path: path.symlink_to(path.parent / "gone"), "a link to nothing"),
        (lambda path: path.mkdir(), "folder"),
        (lambda path: (path / "runs").mkdir(parents=True), "folder"),
        (lambda _: None, "missing"),
        (lambda path: (path.mkdir(), (path / "runs").write_text("")), "a folder whose runs is no folder"),
        (lambda path: (path.mkdir(), (path / "runs").symlink_to("/gone")), "a folder whose runs is no folder"),
        (lambda path: path.symlink_to(path.parent), "folder"),
    ],
)
def test_what_lies_where_our_folder_is(tmp_path: Path, make: Callable[[Path], object], kind: str) -> None:
    make(tmp_path / ".aorta")
    assert probe_session.kind_of_run_folder(str(tmp_path / ".aorta")) == kind


@pytest.mark.parametrize("closed", [".aorta", ".aorta/runs"])
def test_a_folder_of_somebody_else_is_told_and_home_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    (tmp_path / ".aorta" / "runs").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    place = str(tmp_path / closed)
    monkeypatch.setattr(os, "access", lambda path, _: path != place)
    kind = probe_session.kind_of_run_folder(str(tmp_path / ".aorta"))
    assert kind.startswith("a folder that cannot be written")
    assert ("runs is of" in kind) is closed.endswith("runs")
    assert probe_disk.probe_home({})["home_writable"] is True


@as_anybody
def test_a_home_that_cannot_be_entered(tmp_path: Path) -> None:
    tmp_path.chmod(0)
    try:
        assert probe_session.kind_of_run_folder(str(tmp_path / ".aorta")) == "in a folder that cannot be entered"
    finally:
        tmp_path.chmod(0o700)


def test_the_folder_for_temporary_files_is_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(**given: str) -> dict[str, object]:
        found = probe_session.probe_temporary_folder({"given_values": given})["session"]["temporary"]
        return dict(found)

    monkeypatch.setenv("TMPDIR", "/no/such/folder")
    assert look() == {"path": "/no/such/folder", "named": True, "exists": False}
    ours = look(TMPDIR=str(tmp_path))
    assert (ours["path"], ours["exists"], ours["writable"]) == (str(tmp_path), True, True)
    monkeypatch.delenv("TMPDIR")
    assert look()["path"] == "/tmp"
    assert look()["named"] is False


def test_programs_are_found_on_the_path_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    wanted = ["sh", "no-such-command", "tool", str(tmp_path / "tool")]
    found = probe_session.probe_commands({"require_commands": wanted})["session"]["commands"]
    assert found["sh"].endswith("/sh")
    assert (found["no-such-command"], found["tool"]) == ("", "")
    assert found[str(tmp_path / "tool")] == str(tmp_path / "tool")
    request = {"require_commands": wanted, "given_values": {"PATH": str(tmp_path)}}
    found = probe_session.probe_commands(request)["session"]["commands"]
    assert (found["sh"], found["tool"]) == ("", str(tmp_path / "tool"))
    assert probe_session.probe_commands({"require_commands": None})["session"]["commands"] == {}


def test_a_user_id_without_a_name_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    session = probe_session.probe_session({})["session"]
    assert session["linger"] is False
    assert session["pidfd_trouble"] == ""
    assert session["missing_modules"] == []


@pytest.mark.parametrize(
    ("environ", "cgroup", "kind"),
    [
        ("", "0::/user.slice/user-1000.slice/session-3.scope", ""),
        ("PATH=/bin\0container=lxc\0", "0::/", "lxc"),
        ("", "12:pids:/docker/0123\n", "docker"),
        ("", "0::/kubepods.slice/kubepods-pod1.slice/x", "kubernetes"),
    ],
)
def test_containers_are_known(monkeypatch: pytest.MonkeyPatch, environ: str, cgroup: str, kind: str) -> None:
    monkeypatch.setattr(os.path, "exists", lambda _: False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert probe_session.name_container(environ, cgroup) == kind


def test_a_kernel_without_handles_of_processes_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(processes, "open_handle", refuse)
    assert probe_session.pidfd_trouble() == "Function not implemented"


def test_a_module_that_misses_a_library_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacks_a_library.py").write_text("raise ImportError('libffi.so.8: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not probe_session.can_import("lacks_a_library")
    assert probe_session.can_import("json")


@pytest.mark.parametrize(("hard", "raised"), [(1000, 1000), (70000, 65536)])
def test_the_agent_has_what_its_session_may_have(tmp_path: Path, hard: int, raised: int) -> None:
    """As many open files as it may ask for, and no more than makes sense."""
    program = f"""
import os, resource as r, sys
from orchestrator.node import agent
r.setrlimit(r.RLIMIT_NOFILE, (256, min({hard}, r.getrlimit(r.RLIMIT_NOFILE)[1])))
print(r.getrlimit(r.RLIMIT_NOFILE)[1])
os.chdir(sys.argv[1])
words = [sys.executable, "-c", "import resource as r; print(r.getrlimit(r.RLIMIT_NOFILE)[0])"]
agent.start({{"argv": words, "workdir": ".", "cleared": [], "env": {{}}}}).wait()
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int((tmp_path / "agent.out").read_text()) == min(int(done.stdout), raised)
