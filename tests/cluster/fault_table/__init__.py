"""What can go wrong in mid-run, as data: every row of docs/faults.md, and how a test makes it happen."""

from __future__ import annotations

from dataclasses import dataclass

from .controllers import CONTROLLERS
from .launch_host import LAUNCH_HOST
from .links import LINKS
from .nodes import NODES
from .play import parametrize, play
from .processes import PROCESSES
from .row import Fault
from .stops import STOPS

__all__ = [
    "CONTROLLERS",
    "GROUPS",
    "LAUNCH_HOST",
    "LINKS",
    "NODES",
    "PROCESSES",
    "STOPS",
    "Fault",
    "Group",
    "parametrize",
    "play",
]


@dataclass(frozen=True)
class Group:
    """One table of docs/faults.md and the file of its tests."""

    title: str
    file: str
    faults: tuple[Fault, ...]
    about: str


GROUPS = (
    Group(
        "Processes of the run",
        "test_faults_processes.py",
        PROCESSES,
        "A rank, an agent (torchrun) or a supervisor ends or stands still.",
    ),
    Group(
        "What a stop reaches",
        "test_faults_stops.py",
        STOPS,
        "Stopped by Ctrl-C where nothing else is said. Afterwards every node runs exactly what it ran before.",
    ),
    Group(
        "Links and sshd",
        "test_faults_links.py",
        LINKS,
        "The ranks need no link to the launch host: they write into files on their node, and the launch host reads on where it stopped.",
    ),
    Group(
        "Nodes",
        "test_faults_nodes.py",
        NODES,
        "Disk, HOME, /tmp, clock and power.",
    ),
    Group(
        "Launch host",
        "test_faults_launch_host.py",
        LAUNCH_HOST,
        "The terminal, the launcher, its disk and its port, and what other shells do.",
    ),
    Group(
        "Controller",
        "test_faults_controllers.py",
        CONTROLLERS,
        "The controller is the process on the launch host that watches a run: the launch itself, or one in the background. "
        "While none lives, nodes go on (`on_disconnect: keep`); a node on which something fails ends what runs there, and "
        "the others learn of it once `attach` or `status` has started a new controller.",
    ),
)
