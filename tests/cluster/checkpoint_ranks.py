"""Ranks by fork for the tests of checkpoints: PyTorch is imported once, a start of ranks then takes 0.1 s.

Run as a program it is a server: a line {"scene", "folder"} on stdin runs a function of checkpoint_scenes or checkpoint_deaths, a line with
its traceback or null comes back. The server itself computes nothing, so that its children may.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ranks import pick_port

PROJECT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
"""No start of ranks in these tests takes more than 5 s on an idle machine of two cores."""


@dataclass
class Ranks:
    """Started ranks, what they said, and what became of them."""

    folder: Path
    pids: list[int]
    codes: dict[int, int] = field(default_factory=dict)

    def wait(self, limit_s: float = LIMIT_S) -> list[int]:
        """Wait for all; give their codes, a signal's as a negative number."""
        end = time.monotonic() + limit_s
        while len(self.codes) < len(self.pids):
            if not self.reap():
                if time.monotonic() > end:
                    self.kill()
                    raise TimeoutError(f"ranks still ran after {limit_s} s\n{self.log()}")
                time.sleep(0.005)
        return [self.codes[rank] for rank in range(len(self.pids))]

    def reap(self) -> bool:
        found = False
        for rank, pid in enumerate(self.pids):
            if rank not in self.codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self.codes[rank] = os.waitstatus_to_exitcode(status)
                    found = True
        return found

    def kill(self, ranks: list[int] | None = None) -> None:
        """Send KILL to some, or all."""
        for rank, pid in enumerate(self.pids):
            if rank not in self.codes and (ranks is None or rank in ranks):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def log(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("log_*")))

    def values(self) -> list[Any]:
        """Wait, give what every rank returned; a rank that failed fails the test with all logs."""
        codes = self.wait()
        assert codes == [0] * len(codes), f"{codes}\n{self.log()}"
        return [json.loads((self.folder / f"value_{rank}").read_text()) for rank in range(len(codes))]


def start(folder: Path, homes: list[tuple[Path, int]], work: Callable[[], Any], **env: str) -> Ranks:
    """Start ranks: for each node its home and how many; work runs in each and gives something for JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="start_", dir=folder))
    port = pick_port()
    world_size = sum(count for _, count in homes)
    pids: list[int] = []
    for node, (home, count) in enumerate(homes):
        home.mkdir(parents=True, exist_ok=True)
        gpus = ",".join(str(len(pids) + local_rank) for local_rank in range(count))
        for local_rank in range(count):
            rank = len(pids)
            words: dict[str, object] = {
                "RANK": rank,
                "WORLD_SIZE": world_size,
                "LOCAL_RANK": local_rank,
                "LOCAL_WORLD_SIZE": count,
            }
            words |= {"GROUP_RANK": node, "GROUP_WORLD_SIZE": len(homes), "MASTER_ADDR": "127.0.0.1"}
            # Each node of a host with several GPUs has its own.
            words |= {"MASTER_PORT": port, "HOME": home, "CUDA_VISIBLE_DEVICES": gpus}
            pid = os.fork()
            if not pid:
                _be_rank(folder, rank, work, {name: str(value) for name, value in words.items()} | env)
            pids.append(pid)
    return Ranks(folder, pids)


def _be_rank(folder: Path, rank: int, work: Callable[[], Any], env: dict[str, str]) -> None:
    code = 1
    try:
        log = os.open(folder / f"log_{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for name in ("AORTA_OUTPUT_DIR", "AORTA_NODE_RANK", "AORTA_RUN_ID"):
            os.environ.pop(name, None)
        os.environ.update(env)
        value = work()
        (folder / f"value_{rank}").write_text(json.dumps(value))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    # A node may lack NumPy: here every scene is played without.
    sys.modules["numpy"] = None  # type: ignore[assignment]
    sys.path[:0] = [str(PROJECT), str(Path(__file__).parent)]
    modules = [importlib.import_module(name) for name in ("checkpoint_scenes", "checkpoint_deaths")]

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        order = json.loads(line)
        error = None
        try:
            (play,) = {getattr(module, order["scene"]) for module in modules if hasattr(module, order["scene"])}
            play(Path(order["folder"]))
        except BaseException:
            error = traceback.format_exc()
        print(json.dumps(error), file=answers, flush=True)


@contextlib.contextmanager
def no_faults_in(directory: Path) -> Iterator[None]:
    """After the block nothing of a dead save lies in a checkpoint directory."""
    yield
    left = [path.name for path in directory.iterdir() if path.name.startswith(".") and path.name != ".lock"]
    assert not left, left


if __name__ == "__main__":
    serve()
