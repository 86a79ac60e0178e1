"""Begins to dial the nodes while the rest of this program is still being loaded, unless they are so many that it would wait for them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from orchestrator.environment import settings_env
from orchestrator.errors import AortaError
from orchestrator.nodelist import read_node_list, select_nodes
from orchestrator.phases.connect import close_links, connect
from orchestrator.phases.later import Later
from orchestrator.phases.script import check_script
from orchestrator.transport import Link
from orchestrator.transport.porter import pack_ahead
from orchestrator.values import Node

if TYPE_CHECKING:
    from orchestrator.settings import Settings


FEW = 16
"""Nodes whose logins leave time for other work. Not below mesh.MOST_NODES: of so few, each is asked for its ways first,
and what pack_ahead builds would be sent to none."""


class Dialled:
    """Nodes that are being dialled."""

    def __init__(self, nodes: Sequence[Node], settings: Settings) -> None:
        self._nodes = tuple(nodes)
        self._changing = threading.Lock()
        self._reached: list[int] = []
        self._tell: Callable[[int], None] | None = None
        self._links = Later("dial", lambda: connect(self._nodes, settings, self._note), close_links)

    def _note(self, place: int) -> None:
        with self._changing:
            self._reached.append(place)
            tell = self._tell
        if tell is not None:
            tell(place)

    def are(self, nodes: Sequence[Node]) -> bool:
        """Say whether these are the nodes that were dialled."""
        return self._nodes == tuple(nodes)

    def take(self, done: Callable[[int], None]) -> list[Link]:
        """Wait for the links and have them; whoever takes them closes them.

        Raises:
            LinkError: see connect.
            Several: see connect.
        """
        with self._changing:
            self._tell, reached = done, list(self._reached)
        for place in reached:
            done(place)
        return self._links.take()

    def cancel(self) -> None:
        """Close what was not taken."""
        self._links.cancel()


def open_links(
    nodes: Sequence[Node], settings: Settings, done: Callable[[int], None], dialled: Dialled | None
) -> list[Link]:
    """Give the links to the nodes: those that were dialled before, or new ones.

    Raises:
        LinkError: see connect.
        Several: see connect.
    """
    if dialled is not None and dialled.are(nodes):
        return dialled.take(done)
    return connect(nodes, settings, done)


@contextmanager
def dial_ahead(settings: Settings, rest: str) -> Iterator[Dialled | None]:
    """Dial the nodes of a launch or a check, few of them before the rest is loaded: the module of that name.

    None where something may be wrong with it, which is told in its turn.
    """
    nodes = find_nodes(settings)
    if not nodes:
        yield None
        return
    # Loaded before anybody dials: two threads that load at the same time take as long as one after the other.
    from orchestrator.transport import ssh, ssh_link  # noqa: F401, PLC0415 - as said

    if len(nodes) > FEW:
        # Amid the logins of many, each look at a file waits for its turn among all.
        import_module(rest)
        pack_ahead()
    dialled = Dialled(nodes, settings)
    try:
        yield dialled
    finally:
        dialled.cancel()


def find_nodes(settings: Settings) -> tuple[Node, ...]:
    """Find the nodes that will be dialled by this process; none where bad input would be told before that."""
    if settings.detach or settings.from_facts is not None:
        return ()  # a process of its own dials for itself, and a saved report needs no node
    try:
        if settings.checks_skip or settings.checks_only or settings.checks:
            # Whether there are such checks is known once all checks are loaded, which is a fifth of what follows.
            from orchestrator.checks.catalogue import refuse_idle_checks, refuse_unknown_checks  # noqa: PLC0415

            refuse_unknown_checks(settings)
            refuse_idle_checks(settings)
        if settings.script or settings.module or settings.command or settings.agent == "command":
            check_script(settings)
        settings_env(settings, os.environ)
        return select_nodes(read_node_list(settings.nodes), settings.include, settings.exclude)
    except (AortaError, OSError):
        return ()
