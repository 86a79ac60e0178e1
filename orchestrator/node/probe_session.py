"""What this very session may do: limits of control groups, log-out, places to write; nothing is written."""

from __future__ import annotations

import glob
import importlib.util
import os
import pwd
import shutil
from typing import Any, Dict, Optional

from orchestrator.node import cgroups
from orchestrator.node.probe_command import read_text
from orchestrator.node.probe_places import find_mount, parse_mounts
from orchestrator.node.probe_system import mount_options

Facts = Dict[str, Any]
GIB = float(1 << 30)
MODULES = ("ctypes", "fcntl", "json", "pwd", "resource", "select", "signal", "socket", "struct", "subprocess", "zlib")
"""What the supervisor and its helpers import; a Python that was cut down lacks some."""
FOLDERS = ("/etc/systemd", "/run/systemd", "/usr/lib/systemd", "/usr/local/lib/systemd")


def probe_session(request: Facts) -> Facts:
    """Read the limits, what happens at log-out, and the places where a run writes."""
    logind = read_logind()
    cgroup = read_text("/proc/self/cgroup")
    return {
        "session": {
            "pids_free": cgroups.free_pids(cgroup),
            "quota_cores": cgroups.quota_cores(cgroup),
            "cores_online": os.cpu_count(),
            "kill_at_logout": _kills(logind),
            "remove_ipc": logind.get("RemoveIPC", "yes") == "yes" if logind else None,
            "linger": os.path.exists("/var/lib/systemd/linger/" + pwd.getpwuid(os.getuid()).pw_name),
            "user_scope": "/user@" in cgroup,
            "temporary": probe_temporary(),
            "run_folder": kind_of_run_folder(os.path.expanduser("~/.aorta")),
            "missing_modules": [name for name in MODULES if importlib.util.find_spec(name) is None],
            "commands": {name: find_command(name) for name in request.get("require_commands", [])},
        }
    }


def read_logind() -> Dict[str, str]:
    """Read logind's settings, the drop-ins over the file; empty where there is no logind."""
    if not os.path.isdir("/run/systemd/system"):
        return {}
    texts = [read_text(f"{folder}/logind.conf") for folder in reversed(FOLDERS)]
    drops = {
        os.path.basename(path): path
        for folder in reversed(FOLDERS)
        for path in glob.glob(f"{folder}/logind.conf.d/*.conf")
    }
    texts += [read_text(drops[name]) for name in sorted(drops)]
    # With nothing said, the defaults hold.
    return {"KillUserProcesses": "no", **parse_settings("\n".join(texts))}


def parse_settings(text: str) -> Dict[str, str]:
    """Read NAME=value lines; the last one wins."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", ";")):
            found[name.strip()] = value.strip().lower()
    return found


def _kills(logind: Dict[str, str]) -> Optional[bool]:
    """Tell whether what this user leaves is ended at log-out."""
    if not logind:
        return None
    name = pwd.getpwuid(os.getuid()).pw_name
    # Root is left alone unless an administrator says otherwise.
    if name in logind.get("KillExcludeUsers", "root").split():
        return False
    only = logind.get("KillOnlyUsers", "").split()
    return logind["KillUserProcesses"] in ("yes", "true", "1", "on") and (not only or name in only)


def probe_temporary() -> Facts:
    """Look at the folder that Python and others take for temporary files."""
    path = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - it is looked at, nothing is written
    found: Facts = {"path": path, "exists": os.path.isdir(path)}
    if not found["exists"]:
        return found
    state = os.statvfs(path)
    mount = find_mount(os.path.realpath(path), parse_mounts(read_text("/proc/self/mounts", 1 << 20)))[1]
    options = mount_options(read_text("/proc/self/mounts", 1 << 20)).get(mount, [])
    found.update(
        writable=os.access(path, os.W_OK | os.X_OK),
        free_gib=round(state.f_bavail * state.f_frsize / GIB, 3),
        noexec="noexec" in options,
    )
    return found


def kind_of_run_folder(path: str) -> str:
    """Say what lies where our folder is, or would be made."""
    if os.path.islink(path) and not os.path.exists(path):
        return "a link to nothing"
    if not os.path.exists(path):
        return "missing"
    if not os.path.isdir(path):
        return "no folder"
    if os.stat(path).st_uid != os.getuid() and not os.access(path, os.W_OK | os.X_OK):
        return "somebody else's folder"
    runs = os.path.join(path, "runs")
    if os.path.lexists(runs) and not os.path.isdir(runs):
        return "a folder whose runs is no folder"
    return "folder"


def find_command(name: str) -> str:
    """Find a program as a rank would."""
    return shutil.which(name) or ""
