"""What many threads ask of the cargo at once is worked out by one of them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from orchestrator.transport import cargo

THREADS = 8


def test_what_all_ask_at_once_is_worked_out_once() -> None:
    begun: list[str] = []
    together = threading.Barrier(THREADS)

    @cargo.once
    def work(name: str) -> object:
        begun.append(name)
        time.sleep(0.05)
        return object()

    def ask(_: int) -> object:
        together.wait()
        return work("porter")

    with ThreadPoolExecutor(THREADS) as pool:
        given = list(pool.map(ask, range(THREADS)))
    assert begun == ["porter"]
    assert len(set(map(id, given))) == 1
    assert work("probe") is not given[0]


def test_an_error_is_not_kept() -> None:
    tried: list[int] = []

    @cargo.once
    def work() -> int:
        tried.append(1)
        if len(tried) == 1:
            raise OSError("the disk")
        return 7

    for _ in range(2):
        try:
            given = work()
        except OSError:
            given = 0
    assert given == 7
