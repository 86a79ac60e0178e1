"""Faults of the launch host: its terminal, its launcher, its disk, its port, and what other shells do."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress

from cluster import Completed
from cluster.programs import run
from scenes import THIEF

from .case import Case
from .row import Fault, Logs, Others, nothing
from .stops import killed, stopped


def signal_launcher(number: int) -> Callable[[Case], None]:
    """Signal the foreground launch, and it alone."""

    def inject(case: Case) -> None:
        case.launcher.send_signal(number)

    return inject


def kill_launcher(case: Case) -> None:
    """SIGKILL of the foreground launch; the ranks write on."""
    case.launcher.kill()
    case.wait_writing(*case.fault.nodes)


def hang_up(case: Case) -> None:
    """SIGHUP of the foreground launch, as when its terminal is closed; it goes on unseen."""
    case.launcher.send_signal(signal.SIGHUP)
    case.wait_flowing()
    case.finish()


def kill_while_attended(case: Case) -> Completed:
    """`kill` from another shell while the foreground launch watches; the row is about what that one says."""
    other = case.kill()
    assert other.exit_code == 0, other
    assert other.stdout.count("none left") == len(case.fault.nodes), other
    return case.launcher.wait(30)


def small_experiments(case: Case) -> None:
    """Put the experiment directory on a small disk of its own."""
    disk = case.tmp_path / "disk"
    disk.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)])
    case.undo.callback(run, ["umount", "-l", str(disk)])
    (disk / "experiments").mkdir()
    (case.scene.project / "experiments").symlink_to(disk / "experiments")


def fill_experiments(case: Case) -> None:
    """Fill that disk, and wait until the launcher has noticed."""
    with (case.tmp_path / "disk" / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    case.launcher.wait_for_text("logs cannot be written here", 60)
    case.wait_writing(*case.fault.nodes)


def fill_experiments_for_a_while(case: Case) -> None:
    """Fill that disk, and free it while the run still goes on."""
    fill_experiments(case)
    (case.tmp_path / "disk" / "filler").unlink()
    case.wait_writing(*case.fault.nodes)
    case.finish()


def free_and_attach(case: Case) -> Completed:
    """Let the run end, make space, and let `attach` complete what is missing."""
    case.finish()
    done = case.launcher.wait(60)
    (case.tmp_path / "disk" / "filler").unlink()
    attached = case.attach()
    assert attached.exit_code == case.fault.exit_code, attached
    return done


def steal_port(case: Case) -> None:
    """Take the rendezvous port of the head between the check and torchrun."""
    enter = ["nsenter", "-t", str(case.cluster.pid(1)), "-n", "python3", "-c", THIEF]
    thief = subprocess.Popen(enter, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    case.undo.callback(thief.wait)
    case.undo.callback(thief.kill)
    assert thief.stdin is not None
    assert thief.stdout is not None
    assert thief.stdout.readline() == "ready\n"
    case.launcher.wait_for_text(" port ", 60)
    thief.stdin.write(case.launcher.stderr.split(" port ")[1].split()[0] + "\n")
    thief.stdin.flush()
    case.launcher.wait_for_text("was taken", 60)
    case.launcher.wait_for_text("running: 2 ranks", 60)
    case.wait_flowing()
    case.finish()


LAUNCH_HOST = (
    stopped(id="ctrl-c", happens="Ctrl-C.", inject=nothing, long=True),
    Fault(
        id="terminated",
        happens="SIGTERM of the foreground launch.",
        says=("stopping every node", "KILLED"),
        state="killed",
        exit_code=143,
        others=Others.STOPPED,
        do="Nothing.",
        inject=signal_launcher(signal.SIGTERM),
        long=True,
    ),
    stopped(
        id="killed-from-elsewhere",
        long=True,
        happens="`aorta-launch kill` from another shell.",
        says=("stopped by aorta-launch kill", "KILLED"),
        exit_code=143,
        inject=nothing,
        ending=kill_while_attended,
    ),
    killed(
        id="launcher-killed",
        long=True,
        happens="SIGKILL of the foreground launch; then `kill`.",
        inject=kill_launcher,
    ),
    Fault(
        id="terminal-closed",
        long=True,
        happens="The terminal of the foreground launch is closed (SIGHUP).",
        says=("SUCCEEDED",),
        state="succeeded",
        exit_code=0,
        others=Others.GO_ON,
        do="`aorta-launch attach` shows the run again.",
        inject=hang_up,
    ),
    Fault(
        id="launch-host-disk-full",
        happens="The launch host's disk is full for a while in mid-run.",
        says=("logs cannot be written here", "they remain on the nodes", "SUCCEEDED"),
        state="succeeded",
        exit_code=0,
        others=Others.GO_ON,
        do="Nothing where space comes back: what is missing is fetched from the nodes.",
        before=small_experiments,
        inject=fill_experiments_for_a_while,
    ),
    Fault(
        id="launch-host-disk-full-to-the-end",
        happens="The launch host's disk is full until the run has ended.",
        says=("logs cannot be written here", "they remain on the nodes", "SUCCEEDED"),
        state="succeeded",
        exit_code=0,
        others=Others.GO_ON,
        do="Free space, then `aorta-launch attach`: what is missing is fetched from the nodes.",
        before=small_experiments,
        inject=fill_experiments,
        ending=free_and_attach,
        long=True,
    ),
    Fault(
        id="port-taken-late",
        happens="Somebody takes the rendezvous port between the check and the start of torchrun.",
        says=("was taken before torchrun could use it; starting again with another", "SUCCEEDED"),
        state="succeeded",
        exit_code=0,
        others=Others.GO_ON,
        do="Nothing.",
        inject=steal_port,
        flows=False,
        long=True,
    ),
    Fault(
        id="port-taken",
        happens="The port that `--master-port` names is taken on the head.",
        says=("--master-port",),
        state="",
        exit_code=3,
        others=Others.NOT_STARTED,
        logs=Logs.NONE,
        do="Leave out `--master-port`: a free port is found.",
        inject=nothing,
        settings={"master_port": 22},
        flows=False,
        long=True,
    ),
)
