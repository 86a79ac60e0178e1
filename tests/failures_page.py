"""docs/failures.md: made from the catalogue of causes and from the excerpts that its tests read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.diagnosis.cause import Cause, Family, Hit
from orchestrator.diagnosis.causes import CAUSES
from orchestrator.diagnosis.logs.scan import scan_text, title_of

PAGE = Path(__file__).parents[1] / "docs" / "failures.md"
EXCERPTS = Path(__file__).parent / "data" / "causes"
WRITES = bool(os.environ.get("AORTA_TESTS_WRITE"))
LONGEST_EXAMPLE = 220
RANKS = {"confirm": 0, "cause": 0, "hint": 1, "victim": 2, "noise": 3}
"""Of several hits, which role counts first."""
FAMILIES: dict[Family, str] = {
    "CODE": "The script itself",
    "MISMATCH": "Ranks that do different things",
    "HANG": "Ranks that wait",
    "EARLY_EXIT": "Ranks that leave early",
    "OOM_GPU": "Memory of a GPU",
    "OOM_HOST": "Memory of a node",
    "SHM": "Shared memory",
    "CRASH": "Crashes of native code",
    "KILLED": "Processes that were ended",
    "SESSION": "Sessions that ended",
    "TIME_LIMIT": "Time limits",
    "GPU_HW": "Hardware of GPUs",
    "GPU_SW": "Software of GPUs",
    "FABRIC": "RDMA, NVLink and NVSwitch",
    "ENV": "What is installed on a node",
    "CONFIG": "Settings and arguments",
    "LIMITS": "Limits of a session",
    "DISK": "Disks and file servers",
    "DATA": "Data",
    "CKPT": "Checkpoints",
    "PORT": "Ports",
    "RDZV": "Rendezvous",
    "NET": "Network",
    "SSH": "SSH",
    "DEPLOY": "Copy of the code",
    "NODE_LOST": "Lost nodes",
    "NOISE": "Lines that speak of others, or mean little",
}
INTRO = """# Failures

What can be wrong with a run, by its family: how it reads, what it means, and what to do. `aorta-launch why` names the family and the
section. The page is made from the catalogue of causes (`orchestrator/diagnosis/causes/`) and the excerpts of its tests
(`tests/data/causes/`). A line alone proves little: which rank broke first is decided from all of them, so a section that
says "of another rank" is never the answer, and one that says "hint" needs a second fact. Lines of the kernel log are marked; they
count where they name the process of a rank, or the GPU or disk that it uses.
"""
ROLES = {"cause": "", "victim": "of another rank", "confirm": "kernel log", "hint": "hint", "noise": "means nothing"}
SPELLINGS = {
    "amd": "AMD",
    "api": "API",
    "c": "C",
    "cpu": "CPU",
    "cublas": "cuBLAS",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "face": "Face",
    "fsdp": "FSDP",
    "gpu": "GPU",
    "gpus": "GPUs",
    "hugging": "Hugging",
    "json": "JSON",
    "nan": "NaN",
    "nccl": "NCCL",
    "nvlink": "NVLink",
    "openmp": "OpenMP",
    "python": "Python",
    "rdma": "RDMA",
    "sigkill": "SIGKILL",
    "ssh": "SSH",
    "yaml": "YAML",
}


@dataclass(frozen=True)
class Excerpt:
    """What a failure prints, as a test has it."""

    cause: str
    blocks: tuple[str, ...]
    """Each is printed by one failure; they are parted by lines of three dashes."""
    exit: str
    """How the process ended, where that is all there is: "signal 9", "code 2"."""


def read_excerpt(cause: str) -> Excerpt:
    """Read the file of one cause."""
    lines = (EXCERPTS / f"{cause}.txt").read_text().splitlines()
    heads = dict(line.removeprefix("# ").split(": ", 1) for line in lines if line.startswith("# "))
    body = "\n".join(line for line in lines if not line.startswith("# "))
    return Excerpt(heads["expects"], tuple(re.split(r"(?m)^---\n", body)), heads.get("exit", ""))


def find_hits(excerpt: Excerpt, block: str, *, kernel: bool) -> list[Hit]:
    """Find all that is known of one block, the word that counts first."""
    hits = list(scan_text(block, kernel=kernel))
    kind, _, number = excerpt.exit.partition(" ")
    for cause in CAUSES:
        ends = {"signal": cause.signals, "code": cause.codes}.get(kind, ())
        if number and int(number) in ends:
            hits.append(Hit(cause=cause, text=excerpt.exit))
    return sorted(hits, key=lambda hit: (RANKS[hit.cause.role], -hit.cause.priority))


def build_page() -> str:
    """Build the whole page."""
    sections: dict[str, list[Cause]] = {}
    for cause in CAUSES:
        sections.setdefault(cause.section, []).append(cause)
    by_family: dict[Family, list[str]] = {family: [] for family in FAMILIES}
    for name, causes in sections.items():
        others = all(cause.role == "victim" for cause in causes)
        by_family["NOISE" if others else causes[0].family].append(name)
    lines = [INTRO]
    for family, names in by_family.items():
        links = " · ".join(f"[{build_heading(name)}](#{name})" for name in names)
        lines.append(f"- **{FAMILIES[family]}** (`{family}`): {links}")
    for family, names in by_family.items():
        lines += ["", f"## {FAMILIES[family]}: {family}"]
        for name in names:
            lines += ["", f"### {build_heading(name)}", ""]
            lines.append("\n\n".join("\n".join(build_cause(cause, family)) for cause in sections[name]))
    return "\n".join(lines) + "\n"


def build_cause(cause: Cause, family: Family) -> Iterator[str]:
    """Build what one cause looks like, what it means and what to do."""
    example = find_example(cause)
    title = title_of(example) if example else cause.title
    marks = ", ".join(
        filter(None, (f"`{cause.id}`", ROLES[cause.role], "" if cause.family == family else cause.family))
    )
    yield f"**{escape(title)}** ({marks})"
    yield ""
    told = bool(cause.patterns or cause.signals or cause.codes)
    lines = [example.text.strip()] if example else [] if told else read_excerpt(cause.id).blocks[0].splitlines()
    if lines:
        short = (text[:LONGEST_EXAMPLE] + (" …" if len(text) > LONGEST_EXAMPLE else "") for text in lines)
        yield from ("```", *short, "```", "")
    ends = [*(f"signal {number}" for number in cause.signals), *(f"exit code {number}" for number in cause.codes)]
    yield f"Ends with {', '.join(ends)}. {cause.explanation}" if ends else cause.explanation
    yield ""
    yield f"*To do:* {cause.remedy}"


def build_heading(name: str) -> str:
    """Build the heading of which GitHub makes this anchor."""
    words = " ".join(SPELLINGS.get(word, word) for word in name.split("-"))
    return words if name.split("-", maxsplit=1)[0] in SPELLINGS else words[0].upper() + words[1:]


def escape(text: str) -> str:
    """Keep what a program printed from being read as Markdown."""
    return re.sub(r"([\\`*_<\[\]])", r"\\\1", text)


def find_example(cause: Cause) -> Hit | None:
    """Find the line of its excerpt by which it is known."""
    hits = scan_text(read_excerpt(cause.id).blocks[0], kernel=cause.role == "confirm")
    return next((hit for hit in hits if hit.cause.id == cause.id), None)
