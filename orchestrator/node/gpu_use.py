"""Asks the driver's tool how much of the GPUs is in use and by whom, without ever waiting for it: a driver may hang."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time

from orchestrator.node import processes, smi
from orchestrator.node.probe_gpus import find_tool

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Facts = Dict[str, Any]
    Read = Callable[[str], List[Facts]]
    Words = Tuple[List[str], Read]

LIMIT_S = 5.0
BYTES_LIMIT = 4 << 20
SHAPE = "--format=csv,noheader,nounits"
COLUMNS = 5


class Asked:
    """One command that runs; what it writes is taken whenever somebody looks whether it has ended."""

    def __init__(self, argv: List[str], limit_s: float) -> None:
        self.name = os.path.basename(argv[0])
        self._limit_s = limit_s
        self._written = bytearray()
        processes.open_libc()
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            start_new_session=True,
            # Whoever asks may be killed, and a tool that hangs would outlive it.
            preexec_fn=_die_with_asker,  # noqa: PLW1509 - the programs that ask have one thread
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout.fileno()
        os.set_blocking(self._out, False)

    def ended(self) -> bool:
        """Take what it has written, and tell whether it is through."""
        through = self._process.poll() is not None
        with contextlib.suppress(OSError):
            while len(self._written) < BYTES_LIMIT:
                data = os.read(self._out, 1 << 16)
                if not data:
                    break
                self._written += data
        return through

    def text(self) -> str:
        """Give what it wrote.

        Raises:
            OddOutputError: it failed, or is not through.
        """
        if not self.ended():
            raise smi.OddOutputError(f"{self.name} gave no answer within {self._limit_s:g} s")
        text = self._written.decode("utf-8", "replace")
        if self._process.returncode != 0 and not smi.has_rows(text):
            said = text.strip().splitlines()
            raise smi.OddOutputError(f"{self.name} ended with {self._process.returncode}" + _quote(said))
        return text

    def close(self) -> None:
        """End it, if that is needed and can be done."""
        if self._process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            # One that hangs in the kernel cannot be waited for by anybody.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)
        if self._process.stdout is not None:
            self._process.stdout.close()


def _die_with_asker() -> None:
    processes.die_with_parent(signal.SIGKILL)


def _quote(said: List[str]) -> str:
    return f": {said[-1][:200]}" if said else ""


class GpuQuestion:
    """The question to the first tool that answers; `poll` gives the answer once it is there."""

    def __init__(self, *, apps: bool = False, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._end = time.monotonic() + limit_s
        self._apps = apps
        self._tools = [(find_tool(name), gpus, users) for name, gpus, users in TOOLS]
        self._tools = [(tool, gpus, users) for tool, gpus, users in self._tools if tool]
        self._asked: List[Asked] = []
        self._troubles: List[str] = []
        self._answer: Optional[Facts] = None
        self._ask_next()

    def poll(self) -> Optional[Facts]:
        """Give {"gpus", "apps", "why"}; None while nobody has answered and there is time. No GPUs is None with a why."""
        if self._answer is not None:
            return self._answer
        if all(asked.ended() for asked in self._asked):
            self._read()
        elif time.monotonic() >= self._end:
            # Who uses the GPUs is the finer point: without it the rest still counts. No time is left for another tool.
            del self._tools[1:]
            self._read()
        return self._answer

    def wait(self) -> Facts:
        """Wait for the answer, at most for the limit."""
        try:
            while True:
                answer = self.poll()
                if answer is not None:
                    return answer
                time.sleep(0.01)
        finally:
            self.close()

    def close(self) -> None:
        """Ask no more."""
        for asked in self._asked:
            asked.close()
        self._asked = []

    def _ask_next(self) -> None:
        self.close()
        if not self._tools:
            self._finish(None, None)
            return
        tool, gpus, users = self._tools[0]
        try:
            for words, _ in (gpus, users)[: 2 if self._apps else 1]:
                self._asked.append(Asked([tool, *words], self._limit_s))
        except OSError as error:
            self._next(f"{os.path.basename(tool)}: {error.strerror or error}")

    def _next(self, trouble: str) -> None:
        self._troubles.append(trouble)
        self._tools.pop(0)
        self._ask_next()

    def _read(self) -> None:
        _, gpus, users = self._tools[0]
        try:
            found = gpus[1](self._asked[0].text())
        except smi.OddOutputError as error:
            self._next(str(error))
            return
        apps: Optional[List[Facts]] = None
        if self._apps:
            try:
                apps = users[1](self._asked[1].text())
            except smi.OddOutputError as error:
                self._troubles.append(str(error))
        self._finish(found, apps)

    def _finish(self, gpus: Optional[List[Facts]], apps: Optional[List[Facts]]) -> None:
        self.close()
        why = "; ".join(self._troubles) or ("" if gpus else "there is no nvidia-smi, amd-smi or rocm-smi")
        self._answer = {"gpus": gpus, "apps": apps, "why": why}


def parse_nvidia_use(text: str) -> List[Facts]:
    """Read one line a GPU: index, uuid, memory in all and in use, share of the time that it works.

    Raises:
        OddOutputError: there is no such line.
    """
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == COLUMNS and cells[0].isdigit() and not cells[1].startswith("["):
            total, used, busy = map(smi.whole, cells[2:])
            found.append(_use(int(cells[0]), cells[1], total, used, busy))
    if not found:
        raise smi.OddOutputError("nvidia-smi told of no GPU" + _quote(text.strip().splitlines()[:1]))
    return found


def parse_amd_use(text: str) -> List[Facts]:
    """Read amd-smi metric --mem-usage --usage --json.

    Raises:
        OddOutputError: it is not JSON, or tells of no GPU.
    """
    found = []
    for entry in smi.read_entries(text):
        index = smi.whole(entry.get("gpu"))
        if index is not None:
            total, used = (smi.size_mib(smi.read_inner(entry, "mem_usage", key)) for key in ("total_vram", "used_vram"))
            busy = smi.read_inner(entry, "usage", "gfx_activity")
            found.append(_use(index, "", total, used, smi.whole(busy.get("value") if isinstance(busy, dict) else busy)))
    if not found:
        raise smi.OddOutputError("amd-smi told of no GPU")
    return found


def parse_rocm_use(text: str) -> List[Facts]:
    """Read rocm-smi --showmeminfo vram --showuse --json.

    Raises:
        OddOutputError: it is not JSON, or tells of no GPU.
    """
    found = []
    for name, card in smi.read_json(text, "rocm-smi").items():
        match = re.match(r"card(\d+)$", name)
        if match is not None:
            total, used = (smi.whole(card.get(f"VRAM Total {key}Memory (B)")) for key in ("", "Used "))
            total, used = (None if size is None else size // smi.MIB for size in (total, used))
            found.append(_use(int(match.group(1)), "", total, used, smi.whole(card.get("GPU use (%)"))))
    if not found:
        raise smi.OddOutputError("rocm-smi told of no GPU")
    return sorted(found, key=lambda gpu: int(gpu["index"]))


def _use(index: int, uuid: str, total: Optional[int], used: Optional[int], busy: Optional[int]) -> Facts:
    return {"index": index, "uuid": uuid, "total_mib": total, "used_mib": used, "util_percent": busy}


TOOLS: Tuple[Tuple[str, Words, Words], ...] = (
    (
        "nvidia-smi",
        (["--query-gpu=index,uuid,memory.total,memory.used,utilization.gpu", SHAPE], parse_nvidia_use),
        (["--query-compute-apps=pid,gpu_uuid,used_memory,process_name", SHAPE], smi.parse_nvidia_apps),
    ),
    (
        "amd-smi",
        (["metric", "--mem-usage", "--usage", "--json"], parse_amd_use),
        (["process", "--json"], smi.parse_amd_apps),
    ),
    (
        "rocm-smi",
        (["--showmeminfo", "vram", "--showuse", "--json"], parse_rocm_use),
        (["--showpids", "--json"], smi.parse_rocm_apps),
    ),
)
"""Name, how it tells of the GPUs, how it tells who uses them."""


def key_of(gpu: Facts) -> str:
    """Give what stands for a GPU before and after: its UUID, where the tools agree on one."""
    return str(gpu["uuid"] or gpu["index"])
