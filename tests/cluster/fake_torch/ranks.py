"""The ranks of one node: started in sessions of their own, watched, and stopped as torchrun stops them."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from .rendezvous import Place


class Rank(NamedTuple):
    """One started rank."""

    rank: int
    local_rank: int
    process: subprocess.Popen[bytes]
    error_file: pathlib.Path


class Ended(NamedTuple):
    """A rank that ended with a status that is not 0."""

    rank: Rank
    code: int
    time: float


def log_folder(words: argparse.Namespace) -> pathlib.Path:
    """A folder with a random end, as torchrun makes one a start."""
    below = pathlib.Path(words.log_dir) if words.log_dir else pathlib.Path(tempfile.mkdtemp(prefix="torchelastic_"))
    below.mkdir(parents=True, exist_ok=True)
    return pathlib.Path(tempfile.mkdtemp(prefix=f"{words.rdzv_id}_", dir=below))


def start_ranks(words: argparse.Namespace, place: Place) -> list[Rank]:
    """Start every rank of this node."""
    attempt = log_folder(words) / "attempt_0"
    script = [sys.executable, "-u", *(["-m"] if words.module else []), words.script, *words.args]
    ranks = []
    for local_rank in range(words.nproc_per_node):
        folder = attempt / str(local_rank)
        folder.mkdir(parents=True)
        rank = place.first_rank + local_rank
        environ = dict(os.environ) | rank_environ(words, place, rank, local_rank)
        error_file = folder / "error.json"
        environ["TORCHELASTIC_ERROR_FILE"] = str(error_file)
        with contextlib.ExitStack() as stack:
            out = stack.enter_context((folder / "stdout.log").open("wb")) if words.redirects in ("1", "3") else None
            err = stack.enter_context((folder / "stderr.log").open("wb")) if words.redirects in ("2", "3") else None
            process = subprocess.Popen(script, env=environ, stdout=out, stderr=err, start_new_session=True)
        ranks.append(Rank(rank, local_rank, process, error_file))
    return ranks


def rank_environ(words: argparse.Namespace, place: Place, rank: int, local_rank: int) -> dict[str, str]:
    """What torchrun tells a rank."""
    environ = {
        "LOCAL_RANK": local_rank,
        "RANK": rank,
        "GROUP_RANK": words.node_rank,
        "ROLE_RANK": rank,
        "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": words.nproc_per_node,
        "WORLD_SIZE": place.world_size,
        "GROUP_WORLD_SIZE": words.nnodes,
        "ROLE_WORLD_SIZE": place.world_size,
        "MASTER_ADDR": words.master_addr,
        "MASTER_PORT": words.master_port,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": words.max_restarts,
        "TORCHELASTIC_RUN_ID": words.rdzv_id,
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    if words.nproc_per_node > 1:
        environ["OMP_NUM_THREADS"] = int(os.environ.get("OMP_NUM_THREADS", "1"))
    return {name: str(value) for name, value in environ.items()}


def find_ended(ranks: list[Rank], known: list[Ended]) -> list[Ended]:
    """Ranks that have failed since the last look."""
    seen = {ended.rank.rank for ended in known}
    now = time.time()
    return [
        Ended(rank, code, now)
        for rank in ranks
        if rank.rank not in seen and (code := rank.process.poll()) is not None and code != 0
    ]


def signal_ranks(ranks: list[Rank], number: int) -> list[Rank]:
    """Signal the sessions of the ranks that still run; what left those sessions is not reached."""
    running = [rank for rank in ranks if rank.process.poll() is None]
    for rank in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.process.pid, number)
    return running


class Signals:
    """Counts the death signals: torchrun waits anew at the second and gives up at the third."""

    def __init__(self) -> None:
        self.received: list[int] = []

    def watch(self, names: str) -> None:
        """Take these signals from now on; before, they end the agent at once."""
        for name in names.split(","):
            signal.signal(signal.Signals[name.strip()], lambda number, _: self.received.append(number))


def stop_ranks(ranks: list[Rank], number: int, timeout_s: float, signals: Signals) -> None:
    """Signal the ranks, wait for their ends, and kill what is left after the time-out."""
    for rank in signal_ranks(ranks, number):
        name = signal.Signals(number).name
        say("W", f"Sending process {rank.process.pid} closing signal {name}")
    heard = len(signals.received)
    deadline = time.monotonic() + timeout_s
    while any(rank.process.poll() is None for rank in ranks):
        if len(signals.received) >= 3:
            return
        if len(signals.received) > heard:
            heard = len(signals.received)
            deadline = time.monotonic() + timeout_s
        if time.monotonic() > deadline:
            signal_ranks(ranks, signal.SIGKILL)
            for rank in ranks:
                rank.process.wait()
            return
        time.sleep(0.01)


def say(letter: str, text: str) -> None:
    """Write one line to stderr in the form of torch's log."""
    stamp = time.strftime("%m%d %H:%M:%S") + ".000000"
    sys.stderr.write(f"{letter}{stamp} {os.getpid()} torch/distributed/elastic/multiprocessing/api.py:1] {text}\n")
    sys.stderr.flush()
