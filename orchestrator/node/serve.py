"""Becomes the supervisor of a run folder: alone in it, deaf to hang-ups, reachable by its socket."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
from typing import Any

from orchestrator.node import claim, loop, processes, runfolder
from orchestrator.node.supervisor import Supervisor


def take_lock() -> int:
    """Hold the run folder for this supervisor alone; not inherited by anything that it starts."""
    handle = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit("another supervisor holds this run folder") from None
    except OSError:
        pass  # a file system without locks: better no guard than no run
    return handle


def serve(order: dict[str, Any], ready: int) -> None:
    """Be the supervisor of the run folder that is the current one."""
    for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGTTOU, signal.SIGTTIN):
        signal.signal(number, signal.SIG_IGN)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    processes.become_subreaper()
    os.close(processes.open_handle(os.getpid()))  # without pidfds nothing is started that could not be watched
    lock = take_lock()
    try:
        claim.hold(order["workdir"], order["run_id"], order["node_rank"])  # until this process ends
    except claim.ChangedError as error:
        raise SystemExit(str(error)) from None
    with contextlib.suppress(FileNotFoundError):
        os.unlink(runfolder.SOCKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(runfolder.SOCKET)  # relative: a socket path ends at 107 bytes
    os.chmod(runfolder.SOCKET, 0o600)
    listener.listen(8)
    supervisor = Supervisor(order)
    supervisor.tell({"ev": "ready", **supervisor.identity})
    os.write(ready, b"ready\n")
    os.close(ready)
    loop.run(supervisor, listener, wake_read)
    with contextlib.suppress(OSError):
        os.unlink(runfolder.SOCKET)
    os.close(lock)
