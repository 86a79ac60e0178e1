"""Faults of whole nodes: disk, HOME, /tmp, clock, power."""

from __future__ import annotations

import shutil
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from cluster import Completed

from .case import Case, press_ctrl_c
from .links import KILL_LATER, LOST, lost_then_killed
from .row import Fault, First, Logs, Others, nothing

SMALL_MIB = 24
JUMP_S = 3600.0
PATIENT = """
plain_write = os.write
def patient_write(handle, data):
    while data:
        try:
            data = data[plain_write(handle, data):]
        except OSError:
            time.sleep(0.01)
os.write = patient_write
"""
CLOCK = """

def _jump():
    import posix, time
    real, flag = time.time, {flag!r}
    def shifted():
        try:
            posix.stat(flag)
        except OSError:
            return real()
        return real() + {jump}
    time.time = shifted
_jump()
"""


def small_disk(case: Case) -> None:
    """Put ~/.aorta of node 2 on a small disk of its own."""
    path = f"{case.cluster.spec.home_on_node(2)}/.aorta"
    case.cluster.mount_small(2, path, SMALL_MIB)


def fill_disk(case: Case) -> None:
    """Fill the disk of node 2."""
    case.cluster.fill(2, f"{case.cluster.spec.home_on_node(2)}/.aorta")


def fill_disk_and_go_on(case: Case) -> None:
    """Fill the disk of node 2 for a while, under ranks that bear it."""
    home = case.cluster.spec.home_on_node(2)
    fill_disk(case)
    case.wait_flowing(1)
    case.cluster.exec(2, ["rm", f"{home}/.aorta/filler"]).check_returncode()
    case.wait_flowing()
    case.finish()


def read_only_home(case: Case) -> None:
    """Mount HOME of node 2 read-only."""
    home = case.cluster.spec.home_on_node(2)
    case.cluster.exec(2, ["mount", "-o", "remount,bind,ro", home]).check_returncode()


def no_tmp(case: Case) -> None:
    """Take /tmp of node 2 away: what stands there cannot be written, but for what the node itself is made of."""
    keep, folder = "/run/keep", case.cluster.spec.state
    steps = [f"mkdir {keep}", f"mount --rbind {folder} {keep}", "mount -t tmpfs tmpfs /tmp", f"mkdir {folder}"]
    steps += [f"mount --rbind {keep} {folder}", "mount -o remount,ro /tmp"]
    case.cluster.exec(2, ["sh", "-ec", "; ".join(steps)]).check_returncode()


def jumping_clock(case: Case) -> None:
    """Give node 2 a Python whose clock jumps once a file is there: a real clock is shared by all nodes of one machine."""
    home = Path(case.cluster.spec.home_on_node(2))
    folder = case.cluster.home(2) / "clock"
    real, version = Path(case.cluster.spec.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = folder / "base" / "lib" / version
    library.mkdir(parents=True)
    for entry in (real / "lib" / version).iterdir():
        if entry.name != "json":
            (library / entry.name).symlink_to(entry)
    # Our programs run without site: what all of them import is the place for the jump.
    shutil.copytree(real / "lib" / version / "json", library / "json")
    with (library / "json" / "__init__.py").open("a") as file:
        file.write(CLOCK.format(flag=str(home / "jumped"), jump=JUMP_S))
    site = Path(case.cluster.fake_python).parents[1] / "lib" / version / "site-packages"
    (folder / "env" / "bin").mkdir(parents=True)
    (folder / "env" / "bin" / "python3").symlink_to(real / "bin" / version)
    (folder / "env" / "lib" / version).mkdir(parents=True)
    (folder / "env" / "lib" / version / "site-packages").symlink_to(site)
    config = f"home = {home}/clock/base/bin\ninclude-system-site-packages = false\n"
    (folder / "env" / "pyvenv.cfg").write_text(config)
    (folder / "base" / "bin").mkdir()
    case.python[2] = f"{home}/clock/env/bin/python3"


def jump(case: Case) -> None:
    """Let the clock of node 2 jump."""
    (case.cluster.home(2) / "jumped").touch()
    supervisor = case.cluster.exec(2, ["readlink", f"/proc/{case.supervisor(2)}/exe"]).stdout
    assert supervisor, "no supervisor"
    ahead = case.cluster.exec(2, [case.python[2], "-I", "-S", "-c", "import json, time; print(time.time())"]).stdout
    assert float(ahead) > time.time() + JUMP_S / 2, "this Python's clock has not jumped"
    case.wait_flowing()
    case.finish()


def delete_run_folder(case: Case) -> None:
    """Delete the run folder on node 2, as somebody does who makes room."""
    case.cluster.exec(2, ["rm", "-rf", case.folder_words(2)]).check_returncode()
    case.wait_flowing(1)


def delete_and_break(case: Case) -> None:
    """The same, and then end the sessions of sshd."""
    delete_run_folder(case)
    case.kill_links(2)


def power_off(case: Case) -> None:
    """Take the power from node 2."""
    case.cluster.kill_node(2)


def reboot(case: Case) -> None:
    """Let node 2 end all its processes and come back with another boot id."""
    others = [process.pid for process in case.cluster.process_table(2)]
    case.cluster.stop_sshd(2)
    case.send(2, signal.SIGSTOP, *others)  # none of them sees another one end, as when the power goes
    case.send(2, signal.SIGKILL, *others)
    (case.cluster.folder(2) / "boot_id").chmod(0o644)
    (case.cluster.folder(2) / "boot_id").write_text(f"{uuid.uuid4()}\n")
    case.cluster.start_sshd(2)
    case.launcher.wait_for_text("is lost", 60)


def ends_at_once(case: Case) -> Completed:
    """Wait for the end, which must not take the time of a lost link."""
    return case.launcher.wait(30)


def not_started(**own: Any) -> Fault:
    """Build a row in which the checks before the start find the fault."""
    common: dict[str, Any] = {
        "state": "",
        "exit_code": 3,
        "inject": nothing,
        "others": Others.NOT_STARTED,
        "logs": Logs.NONE,
        "flows": False,
        "fresh": True,
    }
    return Fault(**common | own)


NODES = (
    Fault(
        id="disk-full",
        happens="A node's disk fills up in mid-run; its rank cannot write its log any more and ends with an error.",
        says=("rank 1 on {node2} ended with exit code 1", "the disk is full that takes its output (~/.aorta)"),
        state="failed",
        exit_code=1,
        first=First(1, 1, "the disk is full"),
        others=Others.STOPPED,
        do="Free space on the node; `aorta-launch prune` frees what old runs hold.",
        before=small_disk,
        settings={"checks": {"disk": {"skip": True, "reason": "it is filled on purpose"}}},
        inject=fill_disk,
        fresh=True,
    ),
    Fault(
        id="disk-full-for-a-while",
        happens="A node's disk is full for a while; its rank bears it and writes on later.",
        says=("SUCCEEDED",),
        state="succeeded",
        exit_code=0,
        others=Others.GO_ON,
        do="Nothing.",
        before=small_disk,
        settings={"checks": {"disk": {"skip": True, "reason": "it is filled on purpose"}}},
        inject=fill_disk_and_go_on,
        setup=PATIENT,
        fresh=True,
        long=True,
    ),
    not_started(
        id="home-read-only",
        long=True,
        happens="A node's HOME is read-only before the start.",
        says=("FAIL mounts", "{node2}", "HOME", "is mounted read-only"),
        do="Mount it writable; the message names the command.",
        before=read_only_home,
    ),
    not_started(
        id="no-tmp",
        long=True,
        happens="A node has no /tmp that can be written.",
        says=("FAIL tmp", "{node2}", "/tmp cannot be written"),
        do="Make it writable; the message names the command.",
        before=no_tmp,
    ),
    Fault(
        id="clock-jumps",
        happens="A node's clock jumps by an hour in mid-run.",
        note="Pretended: the node's Python gives another time from then on, to the supervisor and to the ranks.",
        says=("SUCCEEDED",),
        state="succeeded",
        exit_code=0,
        others=Others.GO_ON,
        do="Nothing.",
        before=jumping_clock,
        inject=jump,
        fresh=True,
    ),
    Fault(
        id="node-rebooted",
        happens="A node is rebooted in mid-run and is back before it counts as lost.",
        note="Pretended: all its processes are killed, and it comes back with another boot id.",
        says=("{node2} is lost (rebooted)", "nothing of the run is left there: launch again"),
        never=("NOT ASKED", "aorta-launch kill", "nothing was missed"),
        state="lost",
        exit_code=4,
        first=First(1, None, "rebooted"),
        others=Others.STOPPED,
        do="Launch again; nothing of the run is left on the node.",
        inject=reboot,
        ending=ends_at_once,
        logs=Logs.BEGINNING,
        fresh=True,
        nodes=(1, 2, 3),
    ),
    Fault(
        id="run-folder-deleted",
        happens="Somebody deletes the run folder on a node in mid-run; then Ctrl-C.",
        says=("KILLED",),
        state="killed",
        exit_code=130,
        others=Others.STOPPED,
        logs=Logs.HERE_ALONE,
        do="What the ranks wrote there since then is gone; what came before is in the experiment directory.",
        inject=delete_run_folder,
        ending=press_ctrl_c,
        fresh=True,
        long=True,
    ),
    Fault(
        id="run-folder-deleted-link-broken",
        happens="Somebody deletes the run folder on a node in mid-run; then the link breaks.",
        says=("{node2} is lost (no run in ", "NOT ASKED"),
        state="lost",
        exit_code=4,
        first=First(1, None, "its run folder was removed"),
        others=Others.STOPPED,
        logs=Logs.HERE_ALONE,
        do=KILL_LATER,
        inject=delete_and_break,
        ending=lost_then_killed,
        settings=LOST,
        fresh=True,
        long=True,
    ),
    Fault(
        id="node-off",
        happens="A node loses its power.",
        note="Pretended: the node's first process is killed, and with it all others and its network.",
        says=("{node2} is lost", "stopping the other nodes"),
        state="lost",
        exit_code=4,
        first=First(1),
        others=Others.STOPPED,
        do="Launch again without it (`--exclude`).",
        inject=power_off,
        settings=LOST,
        logs=Logs.BEGINNING,
        fresh=True,
        long=True,
    ),
)
