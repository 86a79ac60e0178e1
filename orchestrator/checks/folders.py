"""Checks of the folders that a run uses on a node, and of the programs that it calls."""

from __future__ import annotations

import shlex

from orchestrator.checks.check import Check
from orchestrator.checks.remedies import install_commands, on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.checks.thresholds import threshold
from orchestrator.facts import Facts
from orchestrator.facts.session import TemporaryFacts
from orchestrator.settings import Settings
from orchestrator.values import Node

LONGEST_SOCKET = 107
LISTENER = len("/pymp-xxxxxxxx/listener-xxxxxxxx")
"""What multiprocessing puts behind the folder for temporary files."""
OURS_ALONE = "a folder that cannot be written"


def check_run_folder(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Our folder in HOME is one, or can be made."""
    del settings
    kind = facts.session.run_folder
    if not kind:
        return unknown(facts.why_unknown("session.run-folder") or "not told")
    if kind in ("folder", "missing"):
        return ok("it is there" if kind == "folder" else "it will be made")
    if any(mount.read_only and mount.role == "HOME" for mount in facts.system.mounts):
        return skip("HOME is mounted read-only, see mounts")
    home = facts.home or "~"
    if kind.startswith(OURS_ALONE) and facts.home:
        owner = f"sudo chown -R {shlex.quote(facts.user)} {shlex.quote(home)}/.aorta"
        mode = f"chmod -R u+rwX {shlex.quote(home)}/.aorta"
        return fail(f"~/.aorta is {kind}", on_node(node, f"{owner} && {mode}", terminal=True))
    if kind.startswith("in a folder"):
        return fail(
            f"~/.aorta is {kind}", on_node(node, f"sudo chmod u+rwx {shlex.quote(facts.home or '~')}", terminal=True)
        )
    return fail(f"~/.aorta is {kind}", on_node(node, "mv ~/.aorta ~/.aorta.old"))


def check_mounts(node: Node, facts: Facts, settings: Settings) -> Seen:
    """HOME and the working directory can be written, and what lies there can be executed."""
    del settings
    if not facts.system.mounts:
        return unknown(facts.why_unknown("system.mounts") or "not told")
    closed = next((one for one in facts.system.mounts if one.read_only), None)
    if closed is not None:
        remedy = on_node(node, f"sudo mount -o remount,rw {shlex.quote(closed.mount)}", terminal=True)
        return fail(f"{closed.role} {closed.path} is mounted read-only ({closed.mount})", remedy)
    inert = next((one for one in facts.system.mounts if one.noexec), None)
    if inert is not None:
        remedy = on_node(node, f"sudo mount -o remount,exec {shlex.quote(inert.mount)}", terminal=True)
        return warn(f"nothing may be executed at {inert.role} {inert.path} ({inert.mount} is noexec)", remedy)
    return ok("read-write")


def check_tmp(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The folder for temporary files can be used."""
    tmp = facts.session.temporary
    if tmp is None:
        return unknown(facts.why_unknown("session.tmp") or "not told")
    if tmp.free_gib is None or tmp.writable is False:
        return _judge_unusable(node, facts, tmp)
    seen = f"{tmp.free_gib:.2f} GiB free at {tmp.path}"
    look = on_node(node, f"df -h {shlex.quote(tmp.path)}")
    if tmp.free_gib < threshold(settings, "tmp", "fail_gib"):
        return fail(seen, f"{look}; or --env TMPDIR=/another/folder")
    if tmp.noexec:
        remount = on_node(node, f"sudo mount -o remount,exec {shlex.quote(tmp.mount or tmp.path)}", terminal=True)
        told = f"nothing may be executed at {tmp.path}: what torch.compile and Triton build there"
        return warn(told, f"{remount}; or --env TMPDIR=/another/folder")
    if tmp.free_gib < threshold(settings, "tmp", "warn_gib"):
        return warn(seen, f"{look}; or --env TMPDIR=/another/folder")
    return ok(seen)


def _judge_unusable(node: Node, facts: Facts, tmp: TemporaryFacts) -> Seen:
    path = shlex.quote(tmp.path)
    if not tmp.named:
        what = "cannot be written" if tmp.exists else "is not there"
        make = f"sudo install -d -m 1777 {path}"
        return fail(f"{tmp.path} {what}", on_node(node, make, terminal=True))
    # Python goes on with /tmp; the C library and compilers do not all.
    if not tmp.exists:
        return warn(f"TMPDIR={tmp.path} is not there", on_node(node, f"mkdir -p {path}"))
    owner = f"sudo chown {shlex.quote(facts.user or 'USER')} {path}"
    return warn(f"TMPDIR={tmp.path} cannot be written", f"--env TMPDIR=/tmp; or {on_node(node, owner, terminal=True)}")


def check_socket_path(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Sockets of data loader workers fit below the folder for temporary files."""
    del settings
    tmp = facts.session.temporary
    if tmp is None:
        return unknown(facts.why_unknown("session.tmp") or "not told")
    if not tmp.exists or tmp.writable is False:
        return skip(f"{tmp.path} is not used")
    length = len(tmp.path.encode()) + LISTENER
    if length > LONGEST_SOCKET:
        told = f"TMPDIR has {len(tmp.path)} characters: a socket below it would have {length} of {LONGEST_SOCKET}"
        places = "grep -sn TMPDIR ~/.bashrc ~/.profile ~/.ssh/environment /etc/environment /etc/ssh/sshd_config"
        return warn(told, f"--env TMPDIR=/tmp; it comes from: {on_node(node, places)}")
    return ok(f"{length} of {LONGEST_SOCKET} characters")


def check_commands(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Programs that the run requires are on the PATH."""
    if not settings.require_commands:
        return skip("launch.require_commands names none")
    if facts.session.commands is None:
        return unknown(facts.why_unknown("session.commands") or "not told")
    missing = [name for name in settings.require_commands if not facts.session.commands.get(name)]
    if missing:
        remedy = on_node(node, install_commands(facts, missing), terminal=True)
        return fail(f"not on the PATH: {', '.join(missing)}", remedy)
    return ok(", ".join(facts.session.commands[name] for name in settings.require_commands))


CHECKS = (
    Check(
        name="run-folder",
        looks_at="~/.aorta, where a run keeps its state and logs",
        why="the supervisor could not make its run folder",
        fails="it is something else than a folder that you can write",
        each=check_run_folder,
    ),
    Check(
        name="mounts",
        looks_at="how HOME and the working directory are mounted",
        why="nothing could be written, or a virtual environment there could not run",
        fails="one is read-only",
        warns="one is noexec",
        each=check_mounts,
    ),
    Check(
        name="commands",
        looks_at="launch.require_commands",
        why="a rank would fail when it calls one",
        fails="one is not on the PATH",
        each=check_commands,
    ),
    Check(
        name="tmp",
        looks_at="TMPDIR, else /tmp",
        why="torch.compile, data loaders and caches write there",
        fails="less than {fail_gib:g} GiB; /tmp is missing or cannot be written",
        warns="nothing may be executed there, or less than {warn_gib:g} GiB; TMPDIR names what cannot be used",
        each=check_tmp,
    ),
    Check(
        name="socket-path",
        looks_at="length of TMPDIR",
        why="data loader workers end with: AF_UNIX path too long",
        warns="a socket below it would be longer than 107 characters",
        each=check_socket_path,
    ),
)
