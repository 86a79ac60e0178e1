"""Becomes the supervisor of a run folder: alone in it, deaf to hang-ups, reachable by its socket."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself costs a fifth of a start of Python
import _socket  # what socket lays over it costs as much as a start of Python
import fcntl
import os

from orchestrator.node import claim, loop, processes, runfolder
from orchestrator.node.supervisor import Supervisor

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Any


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
    for number in (_signal.SIGHUP, _signal.SIGPIPE, _signal.SIGTTOU, _signal.SIGTTIN):
        _signal.signal(number, _signal.SIG_IGN)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (_signal.SIGTERM, _signal.SIGINT):
        _signal.signal(number, lambda *_: None)
    processes.become_subreaper()
    os.close(processes.open_handle(os.getpid()))  # without pidfds nothing is started that could not be watched
    lock = take_lock()
    try:
        claim.hold(order["workdir"], order["run_id"], order["node_rank"])  # until this process ends
    except claim.ChangedError as error:
        raise SystemExit(str(error)) from None
    try:
        os.unlink(runfolder.SOCKET)
    except FileNotFoundError:
        pass
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    listener.bind(runfolder.SOCKET)  # relative: a socket path ends at 107 bytes
    os.chmod(runfolder.SOCKET, 0o600)
    listener.listen(8)
    supervisor = Supervisor(order)
    supervisor.tell({"ev": "ready", **supervisor.identity})
    os.write(ready, b"ready\n")
    os.close(ready)
    loop.run(supervisor, listener, wake_read)
    try:
        os.unlink(runfolder.SOCKET)
    except OSError:
        pass
    os.close(lock)
