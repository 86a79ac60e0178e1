"""Sees to it that a run has a controller, and waits with it."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import AortaError
from orchestrator.output.console import build_talk
from orchestrator.phases.background import Tell, start_in_background
from orchestrator.phases.control import connect_socket, has_controller, name_controller
from orchestrator.phases.signals import caught_signals
from orchestrator.phases.takeover import take_over

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.output.console import Talk
    from orchestrator.phases.known_runs import KnownRun
    from orchestrator.settings import Settings
    from orchestrator.transport import Link

READY_S = 10.0
"""A controller that holds the lock listens within this time."""
POLL_S = 0.05


def ensure_controller(known: KnownRun, settings: Settings, talk: Talk) -> bool:
    """Start a controller for a run that has none; tell whether one had to be started.

    Raises:
        AortaError: it could not be.
    """
    if has_controller(known.run_id):
        return False

    def control(tell: Tell) -> int:
        own = build_talk(settings, os.environ, stdout=sys.stdout, stderr=sys.stderr)
        with caught_signals() as signals:
            signals.background = True
            return take_over(known, settings, own, signals, lambda: tell({"ready": True}))

    talk.detail(f"{known.run_id} has no controller; starting one")
    told = start_in_background(control, as_json=settings.json_output)
    if told.wait() is None:
        told.exit_code()
        raise AortaError(what="no controller could be started", where=known.run_id, remedy="the line above says why")
    return True


def open_watch(known: KnownRun) -> socket.socket | None:
    """Connect to the controller of a run to hear its end; None when it has ended by now.

    Raises:
        AortaError: it holds the run and does not answer.
    """
    end = time.monotonic() + READY_S
    while True:
        client = connect_socket(known.run_id, READY_S)
        if client is not None:
            with contextlib.suppress(OSError):
                client.sendall(b'{"op": "watch"}\n')
                if client.recv(1 << 16):
                    return client
            client.close()
        # Between its lock and its socket lies a moment.
        if not has_controller(known.run_id):
            return None
        if time.monotonic() > end:
            who = name_controller(known.run_id)
            raise AortaError(
                what=f"its controller, {who}, does not answer",
                where=known.run_id,
                remedy="is it suspended (kill -CONT), on another machine with this HOME, or hung? Once it is gone, attach replaces it",
            )
        time.sleep(POLL_S)


def settle(known: KnownRun, settings: Settings, talk: Talk, links: Mapping[int, Link] | None = None) -> None:
    """Bring a run to its end that needs nobody's decision any more, and wait until its record is complete.

    Links that are open already are used, by node rank.

    Raises:
        AortaError: another process holds the run and does not answer.
    """
    with talk.waiting(f"bringing {known.run_id} to its end"):
        wait_controller(known)
        # Here and not in a process of its own: there may be threads by now, and after a fork their locks stay locked.
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, caught_signals() as signals:
            signals.background = True
            silent = build_talk(settings, {}, stdout=nowhere, stderr=nowhere)
            take_over(known, settings, silent, signals, lambda: None, links)
        wait_controller(known)


def wait_controller(known: KnownRun) -> None:
    """Wait until the controller of a run has ended, if it has one."""
    client = open_watch(known)
    if client is not None:
        with client:
            client.settimeout(None)
            while client.recv(1 << 16):
                pass
    while has_controller(known.run_id):
        time.sleep(POLL_S)
