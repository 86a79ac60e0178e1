"""Faults of the run's own processes: a rank, an agent or a supervisor that ends or stands still."""

from __future__ import annotations

import signal
from collections.abc import Callable

from .case import Case, press_ctrl_c
from .row import Fault, First, Others

STOPPING = "stopping the other nodes"
MEND = "Read the traceback and the log that the verdict names, mend the script, launch again."
WHO = "Find out who sent the signal: `dmesg` on that node tells of the kernel's out-of-memory killer."
THREE = (1, 2, 3)


def act_on_2(case: Case) -> None:
    """Let the rank of node 2 do it itself."""
    case.tell(2, "act")


def kill_rank(number: int) -> Callable[[Case], None]:
    """Signal the first rank of node 2 from outside."""

    def inject(case: Case) -> None:
        case.send(2, number, case.rank_pids(2)[0])

    return inject


def kill_agent(case: Case) -> None:
    """SIGKILL of the agent on node 2."""
    case.send(2, signal.SIGKILL, case.agent(2))


def kill_supervisor(case: Case) -> None:
    """SIGKILL of the supervisor on node 2."""
    case.send(2, signal.SIGKILL, case.supervisor(2))


def kill_both(case: Case) -> None:
    """SIGKILL of both at once: nobody is left on the node who could signal anybody."""
    case.send(2, signal.SIGKILL, case.supervisor(2), case.agent(2))


def suspend_supervisor(case: Case) -> None:
    """SIGSTOP of the supervisor on node 2; the ranks write on."""
    case.send(2, signal.SIGSTOP, case.supervisor(2))
    case.wait_flowing()


def suspend_and_wake_supervisor(case: Case) -> None:
    """The same, with SIGCONT before the end."""
    pid = case.supervisor(2)
    case.send(2, signal.SIGSTOP, pid)
    case.wait_flowing()
    case.send(2, signal.SIGCONT, pid)
    case.finish()


def suspend_agent(case: Case) -> None:
    """SIGSTOP of the agent on node 2; the ranks write on."""
    case.send(2, signal.SIGSTOP, case.agent(2))
    case.wait_flowing()


def end_early(case: Case) -> None:
    """Let the rank of node 2 end with 0 long before the others; those are told to finish later."""
    case.tell(2, "finish")
    case.wait_flowing(1, 3)
    case.finish()


PROCESSES = (
    Fault(
        id="rank-raises",
        happens="A rank raises on node 2 of 3.",
        says=("rank 1 on {node2} ended with exit code 1", STOPPING, "RuntimeError: boom"),
        state="failed",
        exit_code=1,
        first=First(1, 1, "RuntimeError: boom"),
        others=Others.STOPPED,
        do=MEND,
        inject=act_on_2,
        act='raise RuntimeError("boom")',
        nodes=THREE,
    ),
    Fault(
        id="rank-exits-7",
        happens="A rank ends with exit code 7 and says nothing.",
        says=("rank 1 on {node2} ended with exit code 7", STOPPING),
        state="failed",
        exit_code=1,
        first=First(1, 1, "exit code 7"),
        others=Others.STOPPED,
        do=MEND,
        inject=act_on_2,
        act="os._exit(7)",
        long=True,
    ),
    Fault(
        id="rank-killed",
        long=True,
        happens="SIGKILL of one of four ranks, as the kernel sends it when memory runs out.",
        says=("rank 2 on {node2} ended with signal 9", STOPPING, "killed by SIGKILL"),
        state="failed",
        exit_code=1,
        first=First(1, 2, "killed by SIGKILL"),
        others=Others.STOPPED,
        do=WHO,
        inject=kill_rank(signal.SIGKILL),
        processes=2,
    ),
    Fault(
        id="rank-crashes",
        happens="A rank crashes in native code (SIGSEGV).",
        says=("rank 1 on {node2} ended with signal 11", STOPPING, "killed by SIGSEGV"),
        state="failed",
        exit_code=1,
        first=First(1, 1, "killed by SIGSEGV"),
        others=Others.STOPPED,
        do="Set PYTHONFAULTHANDLER=1 with `--env` and launch again: the stack is then in the rank's .err file.",
        inject=act_on_2,
        act="signal.raise_signal(signal.SIGSEGV)",
        long=True,
    ),
    Fault(
        id="rank-ends-early",
        happens="A rank ends with exit code 0 long before the others.",
        says=("SUCCEEDED",),
        state="succeeded",
        exit_code=0,
        others=Others.GO_ON,
        do="Nothing: exit code 0 is no failure.",
        inject=end_early,
        nodes=THREE,
        long=True,
    ),
    Fault(
        id="agent-killed",
        happens="SIGKILL of the agent (torchrun) on a node by somebody else; its ranks would run on without it.",
        says=("the agent on {node2} ended with signal 9", STOPPING),
        state="failed",
        exit_code=1,
        first=First(1, None, "the agent was killed by SIGKILL"),
        others=Others.STOPPED,
        do=WHO,
        inject=kill_agent,
        processes=2,
    ),
    Fault(
        id="supervisor-killed",
        happens="SIGKILL of the supervisor on a node.",
        says=("the supervisor on {node2} was killed", STOPPING),
        state="failed",
        exit_code=1,
        first=First(1, None, "the supervisor was killed"),
        others=Others.STOPPED,
        do=WHO,
        inject=kill_supervisor,
        processes=2,
    ),
    Fault(
        id="supervisor-and-agent-killed",
        happens="SIGKILL of supervisor and agent of a node at the same moment.",
        says=("the supervisor on {node2} was killed", STOPPING),
        state="failed",
        exit_code=1,
        first=First(1, None, "the supervisor was killed"),
        others=Others.STOPPED,
        do=WHO,
        inject=kill_both,
        processes=2,
    ),
    Fault(
        id="supervisor-suspended",
        happens="SIGSTOP of a supervisor; the run goes on, and then it is stopped by Ctrl-C.",
        says=("stopping every node", "KILLED"),
        state="killed",
        exit_code=130,
        others=Others.STOPPED,
        do="Nothing: a supervisor that stands still is ended together with all that is below it.",
        inject=suspend_supervisor,
        ending=press_ctrl_c,
        processes=2,
    ),
    Fault(
        id="supervisor-suspended-and-woken",
        happens="SIGSTOP of a supervisor, and SIGCONT later.",
        says=("SUCCEEDED",),
        state="succeeded",
        exit_code=0,
        others=Others.GO_ON,
        do="Nothing.",
        inject=suspend_and_wake_supervisor,
        long=True,
    ),
    Fault(
        id="agent-suspended",
        happens="SIGSTOP of an agent; the ranks go on, and then the run is stopped by Ctrl-C.",
        says=("stopping every node", "KILLED"),
        state="killed",
        exit_code=130,
        others=Others.STOPPED,
        do="Nothing: it takes the whole grace, because an agent that stands still passes no TERM on.",
        inject=suspend_agent,
        ending=press_ctrl_c,
        long=True,
    ),
    Fault(
        id="real-rank-killed",
        happens="SIGKILL of a rank that is in a collective; the ranks of the other nodes fail because of it (torchrun, gloo).",
        says=("rank 1 on {node2} ended with signal 9", STOPPING, "killed by SIGKILL"),
        state="failed",
        exit_code=1,
        first=First(1, 1, "killed by SIGKILL"),
        others=Others.STOPPED,
        do=WHO,
        inject=kill_rank(signal.SIGKILL),
        nodes=THREE,
        real_torch=True,
        long=True,
    ),
    Fault(
        id="real-rank-raises",
        happens="A rank raises between collectives; the ranks of the other nodes fail because of it (torchrun, gloo).",
        says=("rank 1 on {node2} ended with exit code 1", STOPPING, "RuntimeError: boom"),
        state="failed",
        exit_code=1,
        first=First(1, 1, "RuntimeError: boom"),
        others=Others.STOPPED,
        do=MEND,
        inject=act_on_2,
        act='raise RuntimeError("boom")',
        nodes=THREE,
        real_torch=True,
        long=True,
    ),
)
