"""What this very session may do: limits of control groups, log-out, places to write; nothing is written."""

from __future__ import annotations

import os
import stat
import sys

from orchestrator.node import cgroups, processes
from orchestrator.node.probe_command import find_program, list_names, read_text, user_name
from orchestrator.node.probe_places import find_mount, list_mounts, read_mounts
from orchestrator.node.probe_system import mount_options

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional, Tuple

    Facts = Dict[str, Any]

GIB = float(1 << 30)
MODULES: Mapping[str, Tuple[str, ...]] = {
    "ctypes": ("_ctypes",),
    "fcntl": ("fcntl",),
    "grp": ("grp",),
    "hashlib": (),
    "json": (),
    "pwd": ("pwd",),
    "resource": ("resource",),
    "select": ("select",),
    "signal": ("_signal",),
    "socket": ("_socket", "select"),
    "subprocess": ("_posixsubprocess", "select", "_signal"),
}
"""What the supervisor and its helpers import, and what of it is no Python; a Python that was cut down lacks some."""
FOLDERS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
TRUE = ("yes", "true", "1", "on", "y", "t")
FIRST_USER = 1000
"""logind leaves the shared memory of the users below alone."""
PID_1 = "/proc/1/environ"


def probe_session(request: Facts) -> Facts:
    """Read the limits, what happens at log-out, and what the supervisor needs."""
    del request
    logind = read_logind()
    cgroup = read_text("/proc/self/cgroup")
    user = user_name(os.getuid())
    return {
        "session": {
            "pids_free": cgroups.free_pids(cgroup),
            "quota_cores": cgroups.quota_cores(cgroup),
            "cores_online": os.cpu_count(),
            "kill_at_logout": kills_at_logout(logind, user),
            "remove_ipc": removes_ipc(logind, os.getuid()),
            "linger": os.path.exists("/var/lib/systemd/linger/" + user),
            "user_scope": "/user@" in cgroup,
            "of_logind": "/session-" in cgroup,
            "container": name_container(read_text(PID_1), read_text("/proc/1/cgroup")),
            "pidfd_trouble": pidfd_trouble(),
            "missing_modules": [name for name in MODULES if not can_import(name)],
        }
    }


def probe_temporary_folder(request: Facts) -> Facts:
    """Look at the folder that Python and others take for temporary files, as the run's own variables have it."""
    given = request.get("given_values") or {}
    named = next((table["TMPDIR"] for table in (given, os.environ) if table.get("TMPDIR")), "")
    return {"session": {"temporary": look_at_temporary(str(named))}}


def probe_run_folder(request: Facts) -> Facts:
    """Look at ~/.aorta without making it."""
    del request
    return {"session": {"run_folder": kind_of_run_folder(os.path.expanduser("~/.aorta"))}}


def probe_commands(request: Facts) -> Facts:
    """Find the programs that the run requires, as a rank would."""
    path = (request.get("given_values") or {}).get("PATH")
    wanted = [str(name) for name in request.get("require_commands") or []]
    return {"session": {"commands": {name: find_program(name, path) for name in wanted}}}


def read_logind() -> Dict[str, str]:
    """Read logind's settings, the drop-ins over the file; empty where there is no logind."""
    if not os.path.isdir("/run/systemd/system"):
        return {}
    texts = [next((text for text in (read_text(f"{folder}/logind.conf") for folder in FOLDERS) if text), "")]
    drops = {
        os.path.basename(path): path
        for folder in reversed(FOLDERS)
        for path in (f"{folder}/logind.conf.d/{name}" for name in list_names(f"{folder}/logind.conf.d", end=".conf"))
    }
    texts += [read_text(drops[name]) for name in sorted(drops)]
    # With nothing said, the defaults hold.
    return {"KillUserProcesses": "no", "RemoveIPC": "yes", **parse_settings("\n".join(texts))}


def parse_settings(text: str) -> Dict[str, str]:
    """Read NAME=value lines; the last one wins."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", ";")):
            found[name.strip()] = value.strip()
    return found


def kills_at_logout(logind: Mapping[str, str], user: str) -> Optional[bool]:
    """Tell whether what this user leaves is ended at log-out; None where there is no logind."""
    if not logind:
        return None
    # Root is left alone unless an administrator says otherwise.
    if user in logind.get("KillExcludeUsers", "root").split():
        return False
    only = logind.get("KillOnlyUsers", "").split()
    return logind["KillUserProcesses"].lower() in TRUE and (not only or user in only)


def removes_ipc(logind: Mapping[str, str], uid: int) -> Optional[bool]:
    """Tell whether a user's shared memory goes when he counts as logged out; None where there is no logind."""
    if not logind:
        return None
    return uid >= FIRST_USER and logind["RemoveIPC"].lower() in TRUE


def name_container(environ: str, cgroup: str) -> str:
    """Name the kind of container that we are in; empty when in none."""
    said = [word[len("container=") :] for word in environ.split("\0") if word.startswith("container=")]
    marks = (("/run/.containerenv", "podman"), ("/.dockerenv", "docker"))
    found = [name for path, name in marks if os.path.exists(path)]
    if os.environ.get("KUBERNETES_SERVICE_HOST") or "kubepods" in cgroup:
        found.insert(0, "kubernetes")
    found += said
    found += [name for name in ("docker", "lxc", "libpod") if f"/{name}" in cgroup]
    return found[0] if found else ""


def pidfd_trouble() -> str:
    """Say why the supervisor could not hold on to a process; empty when it could."""
    try:
        os.close(processes.open_handle(os.getpid()))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def can_import(name: str) -> bool:
    """Tell whether a module of the standard library is there; it may be, and yet miss a library of its own.

    What is written in Python is found without being run: that costs more than all the rest of this probe.
    """
    try:
        for part in MODULES.get(name, (name,)):
            __import__(part)
    except (ImportError, OSError):
        return False
    return name in sys.modules or any(finder.find_spec(name, None) is not None for finder in sys.meta_path)


def look_at_temporary(named: str) -> Facts:
    """Say what TMPDIR names, or what /tmp is where it names nothing."""
    path = named or "/tmp"  # noqa: S108 - it is looked at, nothing is written
    found: Facts = {"path": path, "named": bool(named), "exists": os.path.isdir(path)}
    if not found["exists"]:
        return found
    mount = find_mount(os.path.realpath(path), list_mounts())[1]
    state = os.statvfs(path)
    found.update(
        mount=mount,
        writable=os.access(path, os.W_OK | os.X_OK),
        free_gib=round(state.f_bavail * state.f_frsize / GIB, 3),
        noexec="noexec" in mount_options(read_mounts()).get(mount, []),
    )
    return found


def kind_of_run_folder(path: str) -> str:
    """Say what lies where our folder is, or would be made."""
    if os.path.islink(path) and not os.path.exists(path):
        return "a link to nothing"
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "in a folder that cannot be entered"
    return _judge_folder(path) if stat.S_ISDIR(mode) else "no folder"


def _judge_folder(path: str) -> str:
    runs = os.path.join(path, "runs")
    if os.path.lexists(runs) and not os.path.isdir(runs):
        return "a folder whose runs is no folder"
    for folder in (path, runs):
        if os.path.isdir(folder) and not os.access(folder, os.W_OK | os.X_OK):
            owner = user_name(os.stat(folder).st_uid)
            return "a folder that cannot be written" + (f": runs is of {owner}" if folder == runs else f", of {owner}")
    return "folder"
