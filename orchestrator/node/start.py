"""Starts the supervisor of a run on this node and then becomes its pump."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself costs a fifth of a start of Python
import marshal
import os
import select
import sys

from orchestrator.node import boot, library, pump, runfolder
from orchestrator.node.fastjson import dumps
from orchestrator.node.wire import Wire

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from typing import Any

READY_S = 30.0
STARTER = """import os, sys
here = os.path.dirname(os.path.abspath(__file__))
os.chdir(here)
import marshal
with open(os.path.join(here, "program", "modules"), "rb") as file:
    modules = marshal.load(file)
first = modules["orchestrator.node.boot"]
boot = {"__name__": "boot"}
exec(compile(first, "boot.py", "exec") if isinstance(first, str) else marshal.loads(first), boot)
boot["begin"](modules)
from orchestrator.node import fastjson, serve
ready = int(sys.argv[1])
order = fastjson.loads(sys.stdin.buffer.read())
null = os.open(os.devnull, os.O_RDONLY)
os.dup2(null, 0)
os.close(null)
serve.serve(order, ready)
"""


def main(request: dict[str, Any], wire: Wire, modules: dict[str, str | bytes]) -> None:
    """Start the supervisor, say ready, then pump until the run on this node is over."""
    folder = request["run_folder"]
    status = runfolder.read_status(folder)
    if status is not None and runfolder.supervisor_of(status) is not None:
        wire.send({"error": f"{folder} is in use by a living run", "remedy": "aorta-launch kill " + request["run_id"]})
        return
    try:
        prepare_folder(folder, request, modules)
        message = start_supervisor(folder, request)
    except OSError as error:
        wire.send(
            {"error": f"the run folder cannot be used: {error}", "remedy": "is the disk full, or HOME read-only?"}
        )
        return
    if message:
        wire.send({"error": message})
        return
    try:
        wire.send({"t": "ready"})
    except BrokenPipeError:
        pass  # the launch host may have left meanwhile: the pump meets the same and undoes the start
    pump.main(
        {
            "run_folder": folder,
            "run_id": request["run_id"],
            "attempt": request["attempt"],
            "offsets": {},
            "owner": True,
            "grace_s": request["grace_s"],
        },
        wire,
        {},
    )


def prepare_folder(folder: str, request: dict[str, Any], modules: dict[str, str | bytes]) -> None:
    """Write the supervisor's program, the ranks' library and the files of the plan; the order is not written: it holds secrets."""
    runfolder.make_run_folder(folder)
    program = os.path.join(folder, "program", "orchestrator", "node")
    os.makedirs(program, mode=0o700, exist_ok=True)
    library.install(folder, modules)
    own = {name: modules[name] for name in request["supervisor"]}
    # One file, in the very form in which it came: for this Python, and with nothing left to compile.
    with open(os.path.join(folder, "program", "modules"), "wb") as file:
        marshal.dump(own, file)
    for name in boot.TEXTS:
        text = modules.get("orchestrator.node." + name)
        if isinstance(text, str):
            with open(os.path.join(program, name + ".py"), "w", encoding="utf-8") as source:
                source.write(text)
    with open(os.path.join(folder, "supervisor.py"), "w", encoding="utf-8") as starter:
        starter.write(STARTER)
    files = dict(request.get("files") or {})
    if request.get("config") is not None:
        files["config.yaml"] = request["config"]
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
            out.write(text)
    for name in ("agent.out", "agent.err", "agent_error.json"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            os.unlink(path)


def start_supervisor(folder: str, request: dict[str, Any]) -> str:
    """Double fork into the supervisor, hand it the order through a pipe, wait for its "ready"; give an error text."""
    order_read, order_write = os.pipe()
    ready_read, ready_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        _signal.signal(_signal.SIGHUP, _signal.SIG_IGN)
        if os.fork():
            os._exit(0)
        become_supervisor(folder, order_read, ready_write)
    os.close(order_read)
    os.close(ready_write)
    os.waitpid(child, 0)
    try:
        with os.fdopen(order_write, "wb") as pipe:
            pipe.write(dumps(request).encode())
    except BrokenPipeError:
        pass  # it died at once; its log says why
    poll = select.poll()
    poll.register(ready_read, select.POLLIN | select.POLLHUP)
    answer = os.read(ready_read, 64) if poll.poll(READY_S * 1000) else b""
    os.close(ready_read)
    if answer.startswith(b"ready"):
        return ""
    return "the supervisor did not start: " + last_words(os.path.join(folder, "supervisor.log"))


def become_supervisor(folder: str, order_read: int, ready_write: int) -> None:
    """Replace this process by the supervisor; no file of the SSH session stays open, or sshd would wait for it."""
    log = os.open(os.path.join(folder, "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(order_read, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    keep = 3
    os.dup2(ready_write, keep)
    os.set_inheritable(keep, True)  # dup2 onto itself would leave it closing on exec
    os.closerange(4, 4096)
    words = [sys.executable, "-I", "-S", os.path.join(folder, "supervisor.py"), str(keep)]
    os.execv(sys.executable, words)  # noqa: S606 - argv as data, no shell, is the point


def last_words(path: str) -> str:
    """Give the last line of a log."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read()[-4096:].strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it said nothing"
