"""Ranks started directly, without an agent of torchrun, for tests whose subject is what the ranks do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
CASES = Path(__file__).resolve().parent / "rank_cases.py"


def pick_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
    return port


def build_environments(nodes: tuple[int, ...], **more: str) -> list[dict[str, str]]:
    """What torchrun would give each rank of nodes with so many ranks."""
    port, world = str(pick_port()), sum(nodes)
    places = [(node, local) for node, count in enumerate(nodes) for local in range(count)]
    return [
        {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(nodes[node]),
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": str(len(nodes)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
            **more,
        }
        for rank, (node, local) in enumerate(places)
    ]


class Ranks:
    """Ranks that run, each with a log of its own."""

    def __init__(self, folder: Path, nodes: tuple[int, ...], *words: str | Path, **more: str) -> None:
        folder.mkdir(exist_ok=True)
        self._logs = [folder / f"rank_{rank}.log" for rank in range(sum(nodes))]
        self.processes = []
        for log, env in zip(self._logs, build_environments(nodes, **more), strict=True):
            error_file = {"TORCHELASTIC_ERROR_FILE": str(log.with_suffix(".error.json"))}
            with log.open("w") as out:
                command = [sys.executable, *map(str, words)]
                self.processes.append(
                    subprocess.Popen(
                        command, stdout=out, stderr=subprocess.STDOUT, env=env | error_file, start_new_session=True
                    )
                )

    def wait(self, timeout_s: float) -> list[int]:
        """Wait for all of them; none is left."""
        try:
            return [process.wait(timeout_s) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
                process.wait()

    @property
    def logs(self) -> list[str]:
        return [log.read_text() for log in self._logs]

    def read_error(self, rank: int) -> str:
        """The message in a rank's error file."""
        text = self._logs[rank].with_suffix(".error.json").read_text()
        message: str = json.loads(text)["message"]["message"]
        return message


def run_cases(folder: Path, nodes: tuple[int, ...], cases: dict[str, dict[str, Any]], timeout_s: float) -> list[str]:
    """Train every case in one group; give the logs."""
    folder.mkdir(exist_ok=True)
    named = [{"name": name, "config": config} for name, config in cases.items()]
    (folder / "cases.json").write_text(json.dumps(named))
    ranks = Ranks(folder, nodes, CASES, folder)
    codes = ranks.wait(timeout_s)
    assert codes == [0] * sum(nodes), "\n".join(ranks.logs)
    return ranks.logs


def read_metrics(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    text = (folder / f"rank_{rank:02d}_metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def read_losses(folder: Path, ranks: int) -> dict[int, list[float]]:
    """Every rank's loss of each step."""
    losses: dict[int, list[float]] = {}
    for rank in range(ranks):
        for line in read_metrics(folder, rank):
            if line.get("loss") is not None:
                losses.setdefault(line["step"], []).append(line["loss"])
    return losses


def held_out(metrics: list[dict[str, Any]]) -> list[float]:
    return [line["held_out_loss"] for line in metrics if line.get("held_out_loss") is not None]
