"""Reads what one rank is doing out of a stack as py-spy or faulthandler writes it, or out of what /proc tells."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from orchestrator.light_dataclass import dataclass

_PYSPY_THREAD = re.compile(
    r'^Thread (?:0x[0-9A-Fa-f]+|\d+)(?:/0x[0-9A-Fa-f]+)? \((?P<what>[^)]*)\)(?:: "(?P<name>.*)")?$'
)
_PYSPY_PLACE = re.compile(r"^(?P<file>[^()]+?)(?::(?P<line>\d+))?$")
_FAULT_THREAD = re.compile(
    r"^(?P<current>Current thread|Thread) 0x[0-9A-Fa-f]+(?: \[[^\]]*\])? \(most recent call first\):"
)
_FAULT_FRAME = re.compile(r'^\s+File "(?P<file>[^"]*)", line (?P<line>\d+|\?\?\?) in (?P<function>.+)$')
_STATE = re.compile(r"^State:\s*(?P<state>[A-Za-z])\b", re.MULTILINE)
_WCHAN = re.compile(r"^wchan\s*[=:]\s*(?P<wchan>\w+)", re.MULTILINE)
_NO_WCHAN = ("0", "")
_ADDRESS = re.compile(r"^0x[0-9A-Fa-f]+$")
_LIBRARY_PARTS = (
    *("site-packages/", "dist-packages/", "/lib/python", "/lib64/python", "<frozen ", "<string>"),
    "orchestrator/distributed/",
)
_LIBRARIES = frozenset(
    {
        *(
            "torch",
            "torchvision",
            "torchaudio",
            "numpy",
            "scipy",
            "transformers",
            "datasets",
            "accelerate",
            "deepspeed",
        ),
        *("lightning", "pytorch_lightning", "lightning_fabric", "megatron", "apex", "xformers", "flash_attn", "triton"),
        *("fsspec", "s3fs", "gcsfs", "aiohttp", "requests", "urllib3", "boto3", "botocore", "huggingface_hub", "tqdm"),
        *("wandb", "mlflow", "tensorboard", "safetensors", "tokenizers", "PIL", "cv2", "webdataset", "streaming"),
    }
)
"""Where py-spy shortens a file to its package, these are nobody's own."""
_NATIVE = re.compile(r"\.so(?:[.\d]*)?$|\.(?:c|cc|cpp|cxx|cu|h|hpp|S)$|^(?:python|libpython)[\d.]*$")

How = Literal["py-spy", "signal", "proc"]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One call of a stack."""

    function: str
    file: str
    line: int | None = None

    @property
    def native(self) -> bool:
        """It is no Python."""
        return self.line is None or bool(_NATIVE.search(self.file))

    @property
    def user(self) -> bool:
        """It stands in somebody's own code, not in a library."""
        if self.native or any(part in self.file for part in _LIBRARY_PARTS) or self.file.startswith("<"):
            return False
        if self.file.startswith("/"):
            return True
        first = self.file.partition("/")[0].removesuffix(".py")
        return first not in _LIBRARIES and first not in sys.stdlib_module_names

    @property
    def place(self) -> str:
        """Where it stands, as people write it."""
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Stack:
    """What the main thread of one rank was doing at one moment."""

    rank: int
    node_rank: int
    frames: tuple[Frame, ...] = ()
    """Innermost first; empty where /proc alone could be read."""
    state: str = ""
    """The kernel's letter for the process: S, R, D, T."""
    wchan: str = ""
    """In what the kernel lets it wait."""
    how: How = "proc"

    @property
    def user_frames(self) -> tuple[Frame, ...]:
        """Those of somebody's own code, innermost first."""
        return tuple(frame for frame in self.frames if frame.user)


def parse_stack(text: str, rank: int, node_rank: int) -> Stack | None:
    """Read the main thread's stack; None where the text tells nothing of what a process does."""
    state, wchan = _STATE.search(text), _WCHAN.search(text)
    stack = Stack(
        rank=rank,
        node_rank=node_rank,
        state=state["state"] if state else "",
        wchan=clean_wchan(wchan["wchan"] if wchan else ""),
    )
    lines = text.splitlines()
    if (frames := _parse_faulthandler(lines)) is not None:
        return replace(stack, frames=frames, how="signal")
    if (frames := _parse_pyspy(lines)) is not None:
        return replace(stack, frames=frames, how="py-spy")
    return stack if stack.state or stack.wchan else None


def clean_wchan(word: str) -> str:
    """Give the kernel function that a process waits in; empty for the 0 of one that waits in none."""
    return "" if word in _NO_WCHAN else word


def merge_stacks(stacks: Sequence[Stack]) -> tuple[Stack, ...]:
    """Make one stack a rank of what several texts tell of it: the fullest frames, and what /proc adds to them."""
    merged: dict[int, Stack] = {}
    for stack in stacks:
        known = merged.get(stack.rank)
        if known is None:
            merged[stack.rank] = stack
            continue
        fuller = stack if len(stack.frames) > len(known.frames) else known
        merged[stack.rank] = replace(fuller, state=known.state or stack.state, wchan=known.wchan or stack.wchan)
    return tuple(merged[rank] for rank in sorted(merged))


def _parse_pyspy(lines: Sequence[str]) -> tuple[Frame, ...] | None:
    threads: list[tuple[str, list[Frame]]] = []
    for line in lines:
        head = _PYSPY_THREAD.match(line)
        if head is not None:
            threads.append((head["name"] or "", []))
        elif threads and (frame := _parse_pyspy_frame(line)) is not None:
            threads[-1][1].append(frame)
    if not threads:
        return None
    # The one of that name may stand anywhere; without names (an old py-spy) it is the first.
    main = next((frames for name, frames in threads if name == "MainThread"), threads[0][1])
    return tuple(frame for frame in main if not _ADDRESS.match(frame.function))


def _parse_pyspy_frame(line: str) -> Frame | None:
    # The name of a C++ function holds whatever it likes, brackets too: only the last pair is the place.
    function, between, rest = line.strip().rpartition(" (")
    place = _PYSPY_PLACE.match(rest.removesuffix(")")) if between and line[:1].isspace() else None
    if place is None:
        return None
    return Frame(function=function, file=place["file"], line=int(place["line"]) if place["line"] else None)


def _parse_faulthandler(lines: Sequence[str]) -> tuple[Frame, ...] | None:
    threads: list[tuple[bool, list[Frame]]] = []
    for line in lines:
        head = _FAULT_THREAD.match(line)
        if head is not None:
            threads.append((head["current"] == "Current thread", []))
        elif threads and (frame := _FAULT_FRAME.match(line)) is not None:
            number = frame["line"]
            line_number = int(number) if number.isdecimal() else 0
            threads[-1][1].append(Frame(function=frame["function"], file=frame["file"], line=line_number))
    if not threads:
        return None
    # A signal is taken by the main thread: it is the current one. A file may hold several dumps, the last one counts.
    current = [frames for is_current, frames in threads if is_current]
    return tuple(current[-1] if current else threads[-1][1])
