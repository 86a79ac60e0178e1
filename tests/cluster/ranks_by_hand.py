"""Ranks started straight away, each with the variables that torchrun would give it: no agent, so no second import of torch."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ranks import PROJECT, build_environments


@dataclass(frozen=True)
class Ended:
    """How one rank ended, and what it wrote."""

    code: int
    out: str
    err: str


class Ranks:
    """The ranks of some nodes, given as the number of ranks on each."""

    def __init__(
        self, folder: Path, nodes: Sequence[int], words: Sequence[str], env: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.processes = []
        for rank, place in enumerate(build_environments(tuple(nodes))):
            full = {name: value for name, value in place.items() if name != "PYTHONDONTWRITEBYTECODE"}
            full |= {"PYTHONPATH": str(PROJECT), "TORCHELASTIC_ERROR_FILE": str(folder / f"error_{rank}.json")}
            full |= env or {}
            with (folder / f"out_{rank}").open("w") as out, (folder / f"err_{rank}").open("w") as err:
                self.processes.append(subprocess.Popen([sys.executable, *words], stdout=out, stderr=err, env=full))

    def text(self, rank: int, stream: str = "out") -> str:
        """What a rank has written so far."""
        return (self.folder / f"{stream}_{rank}").read_text()

    def wait(self, timeout_s: float = 100) -> list[Ended]:
        """Wait for all; none is left when one does not end."""
        try:
            codes = [process.wait(timeout_s) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
                process.wait()
        return [Ended(code, self.text(rank), self.text(rank, "err")) for rank, code in enumerate(codes)]


def start_ranks(folder: Path, nodes: Sequence[int], script: str, **env: str) -> Ranks:
    """Start ranks that run a script given as its text."""
    folder.mkdir(exist_ok=True)
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    return Ranks(folder, nodes, [str(path)], env)
