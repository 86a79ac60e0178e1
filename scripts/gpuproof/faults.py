"""Failures that only GPUs have: what happened, what aorta-launch said, and whether that is right."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from .machine import read_memory
from .nodes import Bed, Launched
from .results import ProofError, Row

MARGIN_MIB = 64
"""What a driver itself takes comes and goes."""
BACK_S = 20
SAMPLE_S = 0.2
WRONG_INTERFACE = "ib9"
NOT_READY = 3


class MemorySamples:
    """The memory in use on each GPU of this machine, sampled while something runs."""

    def __init__(self) -> None:
        self.base = read_memory()
        self.most = dict(self.base)
        self.seen: list[tuple[float, dict[str, int]]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            now, used = time.time(), read_memory()
            self.seen.append((now, used))
            self.most = {index: max(mib, self.most.get(index, 0)) for index, mib in used.items()}

    def wait_for_base(self) -> float | None:
        """Wait until every GPU is where it was before; give the moment, None when that did not come."""
        end = time.time() + BACK_S
        while time.time() < end:
            moment, used = self.seen[-1] if self.seen else (0.0, None)
            if used is not None and self.is_at_base(used):
                return self.first_back(moment)
            time.sleep(SAMPLE_S)
        return None

    def is_at_base(self, used: Mapping[str, int]) -> bool:
        """Every GPU is where it was before."""
        return all(used[index] <= mib + MARGIN_MIB for index, mib in self.base.items())

    def first_back(self, until: float) -> float:
        """The first sample of the last stretch of samples that are at the base."""
        moment = until
        for when, used in reversed(self.seen):
            if not self.is_at_base(used):
                break
            moment = when
        return moment


def measure_faults(bed: Bed, wanted: Iterable[str]) -> Iterable[Row]:
    """Bring about every fault that is asked for."""
    for name in wanted:
        yield {"case": name, **FAULTS[name](bed)}


def last_rank(bed: Bed) -> int:
    """The rank that breaks."""
    return sum(bed.processes(node) for node in bed.nodes) - 1


def break_by(bed: Bed, way: str) -> Launched:
    """Launch the script whose last rank breaks, and wait for the verdict."""
    done = bed.launch(["faulty.py", way], label=way)
    if not done.verdict:
        raise ProofError(f"{way}: no run was started, exit code {done.exit_code}:\n{done.stderr[-4000:]}")
    return done


def build_row(done: Launched, *, happened: str, seen: Row, right: bool) -> Row:
    """What happened and what was said."""
    first = done.verdict.get("first_failure") or {}
    return {
        "happened": happened,
        "exit_code": done.exit_code,
        "family": done.verdict.get("family", ""),
        "confidence": done.verdict.get("confidence", ""),
        "cause": done.verdict.get("cause", ""),
        "named": {"rank": first.get("rank"), "node_rank": first.get("node_rank")},
        **seen,
        "right": right,
    }


def run_out_of_memory(bed: Bed) -> Row:
    """A rank asks for more than its card has."""
    done = break_by(bed, "oom")
    said = done.stdout + done.stderr
    asked = re.search(r"[Tt]ried to allocate [\d.]+ [KMGT]iB", f"{done.verdict['cause']}\n{said}")
    right = "CUDA out of memory" in said and done.named_rank == last_rank(bed) and asked is not None
    return build_row(
        done,
        happened=f"rank {last_rank(bed)} asks for 1000 GiB",
        seen={"asked": asked[0] if asked else ""},
        right=right,
    )


def hang_in_a_collective(bed: Bed) -> Row:
    """A rank sleeps while the others wait for it until their time is up."""
    done = break_by(bed, "hang")
    assert done.experiment is not None
    diagnosis = done.experiment / "diagnosis"
    recorders = sorted(path.name for path in diagnosis.rglob("*") if path.is_file() and is_recorder(path))
    named = done.named_rank
    ranks = done.verdict.get("ranks") or ([] if named is None else [named])
    evidence = [str(one.get("file") or one.get("where") or "") for one in done.verdict.get("evidence", [])]
    return build_row(
        done,
        happened=f"rank {last_rank(bed)} sleeps while the others are in an all_reduce of 15 s at most",
        seen={"flight_recorders": recorders, "ranks": ranks, "evidence": evidence},
        right=last_rank(bed) in ranks and bool(recorders),
    )


def is_recorder(path: Path) -> bool:
    """A dump of torch's flight recorder."""
    return any(word in str(path) for word in ("flight", "fr_trace", "nccl_trace"))


def kill_a_rank(bed: Bed) -> Row:
    """SIGKILL ends a rank; the memory of all GPUs must come back."""
    with MemorySamples() as samples:
        done = break_by(bed, "kill")
        back = samples.wait_for_base()
    assert done.experiment is not None
    texts = [path.read_text(errors="replace") for path in done.experiment.glob("logs/rank_*.out")]
    died = next(
        (float(found[1]) for text in texts if (found := re.search(r"^died at ([\d.]+)$", text, re.MULTILINE))), None
    )
    seen: Row = {
        "memory_before_mib": samples.base,
        "memory_most_mib": samples.most,
        "memory_after_mib": samples.seen[-1][1] if samples.seen else {},
        "seconds_to_base": None if back is None or died is None else round(max(0.0, back - died), 1),
        "gpus_held": done.verdict.get("gpus_held"),
    }
    right = done.named_rank == last_rank(bed) and back is not None and not seen["gpus_held"]
    return build_row(done, happened=f"SIGKILL ends rank {last_rank(bed)}", seen=seen, right=right)


def name_a_wrong_interface(bed: Bed) -> Row:
    """NCCL_SOCKET_IFNAME names what no node has."""
    done = bed.launch(["faulty.py", "work"], label="interface", env={"NCCL_SOCKET_IFNAME": WRONG_INTERFACE})
    lines = find_lines(done, WRONG_INTERFACE)
    right = done.exit_code == NOT_READY and not done.experiment_started and bool(lines)
    return build_row(done, happened=f"NCCL_SOCKET_IFNAME={WRONG_INTERFACE}", seen={"said": lines}, right=right)


def find_a_gpu_busy(bed: Bed) -> Row:
    """Somebody else's process holds memory of a GPU on the last node."""
    node = bed.nodes[-1]
    python = node.python or "python3"
    bed.push()
    words = [*bed.ssh_words(node), f"cd bare && exec {python} busy.py"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        pid = holder.stdout.readline().strip()
        owner = bed.say(node, f"ps -o user= -p {pid}").strip()
        done = bed.launch(["faulty.py", "work"], label="busy")
        # The end of its input is the end of it.
        holder.communicate("")
    lines = find_lines(done, pid)
    told = any(owner in line for line in lines)
    right = done.exit_code == NOT_READY and not done.experiment_started and told
    happened = f"process {pid} of {owner} holds 2 GiB of a GPU of {node.name}"
    return build_row(done, happened=happened, seen={"said": lines}, right=right)


def find_lines(done: Launched, word: str) -> list[str]:
    """The lines of what was said that hold a word."""
    lines = [re.sub(r"\s+", " ", line).strip() for line in (done.stderr + "\n" + done.stdout).splitlines()]
    return [line for line in lines if word in line][:4]


FAULTS: dict[str, Callable[[Bed], Row]] = {
    "oom": run_out_of_memory,
    "hang": hang_in_a_collective,
    "kill": kill_a_rank,
    "interface": name_a_wrong_interface,
    "busy": find_a_gpu_busy,
}
