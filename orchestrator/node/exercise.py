"""Runs a program in the run's own interpreter on this node, one process a GPU, and carries its answers to the launch host.

request: {"python": path, "source": text, "words": {...}, "processes": k, "env": {...}, "cleared": [...], "workdir": path,
"limit_s": S, "idle_s": S}. Each process gets the source and {**words, "local_rank": i, "out": fd} over its stdin, then every order
of the launch host as a JSON line; what it writes to the fd, one JSON document a line, comes back as
{"local_rank": i, "said": {...}}, and its end as {"local_rank": i, "ended": status, "stderr": last words}. The order
{"engine": "restart"} replaces the processes by new ones.

Nothing of it outlives the channel: the end of the orders, the limit and silence all end with the processes killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from typing import Any

from orchestrator.node import agent, processes
from orchestrator.node.wire import Lines, Wire, write_all

LOADER = (
    "import json, sys; head = json.loads(sys.stdin.buffer.readline()); source = sys.stdin.buffer.read(head['size']); "
    "exec(compile(source, head['name'], 'exec'), {'__name__': '__main__', 'WORDS': head['words']})"
)
LAST_WORDS = 4096
GONE_S = 5.0
PIECE = 1 << 16


class Worker:
    """One process of the program."""

    def __init__(self, request: dict[str, Any], local_rank: int) -> None:
        self.local_rank = local_rank
        self.lines = Lines()
        self.stderr = b""
        self.out, theirs = os.pipe()
        self.open = {self.out}
        self.process = subprocess.Popen(
            [request["python"], "-u", "-c", LOADER],
            cwd=request.get("workdir") or "/",
            env=agent.environment_of(request),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(theirs,),
            preexec_fn=die_with_engine,  # noqa: PLW1509 - we have one thread, so it is safe
        )
        os.close(theirs)
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.err = self.process.stderr.fileno()
        self.open.add(self.err)
        source = request["source"].encode()
        words = {**request.get("words", {}), "local_rank": local_rank, "out": theirs}
        head = {"size": len(source), "name": request.get("name", "exercise"), "words": words}
        self.send(json.dumps(head).encode() + b"\n" + source)

    def send(self, data: bytes) -> None:
        """Write to its stdin; one that has ended is told of when its pipes close."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            write_all(self.process.stdin.fileno(), data)

    def take(self, fd: int) -> list[dict[str, Any]]:
        """Read what a pipe holds and give the documents that are whole."""
        data = os.read(fd, PIECE)
        if not data:
            self.open.discard(fd)
            return []
        if fd == self.err:
            self.stderr = (self.stderr + data)[-LAST_WORDS:]
            return []
        return self.lines.feed(data)

    def end(self) -> dict[str, Any]:
        """Wait for its end, kill what is left of its session, and say how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GONE_S)
        self.kill()
        said = self.stderr.decode("utf-8", "replace")
        return {"local_rank": self.local_rank, "ended": self.process.returncode, "stderr": said}

    def kill(self) -> None:
        """Kill its session: data loaders and compilers are in it."""
        # While one of them lives the number of the group is not given away.
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close our ends of its pipes."""
        os.close(self.out)
        for pipe in (self.process.stdin, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def die_with_engine() -> None:
    """Between fork and exec: a process of ours never outlives us."""
    processes.die_with_parent(signal.SIGKILL)
    agent.raise_limits()


class Engine:
    """All processes of the program on this node."""

    def __init__(self, request: dict[str, Any], wire: Wire) -> None:
        self.request = request
        self.wire = wire
        self.workers: list[Worker] = []

    def start(self) -> None:
        """Start them anew; the old ones are gone before."""
        self.stop()
        self.workers = [Worker(self.request, local_rank) for local_rank in range(self.request["processes"])]

    def stop(self) -> None:
        """Kill all that still run."""
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.end()
            worker.close()
        self.workers = []

    def run(self) -> None:
        """Carry orders and answers until the orders end, or the limit or silence says that nobody is there."""
        end = time.monotonic() + float(self.request["limit_s"])
        idle_s = float(self.request["idle_s"])
        quiet = time.monotonic() + idle_s
        while time.monotonic() < min(end, quiet):
            pipes = {fd: worker for worker in self.workers for fd in worker.open}
            ready = select.select([0, *pipes], [], [], 1.0)[0]
            if 0 in ready:
                orders = self.wire.ready_orders()
                if orders is None:
                    return
                quiet = time.monotonic() + idle_s
                self.obey(orders)
                continue  # a restart has changed the pipes
            for fd in ready:
                self.hear(pipes[fd], fd)

    def obey(self, orders: list[dict[str, Any]]) -> None:
        """Hand each order to every process; the engine's own is to start them anew."""
        for order in orders:
            if order.get("engine") == "restart":
                self.start()
                continue
            for worker in self.workers:
                worker.send(json.dumps(order).encode() + b"\n")

    def hear(self, worker: Worker, fd: int) -> None:
        """Carry what a process says, and its end once both of its pipes are closed."""
        for said in worker.take(fd):
            self.wire.send({"local_rank": worker.local_rank, "said": said})
        if not worker.open:
            self.wire.send(worker.end())


def leave(number: int, frame: Any) -> None:
    """End in order when the session is taken away."""
    del frame
    raise SystemExit(128 + number)


def main(request: dict[str, Any], wire: Wire, modules: dict[str, str]) -> None:
    """Start the processes, carry words both ways, and leave nothing."""
    del modules
    engine = Engine(request, wire)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        engine.start()
        engine.run()
    finally:
        engine.stop()
