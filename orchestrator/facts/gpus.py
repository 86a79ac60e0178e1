"""GPUs as values, and which of them a session may use."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.light_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU that the session may use."""

    index: int
    uuid: str
    model: str
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    uuid: str
    owner: str
    command: str
    used_mib: int | None = None


def visible_gpus(gpus: tuple[Gpu, ...], visible: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Keep what the variables of the session let CUDA and HIP see; a MIG slice counts as a GPU of its own."""
    # ROCr filters first, HIP numbers what is left; HIP also obeys CUDA's variable.
    words = [visible[name] for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if name in visible]
    if "CUDA_VISIBLE_DEVICES" in visible and "HIP_VISIBLE_DEVICES" not in visible:
        words.append(visible["CUDA_VISIBLE_DEVICES"])
    for filtered, text in enumerate(words):
        # A session that is shown a part of the GPUs, by their own numbers, names them by these.
        gpus = _pick(gpus, text, by_place=filtered > 0)
    return gpus


def _pick(gpus: tuple[Gpu, ...], text: str, *, by_place: bool) -> tuple[Gpu, ...]:
    picked: list[Gpu] = []
    for word in (part.strip() for part in text.split(",")):
        if word.startswith("MIG-"):
            picked.append(Gpu(index=len(picked), uuid=word, model="MIG slice"))
            continue
        gpu = find_gpu(gpus, word, by_place=by_place)
        # As CUDA does it: everything behind the first wrong word is invisible.
        if gpu is None:
            break
        picked.append(gpu)
    return tuple(picked)


def find_gpu(gpus: tuple[Gpu, ...], word: str, *, by_place: bool = False) -> Gpu | None:
    """Find the GPU that an index or the beginning of a UUID means."""
    if word.isdigit():
        if by_place:
            return gpus[int(word)] if int(word) < len(gpus) else None
        return next((gpu for gpu in gpus if gpu.index == int(word)), None)
    found = [gpu for gpu in gpus if word and gpu.uuid.lower().startswith(word.lower())]
    return found[0] if len(found) == 1 else None
