"""Load on one GPU, or on the processors: rate of matrix products, bandwidth of memory, and whether repeats have the same bits.

Runs as one process of `node/exercise.py`: WORDS holds local_rank and out; orders come as JSON lines on stdin, each is answered
with one JSON line on the fd `out`, which carries the order's number. An order leaves alone the GPUs whose local ranks stand under
"spare". Needs torch and Python 3.9.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

WORDS: dict[str, Any] = globals().get("WORDS", {})
Order = dict[str, Any]
GPU_SIDE, CPU_SIDE, WIDE_CPU_SIDE = 8192, 1024, 2048
MANY_THREADS = 8
"""So many would wait for each other more than work on a small product."""
GPU_BYTES, CPU_BYTES = 1 << 29, 1 << 27
PINNED_BYTES = 1 << 28
AT_ONCE = 10
"""Work that a GPU gets before it is waited for: it is never idle between two pieces."""
WARM_SHARE, WARM_S = 0.25, 3.0
"""What is not counted: clocks have to come up, or down."""
AMPERE = 8
SEED = 20261128


class Bench:
    """What this process holds between two orders."""

    def __init__(self) -> None:
        self.torch: Any = None
        self.device: Any = None
        self.on_gpu = False

    def prepare(self, order: Order) -> Order:
        """Import torch and take this process's device."""
        import torch  # noqa: PLC0415 - what goes wrong here is an answer

        self.torch = torch
        self.on_gpu = order.get("device") == "cuda"
        if not self.on_gpu:
            self.device = torch.device("cpu")
            return {"threads": torch.get_num_threads()}
        self.device = torch.device("cuda", WORDS["local_rank"])
        torch.cuda.set_device(self.device)
        return {"threads": torch.get_num_threads(), "model": torch.cuda.get_device_name(self.device)}

    def settle(self) -> None:
        """Wait for the device to have done what it was given."""
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def compute(self, order: Order) -> Order:
        """Multiply matrices for a time: operations a second, and repeats whose bits differ from the first."""
        torch = self.torch
        side = GPU_SIDE if self.on_gpu else WIDE_CPU_SIDE if torch.get_num_threads() >= MANY_THREADS else CPU_SIDE
        generator = torch.Generator().manual_seed(SEED)
        left, right = (
            torch.randn(side, side, generator=generator).to(self.device, self.kind_of_number()) for _ in range(2)
        )
        first = left @ right
        product = torch.empty_like(first)
        differ: list[Any] = []

        def work() -> None:
            torch.mm(left, right, out=product)
            if not self.on_gpu or len(differ) % AT_ONCE == 0:
                differ.append((product != first).any())
            else:
                differ.append(None)

        times, took_s = self.repeat(work, order["seconds"])
        compared = [bool(one) for one in differ if one is not None]
        answer: Order = {"tflops": 2.0 * side**3 * times / took_s / 1e12}
        answer.update(repeats=len(compared), different=sum(compared))
        if self.on_gpu:
            answer["digest"] = self.digest(first)
        return answer

    def kind_of_number(self) -> Any:
        """Give the numbers that the device multiplies fastest; GPUs before Ampere only pretend to know bf16."""
        torch = self.torch
        if not self.on_gpu:
            return torch.float32
        old = torch.version.hip is None and torch.cuda.get_device_capability(self.device)[0] < AMPERE
        return torch.float16 if old else torch.bfloat16

    def digest(self, product: Any) -> str:
        """Fold the bits of a product into one number, of which the place of each bit is a part."""
        torch = self.torch
        bits = product.view(torch.int64).flatten()
        places = torch.arange(1, 2 * bits.numel(), 2, device=self.device)
        return f"{int((bits * places).sum()) & (2**64 - 1):016x}"

    def repeat(self, work: Any, seconds: float) -> tuple[int, float]:
        """Work for some seconds; how often, and in which time, once it is warm."""
        pieces = AT_ONCE if self.on_gpu else 1
        work()
        self.settle()
        began = time.perf_counter()
        warm, end = began + min(WARM_SHARE * seconds, WARM_S), began + seconds
        times, cold = 0, True
        now = began
        while now < end:
            for _ in range(pieces):
                work()
            self.settle()
            now = time.perf_counter()
            times += pieces
            if cold and now >= warm and now < end:
                cold, began, times = False, now, 0
        return times, max(now - began, 1e-9)

    def memory(self, order: Order) -> Order:
        """Copy within the device's memory: bytes read and written a second."""
        torch = self.torch
        size = GPU_BYTES if self.on_gpu else CPU_BYTES
        source = torch.ones(size, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        times, took_s = self.repeat(lambda: target.copy_(source), order["seconds"])
        return {"memory_gbs": 2.0 * size * times / took_s / 1e9}

    def host(self, order: Order) -> Order:
        """Copy between pinned memory of the host and the GPU, each way."""
        torch = self.torch
        near = torch.ones(PINNED_BYTES, dtype=torch.uint8, pin_memory=True)
        far = torch.empty(PINNED_BYTES, dtype=torch.uint8, device=self.device)
        rates: Order = {}
        for name, target, source in (("to_device_gbs", far, near), ("from_device_gbs", near, far)):

            def work(target: Any = target, source: Any = source) -> None:
                target.copy_(source, non_blocking=True)

            times, took_s = self.repeat(work, order["seconds"] / 2)
            rates[name] = PINNED_BYTES * times / took_s / 1e9
        return rates


def main() -> None:
    """Answer one order after the other until they end."""
    bench = Bench()
    out = os.fdopen(WORDS["out"], "w")
    for line in sys.stdin.buffer:
        order = json.loads(line)
        answer = {"number": order["number"]}
        try:
            if WORDS["local_rank"] not in order.get("spare", ()):
                answer.update(getattr(bench, order["op"])(order))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the launch host is told
            traceback.print_exc()
            lines = str(error).strip().splitlines() or [""]
            answer["error"] = (type(error).__name__ + ": " + lines[0])[:400]
        out.write(json.dumps(answer) + "\n")
        out.flush()
    os._exit(0)


main()
