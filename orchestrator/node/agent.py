"""Starts the agent of a node with the words and the environment of its order."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import resource
import signal
import subprocess
from typing import Any

from orchestrator.node import command, library, nccl_pipe, processes, rank_hook

NOFILE = 65536
"""As many open files as ranks get where the system lets them have more."""
UNLIMITED = resource.RLIM_INFINITY
TORCHRUN = ["-m", "torch.distributed.run"]
MODULE = "program/orchestrator/node/agent_module.py"
"""Below the run folder, which is the supervisor's own."""


def start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the agent in a session of its own; its output goes straight into files, never through us."""
    names = "agent.out", "agent.err"
    if order.get("is_command"):
        place = command.make_place(order)
        names = os.path.join(place, "stdout.log"), os.path.join(place, "stderr.log")
    with open(names[0], "wb") as out, open(names[1], "wb") as err:
        return subprocess.Popen(
            words_of(order),
            cwd=order["workdir"],
            env=environment_of(order),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=before_agent,  # noqa: PLW1509 - we have one thread, so it is safe
        )


def words_of(order: dict[str, Any]) -> list[str]:
    """Give the words of the order; torchrun is run by a file of ours, which imports it sooner."""
    words: list[str] = order["argv"]
    if words[1:3] == TORCHRUN and os.path.isfile(MODULE):
        return [words[0], os.path.abspath(MODULE), *words[2:]]
    return words


def before_agent() -> None:
    """Between fork and exec: die with the supervisor, and before it when memory runs out."""
    processes.die_with_parent()
    raise_limits()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("200")


def raise_limits() -> None:
    """Use what this session may have: most systems give few open files, and as many as one asks for."""
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_MEMLOCK):
        soft, hard = resource.getrlimit(kind)
        # Some programs go through all numbers that a file could have.
        most = NOFILE if kind == resource.RLIMIT_NOFILE and (hard == UNLIMITED or hard > NOFILE) else hard
        if soft != UNLIMITED and (most == UNLIMITED or most > soft):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (most, hard))


def environment_of(order: dict[str, Any]) -> dict[str, str]:
    """The session's environment without what would mislead torchrun, and over it what the plan says."""
    cleared = order["cleared"]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in cleared)
    }
    env = nccl_pipe.without_bad_pipe({**kept, **order["env"]}, ".")
    env = library.put_behind(env, ".")
    return rank_hook.put_in_front(env, ".") if order.get("rank_hook") else env


def describe_error(error: Exception, order: dict[str, Any]) -> str:
    """Say which of the two paths in an exec was wrong."""
    if not os.path.isdir(order["workdir"]):
        return f"workdir {order['workdir']}: no such folder"
    return f"{order['argv'][0]}: {error}"
