"""What a stop has to reach, and what it must not touch."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

from .case import Case, kill_from_elsewhere, press_ctrl_c
from .row import Fault, Logs, Others

DAEMON = '[sys.executable, "-c", "import time; time.sleep(600)  # daemon"]'
DEAF = '[sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)  # daemon"]'
DOUBLE_FORK = f"""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for place in (0, 1, 2):
            os.dup2(null, place)
        os.execve(sys.executable, {DAEMON}, {{}})
    os._exit(0)
os.wait()
"""
WORKERS = """
for _ in range(3):
    if os.fork() == 0:
        while True:
            time.sleep(0.1)  # as a data loader's worker: same words, same session
"""
LEFT = f"""
subprocess.Popen({DEAF}, **NULL, start_new_session=True)
subprocess.Popen({DEAF}, **NULL, process_group=0)
"""
DEAF_RANK = """
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
"""
HOPPER = """
if os.fork() == 0:
    while True:
        time.sleep(0.003)
        if os.fork():
            os._exit(0)
        os.setsid()
"""
OVERWRITE = """
fields = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
start, end = int(fields[47]), int(fields[48])
ctypes.memset(start, 120, end - start)
"""
Injection = Callable[[Case], None]


def has(text: str, count: int) -> Injection:
    """Make sure that each node has so many of what a stop has to reach: else the row would prove nothing."""

    def inject(case: Case) -> None:
        for k in case.fault.nodes:
            case.scene.wait_for_pids(k, text, count)

    return inject


def suspend_rank(case: Case) -> None:
    """SIGSTOP of the rank on node 2."""
    case.send(2, signal.SIGSTOP, *case.rank_pids(2))


def suspend_daemons(case: Case) -> None:
    """SIGSTOP of what a rank of each node has left behind."""
    for k in case.fault.nodes:
        case.send(k, signal.SIGSTOP, *case.scene.wait_for_pids(k, "# daemon"))


def same_words(case: Case) -> None:
    """Start the rank's own command line on node 2 once more, by hand."""
    (rank,) = [one for one in case.cluster.process_table(2) if one.pid == case.rank_pids(2)[0]]
    workdir = case.cluster.exec(2, ["readlink", f"/proc/{rank.pid}/cwd"]).stdout.strip()
    foreign = case.start_foreign(2, *rank.command.split(), folder=workdir, RANK="9", AORTA_OUTPUT_DIR="/tmp")
    assert foreign.command == rank.command


def kill_all_of_ours(case: Case) -> None:
    """SIGKILL of the launcher, and of supervisor and agent on node 2: nobody is left who could stop its ranks."""
    case.launcher.kill()
    case.send(2, signal.SIGKILL, case.supervisor(2), case.agent(2))
    case.wait_writing(2)


def rewrite_status(case: Case, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what a supervisor of node 2 that is no more has recorded."""
    status = case.status(2)
    change(status)
    (case.run_folder(2) / "status.json").write_text(json.dumps(status))


def reuse_pid(case: Case) -> None:
    """Record a foreign process with another start time, as if its pid had been one of the run's."""
    kill_all_of_ours(case)
    foreign = case.start_foreign(2, "sleep", "600.1")
    rewrite_status(case, lambda status: status["tree"].append([foreign.pid, foreign.started - 1]))


def other_boot(case: Case) -> None:
    """Record a foreign process truly, but under another boot's id, as if the node had been rebooted since."""
    kill_all_of_ours(case)
    foreign = case.start_foreign(2, "sleep", "600.1")

    def change(status: dict[str, Any]) -> None:
        status["tree"].append([foreign.pid, foreign.started])
        status["supervisor"]["boot_id"] = "00000000-0000-4000-8000-000000000000"

    rewrite_status(case, change)


def hide_and_kill(case: Case) -> None:
    """The ranks have no marker any more, and on node 2 nobody is left below whom they could be found."""
    for k in case.fault.nodes:
        environ = case.cluster.exec(k, ["cat", f"/proc/{case.rank_pids(k)[0]}/environ"]).stdout
        assert "AORTA" not in environ
    kill_all_of_ours(case)


def stopped(**own: Any) -> Fault:
    """Build a row whose run is stopped by Ctrl-C."""
    common: dict[str, Any] = {
        "says": ("stopping every node, 1 s grace", "KILLED"),
        "state": "killed",
        "exit_code": 130,
        "others": Others.STOPPED,
        "do": "Nothing.",
        "ending": press_ctrl_c,
    }
    return Fault(**common | own)


def killed(**own: Any) -> Fault:
    """Build a row whose launcher is gone and which `kill` ends."""
    common: dict[str, Any] = {
        "says": ("none left",),
        "state": "killed",
        "exit_code": 0,
        "others": Others.ON_UNTIL_TOLD,
        "do": "`aorta-launch kill`",
        "ending": kill_from_elsewhere,
        "logs": Logs.BEGINNING,
    }
    return Fault(**common | own)


STOPS = (
    stopped(
        id="workers",
        happens="Ranks have forked workers, as data loaders do.",
        setup=WORKERS,
        inject=has("rank.py", 5),
        long=True,
    ),
    stopped(
        id="daemons",
        happens="Ranks have left double-forked daemons with an empty environment.",
        setup=DOUBLE_FORK,
        inject=has("# daemon", 1),
    ),
    stopped(
        id="left-session-and-group",
        long=True,
        happens="Children of the ranks have left the session and the process group, and ignore TERM.",
        setup=LEFT,
        inject=has("# daemon", 2),
    ),
    stopped(id="rank-suspended", happens="A rank stands still (SIGSTOP).", inject=suspend_rank, long=True),
    stopped(
        id="daemon-suspended",
        long=True,
        happens="A double-forked daemon stands still (SIGSTOP).",
        setup=DOUBLE_FORK,
        inject=suspend_daemons,
    ),
    stopped(
        id="rank-ignores-term",
        happens="Ranks ignore TERM, INT and HUP.",
        setup=DEAF_RANK,
        inject=has("rank.py", 2),
        do="Nothing: KILL follows when the grace is over.",
        long=True,
    ),
    stopped(
        id="fork-hopper",
        happens="A child of each rank becomes another process, in another session, every 3 ms.",
        setup=HOPPER,
        inject=has("rank.py", 3),
    ),
    stopped(
        id="environment-overwritten",
        happens="Ranks have written over their environment, as programs do that set their own title.",
        setup=OVERWRITE,
        inject=has("xxxx", 0),
        long=True,
    ),
    stopped(
        id="foreign-same-words",
        happens="A process of the same user with the very command line of a rank runs beside the run.",
        inject=same_words,
        do="Nothing: it is not touched.",
    ),
    killed(
        id="environment-overwritten-nobody-left",
        happens="Ranks have written over their environment, and launcher, supervisor and agent were killed with SIGKILL.",
        setup=OVERWRITE,
        inject=hide_and_kill,
    ),
    killed(
        id="pid-used-again",
        happens="The pid of an ended process of the run belongs to a foreign process by now.",
        note="Pretended: the record of a killed supervisor gets the foreign pid with another start time.",
        inject=reuse_pid,
        do="`aorta-launch kill`; the foreign process is not signalled.",
    ),
    killed(
        id="record-of-another-boot",
        long=True,
        happens="The record of a killed supervisor is from before the node's last boot.",
        note="Pretended: its boot id is written over, and a foreign pid is put in.",
        inject=other_boot,
        never=("could not be asked",),
        do="`aorta-launch kill`; what the record names is not signalled, what carries the run's id is.",
    ),
)
