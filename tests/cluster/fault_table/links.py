"""Faults of links, of sshd and of what the launch host knows of it."""

from __future__ import annotations

import signal
import threading
from typing import Any

from cluster import Completed, wait_for

from .case import Case
from .processes import MEND, WHO
from .row import Fault, First, Logs, Others

BACK = "{node2}: the link is back, nothing was missed"
SILENT = "{node2}: the link is silent"
LOST_AFTER_S = 1
LOST = {"lost_after_s": LOST_AFTER_S, "connect_timeout_s": 2}
CUT_S = 20.0
OFTEN = 10
ATTACH_LATER = "When the node answers again: `aorta-launch attach` ends what ran on there and fetches what it wrote."
KILL_LATER = "When the node answers again: `aorta-launch kill` ends what ran on there, `attach` fetches what it wrote."


def kill_session(case: Case) -> None:
    """SIGKILL of the processes by which sshd serves the launch host on node 2."""
    case.kill_links(2)
    case.launcher.wait_for_text("the link is back", 60)
    case.wait_flowing()
    case.finish()


def kill_all_sessions(case: Case) -> None:
    """The same on every node at once."""
    for k in case.fault.nodes:
        case.kill_links(k)
    case.wait_flowing()
    case.finish()


def restart_sshd(case: Case) -> None:
    """Restart sshd with everything that belongs to it, as systemd does when told to."""
    case.cluster.stop_sshd(2)
    case.kill_links(2)
    case.launcher.wait_for_text("the link is silent", 60)
    case.cluster.start_sshd(2)
    case.launcher.wait_for_text("the link is back", 60)
    case.wait_flowing()
    case.finish()


def restart_listener(case: Case) -> None:
    """Restart the listener alone: sessions live on."""
    case.cluster.restart_sshd(2)
    case.wait_flowing()
    case.finish()


def stop_listener(case: Case) -> None:
    """End the listener; it comes back after the row."""
    case.cluster.stop_sshd(2)
    case.undo.callback(case.cluster.start_sshd, 2)
    case.wait_flowing()
    case.finish()


def stop_sshd(case: Case) -> None:
    """End the listener and the sessions."""
    case.cluster.stop_sshd(2)
    case.mend = lambda: case.cluster.start_sshd(2)
    case.kill_links(2)


def hang_sshd(case: Case) -> None:
    """Let sshd take connections and say nothing, while the open link breaks."""
    case.cluster.freeze_sshd(2)
    case.undo.callback(case.cluster.thaw_sshd, 2)
    case.kill_links(2)
    case.launcher.wait_for_text("the link is silent", 60)
    case.cluster.thaw_sshd(2)
    case.launcher.wait_for_text("the link is back", 60)
    case.wait_flowing()
    case.finish()


def change_known_hosts(case: Case) -> None:
    """Give node 2 another key in known_hosts, then break the link."""
    path = case.cluster.known_hosts
    text = path.read_text()
    case.mend = lambda: path.write_text(text)
    first, second, *rest = text.splitlines()
    path.write_text("\n".join([first, " ".join([second.split()[0], *first.split()[1:]]), *rest]) + "\n")
    case.kill_links(2)


def kill_session_often(case: Case) -> None:
    """SIGKILL of the same ten times, each time as soon as lines come again."""
    for _ in range(OFTEN):
        case.kill_links(2)
        case.wait_flowing()
    case.finish()


def raise_unheard(case: Case) -> None:
    """Let the rank of node 2 raise while that node cannot be reached."""
    stop_sshd(case)
    case.launcher.wait_for_text("the link is silent", 60)
    case.tell(2, "act")
    wait_for(lambda: not case.scene.pids(2, "rank.py"), 30, "node 2 has ended what ran there")
    case.wait_flowing(1, 3)
    case.mend()


def kill_supervisor_unheard(case: Case) -> None:
    """SIGKILL of the supervisor of node 2 while that node cannot be reached."""
    supervisor = case.supervisor(2)
    stop_sshd(case)
    case.launcher.wait_for_text("the link is silent", 60)
    case.send(2, signal.SIGKILL, supervisor)
    case.wait_flowing(1, 3)
    case.mend()


def cut_and_restore(case: Case) -> None:
    """Pull the cable of node 2 for 20 s."""
    case.cluster.link(2, "down")
    threading.Event().wait(CUT_S)  # the length of the cut is the subject
    case.cluster.link(2, "up")
    case.wait_flowing()
    case.finish()


def cut_and_restore_late(case: Case) -> None:
    """Pull the cable of node 2 until the launch host calls the link silent."""
    case.cluster.link(2, "down")
    case.launcher.wait_for_text("the link is silent", 60)
    case.cluster.link(2, "up")
    case.launcher.wait_for_text("the link is back", 60)
    case.wait_flowing()
    case.finish()


def cut(case: Case) -> None:
    """Pull the cable of node 2; nobody ever tells its ranks."""
    case.cluster.link(2, "down")
    case.mend = lambda: case.cluster.link(2, "up")


def vanish(case: Case) -> None:
    """Let packets to and from node 2 vanish in both directions."""
    case.cluster.drop(2)
    case.mend = lambda: case.cluster.undrop(2)


def starve(case: Case) -> None:
    """Leave node 2 a link of 200 kbit/s."""
    case.cluster.rate(2, "200kbit")
    case.wait_flowing(deadline_s=60)
    case.finish()


def lost_then_attached(case: Case) -> Completed:
    """Wait for the launcher's end, let the node answer again, and attach: that stops what ran on there."""
    done = case.launcher.wait(90)
    if not case.fault.real_torch:  # a rank that waits for its peers writes nothing
        case.wait_writing(2)
    case.mend()
    attached = case.attach()
    assert attached.exit_code == done.exit_code, attached
    return done


def lost_then_killed(case: Case) -> Completed:
    """Wait for the launcher's end, let the node answer again, end what ran on there, and fetch what it wrote."""
    done = case.launcher.wait(90)
    if case.fault.logs is not Logs.HERE_ALONE:
        case.wait_writing(2)
    case.mend()
    killed = case.kill()
    assert killed.exit_code == 0, killed
    told = killed.stdout.count("none left") + killed.stdout.count("nothing of this run")
    assert told == len(case.fault.nodes), killed
    return done


def goes_on(**own: Any) -> Fault:
    """Build a row that the run survives."""
    common: dict[str, Any] = {
        "says": (SILENT, BACK, "SUCCEEDED"),
        "state": "succeeded",
        "exit_code": 0,
        "others": Others.GO_ON,
        "do": "Nothing: no byte is lost or doubled.",
    }
    return Fault(**common | own)


def lost(**own: Any) -> Fault:
    """Build a row in which node 2 counts as lost; its ranks run on until it can be told."""
    common: dict[str, Any] = {
        "says": (SILENT, "{node2} is lost", "stopping the other nodes", "NOT ASKED"),
        "state": "lost",
        "exit_code": 4,
        "first": First(1),
        "others": Others.STOPPED,
        "do": ATTACH_LATER,
        "ending": lost_then_attached,
        "settings": LOST,
    }
    return Fault(**common | own)


LINKS = (
    goes_on(
        id="session-killed",
        happens="SIGKILL of the processes by which sshd serves the launch host on a node.",
        inject=kill_session,
    ),
    goes_on(
        id="all-sessions-killed",
        happens="SIGKILL of the processes by which sshd serves the launch host, on all nodes at once.",
        inject=kill_all_sessions,
        long=True,
    ),
    goes_on(
        id="session-killed-10-times",
        happens="SIGKILL of the same ten times, each time as soon as the link is back.",
        inject=kill_session_often,
        long=True,
    ),
    Fault(
        id="rank-raises-unheard",
        happens="A rank raises on node 2 of 3 while that node cannot be reached; some seconds later it can.",
        says=(SILENT, BACK, "RuntimeError: boom"),
        state="failed",
        exit_code=1,
        first=First(1, 1, "RuntimeError: boom"),
        others=Others.STOPPED,
        do=MEND,
        inject=raise_unheard,
        act='raise RuntimeError("boom")',
        nodes=(1, 2, 3),
        fresh=True,
        long=True,
    ),
    Fault(
        id="supervisor-killed-unheard",
        happens="SIGKILL of a supervisor while its node cannot be reached; some seconds later it can.",
        says=(SILENT, "the supervisor on {node2} was killed"),
        state="failed",
        exit_code=1,
        first=First(1, None, "the supervisor was killed"),
        others=Others.STOPPED,
        do=WHO,
        inject=kill_supervisor_unheard,
        nodes=(1, 2, 3),
        fresh=True,
        long=True,
    ),
    goes_on(
        id="sshd-restarted", happens="sshd is restarted, its sessions end with it.", inject=restart_sshd, long=True
    ),
    goes_on(
        id="listener-restarted",
        happens="sshd is restarted, its sessions live on.",
        says=("SUCCEEDED",),
        inject=restart_listener,
        long=True,
    ),
    goes_on(
        id="listener-stopped",
        happens="sshd takes no new connections for the rest of the run; the open ones live on.",
        says=("SUCCEEDED",),
        inject=stop_listener,
        long=True,
    ),
    goes_on(
        id="sshd-hangs",
        happens="A link breaks while sshd hangs: it takes connections and says nothing, and some seconds later it goes on.",
        inject=hang_sshd,
        settings={"connect_timeout_s": 1},
        long=True,
    ),
    lost(
        id="sshd-gone", happens="sshd is stopped for good with its sessions.", inject=stop_sshd, fresh=True, long=True
    ),
    lost(
        id="sshd-gone-then-kill",
        happens="sshd is stopped for good with its sessions; then `kill` once it is back.",
        do=KILL_LATER,
        inject=stop_sshd,
        ending=lost_then_killed,
        fresh=True,
        long=True,
    ),
    lost(
        id="known-hosts-changed",
        happens="The node's key in known_hosts is changed in mid-run, and then the link breaks.",
        says=(SILENT, "{node2} is lost", "host key", "stopping the other nodes", "NOT ASKED"),
        inject=change_known_hosts,
        fresh=True,
        long=True,
        do="Find out why the key differs, mend known_hosts, then `aorta-launch attach`.",
    ),
    goes_on(
        id="cut-20-s",
        happens="The link to a node is cut for 20 s.",
        inject=cut_and_restore,
        says=("SUCCEEDED",),
        fresh=True,
        long=True,
    ),
    goes_on(
        id="cut-until-silent",
        happens="The link to a node is cut until the launch host calls it silent, then restored.",
        inject=cut_and_restore_late,
        fresh=True,
        long=True,
    ),
    goes_on(
        id="slow-link",
        happens="The link to a node drops to 200 kbit/s.",
        inject=starve,
        says=("SUCCEEDED",),
        fresh=True,
        long=True,
    ),
    lost(id="cut-for-good", happens="The link to a node is cut for good.", inject=cut, fresh=True, long=True),
    lost(
        id="real-cut-for-good",
        happens="The link to a node is cut for good while the ranks are in a collective (torchrun, gloo).",
        inject=cut,
        nodes=(1, 2, 3),
        real_torch=True,
        fresh=True,
        long=True,
    ),
    lost(
        id="packets-vanish",
        happens="A firewall begins to drop all packets of a node, those of open connections too.",
        inject=vanish,
        fresh=True,
        long=True,
    ),
)
