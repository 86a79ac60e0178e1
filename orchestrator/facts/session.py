"""What the SSH session may do and for how long: limits, control groups, log-out, places to write."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.facts.group import FactGroup


class TemporaryFacts(FactGroup):
    """The folder for temporary files: TMPDIR, else /tmp."""

    path: str = ""
    named: bool = False
    """By TMPDIR."""
    mount: str = ""
    exists: bool | None = None
    writable: bool | None = None
    free_gib: float | None = None
    noexec: bool | None = None


class SessionFacts(FactGroup):
    """What the SSH session may do and for how long: limits, control groups, log-out, places to write."""

    pids_free: int | None = None
    """Processes that the control group still allows."""
    quota_cores: float | None = None
    """Cores that a control group allows, where there is a limit."""
    cores_online: int | None = None
    kill_at_logout: bool | None = None
    """logind ends what a user left at log-out."""
    remove_ipc: bool | None = None
    """logind removes this user's files in /dev/shm at log-out."""
    linger: bool | None = None
    user_scope: bool | None = None
    """The session lies below the user's own service manager, which ends soon after the last log-out."""
    of_logind: bool | None = None
    """The session is one that logind knows."""
    container: str = ""
    """Kind of container; empty: in none."""
    pidfd_trouble: str | None = None
    """Why the kernel gives no handle of a process; empty: it does."""
    temporary: TemporaryFacts | None = None
    run_folder: str = ""
    """folder, missing, or what it is instead."""
    missing_modules: tuple[str, ...] = ()
    commands: Mapping[str, str] | None = None
    """Programs that the run requires: where they are; empty: nowhere."""
