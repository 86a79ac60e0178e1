"""Faults of the controller, the process on the launch host that watches a run, and what `attach` and `status` make of them."""

from __future__ import annotations

import json
import os
import random
import signal
import threading

from cluster import Completed

from orchestrator.values import Exit

from .case import Case
from .processes import MEND, THREE, WHO, act_on_2
from .row import Fault, First, Others

TAKEN = "had no controller; a new one has taken it over"
ATTACH = "`aorta-launch attach`; no byte is lost or doubled."
TIMES = 20


def kill_controller(case: Case) -> None:
    """SIGKILL of the controller; the ranks write on."""
    case.kill_controller()
    case.wait_writing(*case.fault.nodes)


def attach_and_finish(case: Case) -> Completed:
    """Attach from another shell, see lines come again, and let the run end."""
    attached = case.start_attach()
    attached.wait_for_text(TAKEN, 60)
    case.wait_flowing()
    case.finish()
    return attached.wait(60)


def end_alone(case: Case) -> None:
    """Let the run end while nobody watches it."""
    kill_controller(case)
    case.finish()
    case.scene.wait_empty(30)


def attach(case: Case) -> Completed:
    """Attach from another shell."""
    return case.attach()


def raise_alone(case: Case) -> None:
    """Let a rank of node 2 raise while nobody watches: that node is empty at once, the others know nothing."""
    kill_controller(case)
    act_on_2(case)
    case.cluster.wait_process_table(2, case.scene.before[2], 15)
    case.wait_writing(1, 3)


def kill_agent_alone(case: Case) -> None:
    """SIGKILL of the agent of node 2 while nobody watches: its node is empty at once."""
    kill_controller(case)
    case.send(2, signal.SIGKILL, case.agent(2))
    case.cluster.wait_process_table(2, case.scene.before[2], 15)
    case.wait_writing(1)


def ask_status(case: Case) -> Completed:
    """`status` starts a controller, which stops the others."""
    case.scene.verb("status", case.run_id)
    case.scene.wait_empty(30)
    return case.attach()


def reboot_launch_host(case: Case) -> None:
    """Kill the controller, and let its pid belong to somebody else."""
    kill_controller(case)
    for suffix in ("json", "lock"):
        path = case.remembered(suffix)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": os.getpid()}) + "\n")


def let_lease_end(case: Case) -> None:
    """Leave the nodes alone until they end by themselves."""
    case.kill_controller()
    case.scene.wait_empty(30)


def suspend_launcher(case: Case) -> None:
    """Ctrl-Z, and `fg` later."""
    os.killpg(case.launcher.process.pid, signal.SIGSTOP)
    case.wait_writing(*case.fault.nodes)
    os.killpg(case.launcher.process.pid, signal.SIGCONT)
    case.wait_flowing()
    case.finish()


def suspend_for_good(case: Case) -> None:
    """Ctrl-Z, and no `fg`."""
    os.killpg(case.launcher.process.pid, signal.SIGSTOP)
    case.wait_writing(*case.fault.nodes)


def kill_beside_suspended(case: Case) -> Completed:
    """`kill` from another shell; the launch that stood still learns of it when it goes on."""
    done = case.kill()
    assert not [pid for k in case.fault.nodes for pid in case.scene.pids(k, case.run_id)], "only its links are left"
    os.killpg(case.launcher.process.pid, signal.SIGCONT)
    assert case.launcher.wait(30).exit_code == Exit.STOPPED
    return done


def kill_viewer(case: Case) -> None:
    """SIGKILL of `attach`, which only shows."""
    viewer = case.start_attach()
    viewer.wait_for_text("[0:0] ", 60)
    viewer.kill()
    case.wait_flowing()
    case.finish()


def kill_often(case: Case) -> None:
    """Kill whoever controls the run, 20 times, each time at a random moment after `attach` has been called."""
    seed = int(os.environ.get("AORTA_TESTS_SEED", str(random.SystemRandom().randrange(10**6))))
    print(f"AORTA_TESTS_SEED={seed}")
    dice = random.Random(seed)
    case.kill_controller()
    for _ in range(TIMES - 1):
        viewer = case.start_attach()
        viewer.wait_for_text(TAKEN, 60)
        threading.Event().wait(dice.uniform(0.0, 1.5))
        viewer.kill()
        case.kill_controller()


CONTROLLERS = (
    Fault(
        id="controller-killed",
        long=True,
        happens="SIGKILL of the controller of a detached run.",
        says=(TAKEN, "SUCCEEDED"),
        state="succeeded",
        exit_code=0,
        others=Others.GO_ON,
        do=ATTACH,
        inject=kill_controller,
        ending=attach_and_finish,
        detached=True,
    ),
    Fault(
        id="launcher-killed-then-attach",
        happens="SIGKILL of the foreground launch; then `attach`.",
        says=(TAKEN, "SUCCEEDED"),
        state="succeeded",
        exit_code=0,
        others=Others.GO_ON,
        do=ATTACH,
        inject=kill_controller,
        ending=attach_and_finish,
        long=True,
    ),
    Fault(
        id="controller-killed-run-ends",
        happens="SIGKILL of the controller, and the run ends while nobody watches it.",
        says=("SUCCEEDED",),
        state="succeeded",
        exit_code=0,
        others=Others.GO_ON,
        do="`aorta-launch attach`: logs, outputs and verdict are completed.",
        inject=end_alone,
        ending=attach,
        detached=True,
        long=True,
    ),
    Fault(
        id="controller-dead-rank-raises",
        long=True,
        happens="SIGKILL of the controller, and a rank raises on node 2 of 3 while nobody watches; then `attach`.",
        says=("RuntimeError: boom",),
        state="failed",
        exit_code=1,
        first=First(1, 1, "RuntimeError: boom"),
        others=Others.ON_UNTIL_TOLD,
        note="Node 2 ends at once what ran there.",
        do="`aorta-launch attach`: it stops the other nodes. " + MEND,
        inject=raise_alone,
        ending=attach,
        act='raise RuntimeError("boom")',
        nodes=THREE,
        detached=True,
    ),
    Fault(
        id="controller-dead-rank-raises-status",
        happens="SIGKILL of the controller, and a rank raises on node 2 of 3 while nobody watches; then `status`.",
        says=("RuntimeError: boom",),
        state="failed",
        exit_code=1,
        first=First(1, 1, "RuntimeError: boom"),
        others=Others.ON_UNTIL_TOLD,
        do="`aorta-launch status`: it stops the other nodes. " + MEND,
        inject=raise_alone,
        ending=ask_status,
        act='raise RuntimeError("boom")',
        nodes=THREE,
        detached=True,
        long=True,
    ),
    Fault(
        id="controller-dead-agent-killed",
        happens="SIGKILL of the controller, and then of an agent (torchrun) while nobody watches.",
        says=("the agent was killed by SIGKILL",),
        state="failed",
        exit_code=1,
        first=First(1, None, "the agent was killed by SIGKILL"),
        others=Others.ON_UNTIL_TOLD,
        note="Its node ends at once what ran there.",
        do="`aorta-launch attach`: it stops the other nodes. " + WHO,
        inject=kill_agent_alone,
        ending=attach,
        detached=True,
        long=True,
    ),
    Fault(
        id="launch-host-rebooted",
        happens="The launch host is rebooted in mid-run.",
        note="Pretended: the controller is killed with SIGKILL, its lock and socket stay, its pid belongs to somebody else.",
        says=(TAKEN, "SUCCEEDED"),
        state="succeeded",
        exit_code=0,
        others=Others.GO_ON,
        do=ATTACH,
        inject=reboot_launch_host,
        ending=attach_and_finish,
        detached=True,
        long=True,
    ),
    Fault(
        id="lease-ends",
        happens="SIGKILL of the controller of a run with `on_disconnect: stop`.",
        says=("no controller for 2 s",),
        state="killed",
        exit_code=143,
        others=Others.STOPPED,
        do="`aorta-launch attach`: logs, outputs and verdict are completed.",
        inject=let_lease_end,
        ending=attach,
        settings={"on_disconnect": "stop", "lease_s": 2},
        detached=True,
        long=True,
    ),
    Fault(
        id="launcher-suspended",
        happens="The foreground launch stands still for a while (Ctrl-Z, and `fg` later).",
        says=("SUCCEEDED",),
        state="succeeded",
        exit_code=0,
        others=Others.GO_ON,
        do="Nothing.",
        inject=suspend_launcher,
        long=True,
    ),
    Fault(
        id="launcher-suspended-then-kill",
        happens="The foreground launch stands still (Ctrl-Z); then `kill` from another shell.",
        says=("none left",),
        state="killed",
        exit_code=0,
        others=Others.ON_UNTIL_TOLD,
        do="`aorta-launch kill`; `fg` then shows how the run ended.",
        inject=suspend_for_good,
        ending=kill_beside_suspended,
        long=True,
    ),
    Fault(
        id="attach-killed",
        happens="SIGKILL of `attach`, which only shows a run.",
        says=("SUCCEEDED",),
        state="succeeded",
        exit_code=0,
        others=Others.GO_ON,
        do="`aorta-launch attach`",
        inject=kill_viewer,
        ending=attach,
        detached=True,
        long=True,
    ),
    Fault(
        id="controller-killed-20-times",
        happens="SIGKILL of the controller at 20 random moments of one run, `attach` from another shell each time.",
        says=(TAKEN, "SUCCEEDED"),
        state="succeeded",
        exit_code=0,
        others=Others.GO_ON,
        do=ATTACH,
        inject=kill_often,
        ending=attach_and_finish,
        detached=True,
        long=True,
    ),
)
