"""The way to the controller of a run on this machine: one lock and one unix socket a run, one request a connection."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.plan.paths import launches_folder

if TYPE_CHECKING:
    from orchestrator.phases.known_runs import KnownRun

ANSWER_LIMIT = 1 << 26
LOOK_S = 0.5
"""So long a lock has to be refused before it counts as held."""
HEARD_S = 5.0
"""A controller that lives says within this time that it has heard; what it is asked for may take longer."""


def lock_path(run_id: str) -> Path:
    """Name the file that the controller of a run holds a lock on as long as it lives."""
    return launches_folder(Path.home()) / f"{run_id}.lock"


def socket_path(run_id: str) -> Path:
    """Name the socket on which it is asked."""
    return launches_folder(Path.home()) / f"{run_id}.sock"


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Give a name of a socket that fits into its 107 bytes, however deep HOME is."""
    handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        folder = f"/proc/self/fd/{handle}"
        yield f"{folder}/{path.name}" if Path(folder).exists() else str(path)
    finally:
        os.close(handle)


def take_lock(run_id: str) -> int | None:
    """Become the one controller of a run; None when another process is. The lock goes with the process.

    Raises:
        OSError: HOME cannot be written.
    """
    lock_path(run_id).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(lock_path(run_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + LOOK_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Whoever only looks holds it for a moment, too.
            if time.monotonic() > end:
                os.close(handle)
                return None
            time.sleep(0.02)
        except OSError:
            # A file system without locks: better no guard than no run, but for a socket that answers.
            if not _answers(run_id):
                return handle
            os.close(handle)
            return None
        else:
            return handle


def has_controller(run_id: str) -> bool:
    """Tell whether some process, here or on a machine that shares this HOME, controls the run."""
    try:
        handle = os.open(lock_path(run_id), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared: many may look at once, and only the controller's own lock refuses it.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return _answers(run_id)
    else:
        return False
    finally:
        os.close(handle)


def _answers(run_id: str) -> bool:
    client = connect_socket(run_id, LOOK_S)
    if client is not None:
        client.close()
    return client is not None


def connect_socket(run_id: str, timeout_s: float) -> socket.socket | None:
    """Connect to the controller of a run; None when there is none."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(timeout_s)
    try:
        with short_path(socket_path(run_id)) as name:
            client.connect(name)
    except OSError:
        client.close()
        return None
    return client


def tell_controller(run: KnownRun, request: Mapping[str, Any]) -> bool:
    """Give an order to the controller of a run and do not wait for what comes of it; tell whether it was heard."""
    client = connect_socket(run.run_id, HEARD_S)
    if client is None:
        return False
    with client, contextlib.suppress(OSError):
        client.sendall(json.dumps(request).encode() + b"\n")
        return bool(client.recv(1 << 12))
    return False


def ask_controller(run: KnownRun, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any] | None:
    """Ask the living controller of a run; None when there is none, or it does not answer in time."""
    client = connect_socket(run.run_id, min(timeout_s, HEARD_S))
    if client is None:
        return None
    end = time.monotonic() + timeout_s
    with client:
        try:
            client.sendall(json.dumps(request).encode() + b"\n")
            with client.makefile("rb") as lines:
                # It says at once that it has heard: a process that stands still takes connections too.
                client.settimeout(HEARD_S)
                if not lines.readline(ANSWER_LIMIT):
                    return None
                client.settimeout(max(0.01, end - time.monotonic()))
                answer: dict[str, Any] = json.loads(lines.readline(ANSWER_LIMIT))
        except (OSError, ValueError):
            return None
    return answer


def name_controller(run_id: str) -> str:
    """Name the process that holds a run, as far as its lock tells."""
    try:
        who = json.loads(lock_path(run_id).read_text("utf-8").partition("\n")[0])
        return f"pid {who['pid']} on {who['host']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "an unknown process"
