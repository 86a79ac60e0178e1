"""Load on one GPU, or on the processors: rate of matrix products, bandwidth of memory, and whether repeats have the same bits.

Runs as one process of `node/exercise.py`: WORDS holds local_rank and out; orders come as JSON lines on stdin, each is answered
with one JSON line on the fd `out`, which carries the order's number. Needs torch and Python 3.9.
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
GPU_SIDE, CPU_SIDE = 8192, 1024
GPU_BYTES, CPU_BYTES = 1 << 29, 1 << 27
PINNED_BYTES = 1 << 28
WARM_SHARE = 0.2
"""Part of the time that is not counted: clocks have to come up, or down."""
SEED = 20261128


class Bench:
    """What this process holds between two orders."""

    def __init__(self) -> None:
        self.torch: Any = None
        self.device: Any = None

    def prepare(self, order: Order) -> Order:
        """Import torch and take this process's device."""
        import torch  # noqa: PLC0415 - what goes wrong here is an answer

        self.torch = torch
        self.device = torch.device("cpu")
        answer: Order = {"threads": torch.get_num_threads()}
        if order.get("device") == "cuda":
            self.device = torch.device("cuda", WORDS["local_rank"])
            torch.cuda.set_device(self.device)
            answer["model"] = torch.cuda.get_device_name(self.device)
        return answer

    def settle(self) -> None:
        """Wait for the device to have done what it was given."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def compute(self, order: Order) -> Order:
        """Multiply matrices for a time: operations a second, and repeats whose bits differ from the first."""
        torch = self.torch
        on_gpu = self.device.type == "cuda"
        side = GPU_SIDE if on_gpu else CPU_SIDE
        kind = torch.bfloat16 if on_gpu else torch.float32
        generator = torch.Generator().manual_seed(SEED)
        left, right = (torch.randn(side, side, generator=generator).to(self.device, kind) for _ in range(2))
        first = left @ right
        self.settle()
        end = time.perf_counter() + order["seconds"]
        began, number, repeats, different = time.perf_counter(), 0, 0, 0
        warm = began + WARM_SHARE * order["seconds"]
        counted = False
        while time.perf_counter() < end:
            for _ in range(10 if on_gpu else 1):
                product = left @ right
                number += 1
            self.settle()
            repeats += 1
            different += not torch.equal(product, first)
            if not counted and time.perf_counter() > warm:
                counted, began, number = True, time.perf_counter(), 0
        took_s = max(time.perf_counter() - began, 1e-9)
        rate = 2.0 * side**3 * max(number, 0) / took_s
        return {"tflops": rate / 1e12, "repeats": repeats, "different": different}

    def memory(self, order: Order) -> Order:
        """Copy within the device's memory: bytes read and written a second."""
        torch = self.torch
        size = GPU_BYTES if self.device.type == "cuda" else CPU_BYTES
        source = torch.ones(size, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        target.copy_(source)
        self.settle()
        began, number = time.perf_counter(), 0
        while time.perf_counter() < began + order["seconds"]:
            target.copy_(source)
            self.settle()
            number += 1
        return {"memory_gbs": 2.0 * size * number / (time.perf_counter() - began) / 1e9}

    def host(self, order: Order) -> Order:
        """Copy between pinned memory of the host and the GPU, each way."""
        if self.device.type != "cuda":
            return {}
        torch = self.torch
        near = torch.ones(PINNED_BYTES, dtype=torch.uint8, pin_memory=True)
        far = torch.empty(PINNED_BYTES, dtype=torch.uint8, device=self.device)
        rates: Order = {}
        for name, target, source in (("to_device_gbs", far, near), ("from_device_gbs", near, far)):
            target.copy_(source)
            self.settle()
            began, number = time.perf_counter(), 0
            while time.perf_counter() < began + order["seconds"] / 2:
                target.copy_(source, non_blocking=True)
                self.settle()
                number += 1
            rates[name] = PINNED_BYTES * number / (time.perf_counter() - began) / 1e9
        return rates


def main() -> None:
    """Answer one order after the other until they end."""
    bench = Bench()
    out = os.fdopen(WORDS["out"], "w")
    for line in sys.stdin.buffer:
        order = json.loads(line)
        answer = {"number": order["number"]}
        try:
            answer.update(getattr(bench, order["op"])(order))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the launch host is told
            traceback.print_exc()
            lines = str(error).strip().splitlines() or [""]
            answer["error"] = (type(error).__name__ + ": " + lines[0])[:400]
        out.write(json.dumps(answer) + "\n")
        out.flush()
    os._exit(0)


main()
