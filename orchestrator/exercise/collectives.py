"""Real collectives between processes of one GPU each, or of none: right sums, latency and bandwidth, pair by pair.

Runs as one process of `node/exercise.py`: WORDS holds local_rank, out and device ("cuda" or "cpu"); orders come as JSON lines on
stdin, each is answered with one JSON line on the fd `out`, which carries the order's number. Needs torch and Python 3.9.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from typing import Any

WORDS: dict[str, Any] = globals().get("WORDS", {})
Order = dict[str, Any]
LEAST_S = 0.1  # a transfer that takes longer is long enough to be measured
LONGEST_S = 2.0  # a size that would take longer is left out: the link is slow, and that is known by then
MOST = 200  # of a few bytes; enough for a middle of them
LOOK_S = 1.0  # of looking without a rest
SMALL = 8
WARM_UP = 2


class Bench:
    """What this process holds between two orders."""

    def __init__(self) -> None:
        self.torch: Any = None
        self.dist: Any = None
        self.device: Any = None
        self.stores: list[Any] = []
        self.notes: int | None = None
        self.rank = 0
        self.size = 1

    def prepare(self, order: Order) -> Order:
        """Import torch and touch this process's device."""
        began = time.monotonic()
        if order.get("device") == "cuda":
            # NCCL tells its choices to a file that only this process has.
            self.notes = open_notes()
            os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", TORCH_NCCL_BLOCKING_WAIT="1")
            os.environ["NCCL_DEBUG_FILE"] = f"/proc/self/fd/{self.notes}"
        import torch  # noqa: PLC0415 - what goes wrong here is an answer
        import torch.distributed as dist  # noqa: PLC0415

        self.torch, self.dist = torch, dist
        answer: Order = {"torch": torch.__version__, "import_s": time.monotonic() - began}
        answer["gloo"] = bool(dist.is_available() and dist.is_gloo_available())
        answer["nccl"] = bool(dist.is_available() and dist.is_nccl_available())
        answer["devices"] = number = torch.cuda.device_count() if torch.cuda.is_available() else 0
        self.device = torch.device("cpu")
        torch.set_num_threads(1)
        if 0 < number <= WORDS["local_rank"]:
            raise RuntimeError(f"torch sees {number} GPUs: there is none for local rank {WORDS['local_rank']}")
        if order.get("device") == "cuda":
            self.device = torch.device("cuda", WORDS["local_rank"])
            torch.cuda.set_device(self.device)
            answer["model"] = torch.cuda.get_device_name(self.device)
            # The first use of a GPU is where a broken one shows.
            answer["first"] = float(torch.ones(1024, device=self.device).sum())
        return answer

    def host(self, order: Order) -> Order:
        """Open a store for a world and say at which port."""
        limit = timedelta(seconds=order["timeout_s"])
        store = self.dist.TCPStore(order["addr"], 0, is_master=True, wait_for_workers=False, timeout=limit)
        self.stores = [store, *self.stores][:4]
        return {"port": store.port}

    def join(self, order: Order) -> Order:
        """Leave the world that was, and become a rank of a new one."""
        self.leave(order)
        limit = timedelta(seconds=order["timeout_s"])
        store = self.dist.TCPStore(order["addr"], order["port"], is_master=False, timeout=limit)
        store = self.dist.PrefixStore(order["name"], store)
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        rank = order["ranks"][WORDS["local_rank"]]
        began = time.monotonic()
        self.dist.init_process_group(backend, store=store, rank=rank, world_size=order["size"], timeout=limit)
        self.rank, self.size = rank, order["size"]
        # Gloo connects at once, NCCL with its first collective.
        one = self.torch.ones(1, device=self.device)
        self.dist.all_reduce(one)
        return {"rank": rank, "size": int(one.item()), "seconds": time.monotonic() - began}

    def leave(self, _order: Order) -> Order:
        """End the world that this process is in."""
        if self.dist.is_initialized():
            try:
                self.dist.destroy_process_group()
            except Exception:  # noqa: BLE001 - a broken world cannot be left in order
                traceback.print_exc()
        forget_worlds(self.dist.distributed_c10d)
        return {}

    def sums(self, _order: Order) -> Order:
        """Add up what depends on the rank, where the result is known; max and min over a checksum of all of it."""
        torch, dist = self.torch, self.dist
        wrong = []
        places = torch.arange(4096, dtype=torch.int64)
        for device in dict.fromkeys((torch.device("cpu"), self.device)):
            name = "nccl" if device.type == "cuda" else "gloo"
            mine = places.to(device) * (self.rank + 1)
            # Whoever gives a wrong part makes the sum wrong everywhere, and is the one to be named.
            if not torch.equal(mine.cpu(), places * (self.rank + 1)):
                wrong.append(name + ": its own part, before any sum")
            dist.all_reduce(mine)
            wanted = places * (self.size * (self.size + 1) // 2)
            # Powers of two add up without rounding in any order.
            half = torch.full((4096,), 0.5 ** (self.rank % 20 + 1), dtype=torch.float64, device=device)
            dist.all_reduce(half)
            exact = sum(0.5 ** (rank % 20 + 1) for rank in range(self.size))
            check = torch.tensor([float(mine.sum()), float(half.sum())], dtype=torch.float64, device=device)
            most, least = check.clone(), check.clone()
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
            dist.all_reduce(least, op=dist.ReduceOp.MIN)
            right = {" integers": torch.equal(mine.cpu(), wanted), " floats": bool((half.cpu() == exact).all())}
            right[": ranks have different results"] = torch.equal(most, least)
            wrong += [name + what for what, is_right in right.items() if not is_right]
        return {"wrong": wrong}

    def reduce(self, order: Order) -> Order:
        """Measure all_reduce for each size: seconds of one, the slowest rank's, over a number that all agree on."""
        rows = []
        end = time.monotonic() + order["limit_s"]
        for size in order["sizes"]:
            data = self.room(size)
            if self.agree(1.0 if data is None else 0.0):
                break  # no room on one of them
            self.time_reduces(data, 1)
            once = self.agree(self.time_reduces(data, 1))
            number = max(1, min(MOST, int(order["each_s"] / max(once, 1e-6))))
            rows.append({"bytes": size, "seconds": self.agree(self.time_reduces(data, number)), "number": number})
            # All take the same decision: it is taken from what they have agreed on.
            over = self.agree(1.0 if time.monotonic() > end else 0.0)
            after = [other for other in order["sizes"] if other > size]
            if over or (after and rows[-1]["seconds"] * (after[0] / max(size, 1 << 12)) > LONGEST_S):
                break
        return {"rows": rows, "transport": self.transport()}

    def room(self, size: int) -> Any:
        """Take memory on the device; None where there is not enough."""
        if self.device.type == "cuda":
            self.torch.cuda.empty_cache()
        try:
            return self.torch.ones(max(1, size // 4), dtype=self.torch.float32, device=self.device)
        except RuntimeError:
            return None

    def transport(self) -> str:
        """Say which network NCCL has chosen, by its own words; empty without it."""
        if self.notes is None:
            return ""
        text = os.pread(self.notes, 1 << 20, 0).decode("utf-8", "replace")
        found = re.findall(r"(?:Using network|Assigned NET plugin) (\S+)", text)
        return found[-1] if found else ""

    def time_reduces(self, data: Any, number: int) -> float:
        """Time some of them, in seconds of one."""
        self.settle()
        began = time.perf_counter()
        for _ in range(number):
            last = self.dist.all_reduce(data, async_op=self.device.type == "cuda")
        self.finish(last)
        return (time.perf_counter() - began) / number

    def follow(self, work: Any) -> None:
        """Let what comes next follow this: a GPU keeps the order by itself."""
        if self.device.type != "cuda":
            work.wait()

    def finish(self, work: Any) -> None:
        """Wait for what came last; None is done already."""
        if self.device.type == "cuda":
            # A wait that may give up looks once a millisecond only, and a few bytes take a twentieth of that.
            end = time.perf_counter() + LOOK_S
            while not work.is_completed() and time.perf_counter() < end:
                pass
        if work is not None:
            work.wait()
        self.settle()

    def settle(self) -> None:
        """Wait for the device to have done what it was given."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def agree(self, seconds: float) -> float:
        """Take the slowest rank's time."""
        slowest = self.torch.tensor([seconds], dtype=self.torch.float64)
        self.dist.all_reduce(slowest, op=self.dist.ReduceOp.MAX)
        return float(slowest.item())

    def pair(self, order: Order) -> Order:
        """Measure the way to one peer: round trips of a few bytes, then the rate of what this side sends."""
        peer = order["peer"]
        result = {"latency_ms": self.trips(peer, first=order["first"]) * 1e3}
        for first in (True, False):
            if order["first"] == first:
                result["bytes"], result["seconds"] = self.push(peer, order["sizes"])
            else:
                self.pull(peer)
        return result

    def trips(self, peer: int, number: int = 10, *, first: bool) -> float:
        """Send a few bytes there and back; half of a round trip in seconds."""
        small = self.torch.zeros(SMALL, dtype=self.torch.uint8, device=self.device)
        began = 0.0
        for trip in range(number + WARM_UP):
            if trip == WARM_UP:
                self.settle()
                began = time.perf_counter()
            for sends in (first, not first):
                self.finish((self.dist.isend if sends else self.dist.irecv)(small, peer))
        return (time.perf_counter() - began) / number / 2

    def push(self, peer: int, sizes: list[int]) -> tuple[int, float]:
        """Send ever larger pieces until one takes long enough; its bytes and seconds, answer included."""
        torch, dist = self.torch, self.dist
        answer = torch.zeros(SMALL, dtype=torch.uint8, device=self.device)
        best = (0, 0.0)
        for size in sizes:
            if best[1] > LEAST_S and size != best[0]:
                continue
            dist.send(torch.tensor([size], dtype=torch.int64, device=self.device), peer)
            data = torch.zeros(size, dtype=torch.uint8, device=self.device)
            self.settle()
            began = time.perf_counter()
            self.follow(dist.isend(data, peer))
            self.finish(dist.irecv(answer, peer))
            took_s = time.perf_counter() - began
            # The same size again is a second try: the faster one counts.
            best = (size, min(took_s, best[1]) if size == best[0] else took_s)
        dist.send(torch.tensor([0], dtype=torch.int64, device=self.device), peer)
        return best

    def pull(self, peer: int) -> None:
        """Take what the peer sends and say that it is there."""
        torch, dist = self.torch, self.dist
        head = torch.zeros(1, dtype=torch.int64, device=self.device)
        answer = torch.zeros(SMALL, dtype=torch.uint8, device=self.device)
        while True:
            dist.recv(head, peer)
            size = int(head.item())
            if not size:
                return
            data = torch.empty(size, dtype=torch.uint8, device=self.device)
            self.follow(dist.irecv(data, peer))
            self.finish(dist.isend(answer, peer))


def open_notes() -> int:
    """Open a file without a name; a Python that was built against an old C library (conda's) lacks the call for it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("nccl")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def forget_worlds(c10d: Any) -> None:
    """Count worlds anew: one that did not form counts too, and a peer for which all went well has another number."""
    for holder, name in ((getattr(c10d, "_world", None), "group_count"), (c10d, "_group_count")):
        if hasattr(holder, name):
            setattr(holder, name, 0)


def describe(error: BaseException) -> str:
    """Say what went wrong in a line; of NCCL's many, the cause is what follows "Last error"."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    causes = [lines[place + 1] for place, line in enumerate(lines[:-1]) if line.startswith("Last error")]
    return (type(error).__name__ + ": " + ": ".join(lines[:1] + causes[:1]))[:400]


def main() -> None:
    """Answer one order after the other until they end."""
    bench = Bench()
    out = os.fdopen(WORDS["out"], "w")
    for line in sys.stdin.buffer:
        order = json.loads(line)
        answer = {"number": order["number"]}
        if order.get("only") not in (None, WORDS["local_rank"]):
            continue
        try:
            answer.update(getattr(bench, order["op"])(order))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the launch host is told
            traceback.print_exc()
            answer["error"] = describe(error)
        out.write(json.dumps(answer) + "\n")
        out.flush()
    os._exit(0)


main()
