"""What is wrong with one node, with its network or with its copy of the code."""

from __future__ import annotations

import signal
import socket

from scenes import THIEF

from .row import Live
from .scripts import HEAD
from .stage import Stage

WAITS = HEAD + "wait_for_go()\nwork_on()\n"
SHORT = {"lost_after_s": 3, "connect_timeout_s": 2}
COPY = "copies/sampler"


def steal_port(stage: Stage) -> None:
    """Choose the master port, and have a program of node 1 wait to take it."""
    with socket.socket() as own:
        own.bind(("", 0))
        port = own.getsockname()[1]
    stage.words += ["--master-port", str(port)]


def take_port(stage: Stage) -> None:
    """Take the port between the check and the start."""
    thief = stage.start_beside(1, ["python3", "-c", THIEF])
    assert thief.stdin is not None
    stage.launcher.wait_for_text(" port ", 60)
    thief.stdin.write(stage.launcher.stderr.split(" port ")[1].split()[0] + "\n")
    thief.stdin.flush()


def give_module_to_node_1(stage: Stage) -> None:
    """Install a package beside the project on node 1 alone."""
    stage.put(1, "extras/ropemix/__init__.py", "BASE = 10000\n")
    stage.words += ["--env", f"PYTHONPATH={stage.home(1)}/extras"]


def write_copies(stage: Stage, own: dict[int, str]) -> None:
    """Lay the code down on every node by hand; a node's own version of a file where it has one."""
    for k in stage.numbers:
        stage.put(k, f"{COPY}/job.py", stage.row.script)
        stage.put(k, f"{COPY}/mixing.py", own.get(k, own[0]))
    stage.words += ["--no-push", "--workdir", f"{stage.home(1)}/{COPY}"]


def write_two_versions(stage: Stage) -> None:
    """Node 2 has an older version of a module."""
    new = "def blend(first, second, *, share=0.5):\n    return first * share + second * (1 - share)\n"
    write_copies(
        stage, {0: new, 2: new.replace("*, share=0.5", "share_of_first=0.5").replace("share +", "share_of_first +")}
    )


def cut_link(stage: Stage) -> None:
    """Pull node 2's cable."""
    stage.wait_said()
    stage.undo.callback(stage.cluster.undrop, 2)
    stage.cluster.drop(2)


def plug_in_and_kill(stage: Stage) -> None:
    """Plug it in again and stop what ran on there."""
    stage.cluster.undrop(2)
    done = stage.scene.verb("kill", stage.scene.experiment.name, "--grace", "1s")
    assert done.exit_code == 0, done


def power_off(stage: Stage) -> None:
    """Power node 2 off."""
    stage.wait_said()
    stage.cluster.kill_node(2)


def kill_everything(stage: Stage) -> None:
    """SIGKILL of every process of ours on node 2 at once, while the node itself stays up."""
    stage.wait_said()
    ours = [process for process in stage.cluster.process_table(2) if process not in stage.scene.before[2]]
    stage.cluster.exec(2, ["sh", "-c", "kill -9 " + " ".join(str(process.pid) for process in ours)])


def kill_agent(stage: Stage) -> None:
    """SIGKILL of the agent on node 2."""
    stage.wait_said()
    (pid,) = stage.scene.pids(2, "torch.distributed.run")
    stage.cluster.kill_process(2, pid, signal.SIGKILL)


def kill_supervisor(stage: Stage) -> None:
    """SIGKILL of the supervisor on node 2."""
    stage.wait_said()
    (pid,) = stage.scene.pids(2, "supervisor.py")
    stage.cluster.kill_process(2, pid, signal.SIGKILL)


PORT_TAKEN = Live(
    id="port-taken",
    happens="The master port that the user has chosen is taken between the check and the start.",
    script=WAITS,
    prepare=steal_port,
    inject=take_port,
    family=("PORT",),
    node_rank=0,
    code=1,
    word="port|in use",
    says="EADDRINUSE",
)

NO_MODULE = Live(
    id="module-missing-on-one-node",
    happens="A package that node 1 has and node 2 has not.",
    layout=(1, 2),
    script=HEAD
    + """
def load_mixer():
    import ropemix
    return ropemix.BASE

time.sleep(0.4)
load_mixer()
work_on()
""",
    prepare=give_module_to_node_1,
    family=("ENV",),
    ranks=(1, 2),
    node_rank=1,
    code=1,
    where="in load_mixer",
    word="ropemix",
    says="ropemix",
)

OTHER_CODE = Live(
    id="other-code-on-one-node",
    happens="Without push: node 2 has an older version of a module, whose function takes other arguments.",
    layout=(2, 1),
    script=HEAD
    + """
from mixing import blend

time.sleep(0.4)
print(blend(1.0, 3.0, share=0.25), flush=True)
work_on()
""",
    prepare=write_two_versions,
    family=("DEPLOY", "CODE"),
    rank=2,
    node_rank=1,
    code=1,
    word="other code|unexpected keyword argument",
    says="unexpected keyword argument",
)

LINK_CUT = Live(
    id="link-cut",
    happens="The link to node 2 is cut for good.",
    layout=(1, 2),
    script=WAITS,
    settings=SHORT,
    inject=cut_link,
    mend=plug_in_and_kill,
    family=("NODE_LOST",),
    node_rank=1,
    state="lost",
    exit_code=4,
    word="lost",
    long=True,
)

NODE_OFF = Live(
    id="node-off",
    happens="Node 2 loses its power.",
    layout=(1, 2),
    script=WAITS,
    settings=SHORT,
    inject=power_off,
    fresh=True,
    family=("NODE_LOST",),
    node_rank=1,
    state="lost",
    exit_code=4,
    word="lost",
    long=True,
)

NODE_SWEPT = Live(
    id="node-swept",
    happens="Every process of the run on node 2 is killed at once, supervisor and links included; the node stays up.",
    layout=(1, 2),
    script=WAITS,
    settings=SHORT,
    inject=kill_everything,
    family=("KILLED", "NODE_LOST"),
    node_rank=1,
    word="killed|lost",
)

AGENT_KILLED = Live(
    id="agent-killed",
    happens="SIGKILL of the agent on node 2.",
    layout=(1, 2),
    script=WAITS,
    inject=kill_agent,
    family=("KILLED",),
    node_rank=1,
    signal="SIGKILL",
    word="agent",
)

SUPERVISOR_KILLED = Live(
    id="supervisor-killed",
    happens="SIGKILL of the supervisor on node 2.",
    script=WAITS,
    inject=kill_supervisor,
    family=("KILLED",),
    node_rank=1,
    word="supervisor",
    long=True,
)

TIME_LIMIT = Live(
    id="time-limit",
    happens="The time limit of the run is over while all ranks work.",
    layout=(2, 1),
    script=WAITS,
    words=("--timeout", "2s"),
    family=("TIME_LIMIT",),
    node_rank=None,
    state="timed out",
    exit_code=124,
    word="time limit",
    long=True,
)

PLACES = (
    PORT_TAKEN,
    NO_MODULE,
    OTHER_CODE,
    NODE_OFF,
    AGENT_KILLED,
    TIME_LIMIT,
    LINK_CUT,
    NODE_SWEPT,
    SUPERVISOR_KILLED,
)
