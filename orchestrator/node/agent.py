"""Starts the agent of a node with the words and the environment of its order."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself costs a fifth of a start of Python
import os
import resource

from orchestrator.node import command, library, nccl_pipe, processes, rank_hook, spawn
from orchestrator.node.globs import matches

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Any

NOFILE = 65536
"""As many open files as ranks get where the system lets them have more."""
UNLIMITED = resource.RLIM_INFINITY
TORCHRUN = ["-m", "torch.distributed.run"]
MODULE = "program/orchestrator/node/agent_module.py"
"""Below the run folder, which is the supervisor's own."""


class Agent:
    """The agent that was started; nobody else waits for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def wait(self) -> int:
        """Wait for its end and give its exit code, below zero the signal that ended it."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code


def start(order: dict[str, Any]) -> Agent:
    """Start the agent in a session of its own; its output goes straight into files, never through us.

    Raises:
        OSError: it cannot be started.
        ValueError: a word of it has a null byte.
    """
    names = "agent.out", "agent.err"
    if order.get("is_command"):
        place = command.make_place(order)
        names = os.path.join(place, "stdout.log"), os.path.join(place, "stderr.log")
    processes.open_libc()  # between fork and exec it is used only
    with open(os.devnull, "rb") as null, open(names[0], "wb") as out, open(names[1], "wb") as err:
        handles = (null.fileno(), out.fileno(), err.fileno())
        return Agent(
            spawn.start_process(words_of(order), environment_of(order), order["workdir"], handles, before_agent)
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
    _signal.signal(_signal.SIGHUP, _signal.SIG_DFL)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("200")
    except OSError:
        pass


def raise_limits() -> None:
    """Use what this session may have: most systems give few open files, and as many as one asks for."""
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_MEMLOCK):
        soft, hard = resource.getrlimit(kind)
        # Some programs go through all numbers that a file could have.
        most = NOFILE if kind == resource.RLIMIT_NOFILE and (hard == UNLIMITED or hard > NOFILE) else hard
        if soft != UNLIMITED and (most == UNLIMITED or most > soft):
            try:
                resource.setrlimit(kind, (most, hard))
            except (OSError, ValueError):
                pass


def environment_of(order: dict[str, Any]) -> dict[str, str]:
    """The session's environment without what would mislead torchrun, and over it what the plan says."""
    cleared = order["cleared"]
    kept = {name: value for name, value in os.environ.items() if not matches(name, cleared)}
    env = nccl_pipe.without_bad_pipe({**kept, **order["env"]}, ".")
    env = library.put_behind(env, ".")
    return rank_hook.put_in_front(env, ".") if order.get("rank_hook") else env


def describe_error(error: Exception, order: dict[str, Any]) -> str:
    """Say which of the two paths in an exec was wrong."""
    if not os.path.isdir(order["workdir"]):
        return f"workdir {order['workdir']}: no such folder"
    return f"{order['argv'][0]}: {error}"
