"""Runs a program in the run's own interpreter on this node, one process a GPU, and carries its answers to the launch host.

request: {"python": path, "source": text, "words": {...}, "processes": k, "env": {...}, "cleared": [...], "workdir": path,
"limit_s": S, "idle_s": S}. Each process gets the source and {**words, "local_rank": i, "out": fd} over its stdin, then every order
of the launch host as a JSON line; what it writes to the fd, one JSON document a line, comes back as
{"local_rank": i, "said": {...}}, and its end as {"local_rank": i, "ended": status, "stderr": last words, "life": n}. The order
{"engine": "restart"} replaces the processes by new ones, of life n + 1; "patience_s" in an order is how long its answer may take.

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

from orchestrator.node import agent, processes
from orchestrator.node.wire import Lines, Wire

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any

LOADER = (
    # Nothing that lies in the folder of this process is imported instead of what is installed.
    "import sys; '' in sys.path and sys.path.remove(''); import json; "
    "head = json.loads(sys.stdin.buffer.readline()); source = sys.stdin.buffer.read(head['size']); "
    "exec(compile(source, head['name'], 'exec'), {'__name__': '__main__', 'WORDS': head['words']})"
)
LAST_WORDS = 4096
GONE_S = 5.0
TICK_S = 0.5
PIECE = 1 << 16


class Worker:
    """One process of the program."""

    def __init__(self, request: dict[str, Any], local_rank: int) -> None:
        self.local_rank = local_rank
        self.lines = Lines()
        self.stderr = b""
        self.waiting = b""
        self.out, theirs = os.pipe()
        try:
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
        except BaseException:
            os.close(self.out)
            raise
        finally:
            os.close(theirs)
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.err = self.process.stderr.fileno()
        self.open = {self.out, self.err}
        self.into = self.process.stdin.fileno()
        # One that hangs takes nothing: that must not hold up us, who have to see the end of the orders.
        os.set_blocking(self.into, False)
        source = request["source"].encode()
        words = {**request.get("words", {}), "local_rank": local_rank, "out": theirs}
        head = {"size": len(source), "name": request.get("name", "exercise"), "words": words}
        self.send(json.dumps(head).encode() + b"\n" + source)

    def send(self, data: bytes = b"") -> None:
        """Write to its stdin what it takes, and keep the rest; one that has ended is told of when its pipes close."""
        self.waiting += data
        try:
            while self.waiting:
                self.waiting = self.waiting[os.write(self.into, self.waiting) :]
        except BlockingIOError:
            pass
        except OSError:
            self.waiting = b""

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

    def has_ended(self) -> bool:
        """Tell whether it has ended, and leave it in the process table: its number is not given away."""
        if self.process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self, until: float) -> dict[str, Any]:
        """Wait for its end, kill what is left of its session, and say how it ended."""
        while not self.has_ended() and time.monotonic() < until:
            time.sleep(0.01)
        hangs = not self.has_ended()
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.1, until - time.monotonic()))
        said = self.stderr.decode("utf-8", "replace")
        ended = None if hangs else self.process.returncode
        return {"local_rank": self.local_rank, "ended": ended, "stderr": said}

    def kill(self) -> None:
        """Kill its session: data loaders and compilers are in it."""
        # Once it is out of the process table its number may be another's.
        if self.process.returncode is None:
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


class Engine:
    """All processes of the program on this node."""

    def __init__(self, request: dict[str, Any], wire: Wire) -> None:
        self.request = request
        self.wire = wire
        self.workers: list[Worker] = []
        self.life = 0
        """How often they were started anew: an end that is told late is not the new one's."""

    def start(self) -> None:
        """Start them anew; the old ones are gone before."""
        self.stop()
        for local_rank in range(self.request["processes"]):
            self.workers.append(Worker(self.request, local_rank))

    def stop(self) -> None:
        """Kill all that still run."""
        for worker in self.workers:
            worker.kill()
        until = time.monotonic() + GONE_S
        for worker in self.workers:
            worker.end(until)
            worker.close()
        self.workers = []

    def run(self) -> None:
        """Carry orders and answers until the orders end, or the limit or silence says that nobody is there."""
        end = time.monotonic() + float(self.request["limit_s"])
        idle_s = float(self.request["idle_s"])
        quiet = time.monotonic() + idle_s
        while time.monotonic() < min(end, quiet):
            pipes = {fd: worker for worker in self.workers for fd in worker.open}
            full = {worker.into: worker for worker in self.workers if worker.waiting}
            ready, takes, _ = select.select([0, *pipes], list(full), [], TICK_S)
            if 0 in ready:
                orders = self.wire.ready_orders()
                if orders is None:
                    return
                # The launch host waits for the answer without a word.
                patience_s = max((float(order.get("patience_s", 0)) for order in orders), default=0.0)
                quiet = max(quiet, time.monotonic() + idle_s + patience_s)
                self.obey(orders)
                continue  # a restart has changed the pipes
            for fd in takes:
                full[fd].send()
            for fd in ready:
                self.hear(pipes[fd], fd)
            self.notice_ends({pipes[fd] for fd in ready})

    def obey(self, orders: list[dict[str, Any]]) -> None:
        """Hand each order to every process; the engine's own is to start them anew."""
        for order in orders:
            if order.get("engine") == "restart":
                self.life += 1
                self.start()
                # Who gives the order waits for this word: an engine that hangs itself replaces nobody.
                self.wire.send({"engine": "restarted", "life": self.life})
                continue
            for worker in self.workers:
                worker.send(json.dumps(order).encode() + b"\n")

    def hear(self, worker: Worker, fd: int) -> None:
        """Carry what a process says, and its end once both of its pipes are closed."""
        for said in worker.take(fd):
            self.wire.send({"local_rank": worker.local_rank, "said": said})
        if not worker.open:
            self.tell_end(worker)

    def notice_ends(self, heard: set[Worker]) -> None:
        """Tell the ends that no pipe tells, because a child of the process holds them open."""
        for worker in self.workers:
            if worker.open and worker not in heard and worker.has_ended():
                # It may have said something since the last look: that is heard first, or it would be lost.
                for fd in select.select(list(worker.open), [], [], 0)[0]:
                    for said in worker.take(fd):
                        self.wire.send({"local_rank": worker.local_rank, "said": said})
                worker.open.clear()
                self.tell_end(worker)

    def tell_end(self, worker: Worker) -> None:
        """Tell how it ended, of which life."""
        self.wire.send({**worker.end(time.monotonic() + GONE_S), "life": self.life})


def leave(number: int, frame: Any) -> None:
    """End in order when the session is taken away."""
    del frame
    raise SystemExit(128 + number)


def main(request: dict[str, Any], wire: Wire, modules: dict[str, str]) -> None:
    """Start the processes, carry words both ways, and leave nothing."""
    del modules
    processes.open_libc()  # not between fork and exec
    engine = Engine(request, wire)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        engine.start()
        engine.run()
    finally:
        engine.stop()
