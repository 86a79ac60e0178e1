"""Reads what torch's flight recorder wrote down of one rank: its JSON, and the pickle that NCCL dumps."""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, NoReturn

from orchestrator.diagnosis.hang.stacks import Frame
from orchestrator.light_dataclass import dataclass

DEFAULT_GROUP = "default_pg"
_BACKEND = re.compile(r"^(?:nccl|gloo|rccl|xccl|mpi|ucc)\s*:\s*_?")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One collective that a rank has called."""

    group: str
    sequence: int
    operation: str
    """Without the name of its backend."""
    sizes: tuple[tuple[int, ...], ...] = ()
    """Of what goes in."""
    dtypes: tuple[str, ...] = ()
    done: bool = False
    point_to_point: bool = False
    created_ns: int = 0
    caller: Frame | None = None
    """The innermost frame of the rank's own code; gloo's JSON has none."""

    @property
    def words(self) -> str:
        """What was called, as people write it: "all_reduce of [256] Float"."""
        sizes = ", ".join(str(list(size)) for size in self.sizes)
        of = " ".join(filter(None, (sizes, ", ".join(dict.fromkeys(self.dtypes)))))
        return f"{self.operation} of {of}" if of else self.operation


@dataclass(frozen=True, kw_only=True)
class Dump:
    """What the flight recorder of one rank holds."""

    rank: int
    entries: tuple[Entry, ...] = ()
    """In the order of their calls."""
    enqueued: Mapping[str, int] = field(default_factory=dict)
    """group -> the sequence number of the last collective that this rank called in it."""
    names: Mapping[str, str] = field(default_factory=dict)
    """group -> what the program calls it."""
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """group -> its ranks, where the recorder knows them."""

    @property
    def waits(self) -> tuple[Entry, ...]:
        """The collectives that it has called and that are not over."""
        return tuple(entry for entry in self.entries if not entry.done)


def parse_dump(data: bytes, rank: int) -> Dump | None:
    """Read a dump in either form; None where it is none."""
    document = _load(data)
    if not isinstance(document, Mapping) or not isinstance(document.get("entries", []), Iterable):
        return None
    if "entries" not in document and "pg_status" not in document:
        return None
    entries = tuple(
        entry for raw in document.get("entries") or () if (entry := _parse_entry(raw, document)) is not None
    )
    names = {entry.group: DEFAULT_GROUP for entry in entries if entry.group == "0"}
    enqueued: dict[str, int] = {}
    for raw in document.get("entries") or ():
        group = _group_of(raw)
        if group is not None and group[1] not in ("", "undefined"):
            names[group[0]] = group[1]
    for entry in entries:
        if not entry.point_to_point:
            enqueued[entry.group] = max(enqueued.get(entry.group, 0), entry.sequence)
    for group_name, status in _items(document.get("pg_status")):
        last = _whole(status.get("last_enqueued_collective")) if isinstance(status, Mapping) else None
        enqueued[group_name] = max(enqueued.get(group_name, 0), last or 0)
    members = {}
    for group_name, config in _items(document.get("pg_config")):
        ranks = _parse_ranks(config.get("ranks")) if isinstance(config, Mapping) else ()
        # Gloo tells of all its groups under one empty name: of no use.
        if ranks and group_name:
            members[group_name] = ranks
            names.setdefault(group_name, str(config.get("desc") or group_name))
    return Dump(rank=rank, entries=entries, enqueued=enqueued, names=names, members=members)


class _NoClasses(pickle.Unpickler):
    """Reads plain values alone: a dump holds nothing else, and a pickle from a node is nobody we trust."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} has no place in a dump")


def _load(data: bytes) -> Any:
    try:
        if data.lstrip()[:1] in (b"{", b"["):
            return json.loads(data)
        return _NoClasses(io.BytesIO(data)).load()
    except Exception:  # noqa: BLE001 - a torn pickle ends in nearly any error
        return None


def _items(raw: Any) -> list[tuple[str, Any]]:
    return [(str(name), value) for name, value in raw.items()] if isinstance(raw, Mapping) else []


def _group_of(raw: Any) -> tuple[str, str] | None:
    """Give the name by which all ranks know the group of an entry, and what the program calls it."""
    if not isinstance(raw, Mapping):
        return None
    group = raw.get("process_group")
    if isinstance(group, Sequence) and not isinstance(group, str) and group:
        return str(group[0]), str(group[1]) if len(group) > 1 else ""
    return (str(raw["pg_id"]), "") if "pg_id" in raw else None


def _parse_entry(raw: Any, document: Mapping[str, Any]) -> Entry | None:
    group = _group_of(raw)
    if group is None:
        return None
    p2p = bool(raw.get("is_p2p"))
    sequence = _whole(raw.get("p2p_seq_id" if p2p else "collective_seq_id", raw.get("seq_id")))
    if sequence is None:
        return None
    completed = _completed(document, group[0])
    state = str(raw.get("state", ""))
    # Gloo leaves its state at "scheduled" for ever; "retired" is what both backends keep.
    done = bool(raw.get("retired")) or state == "completed"
    if "retired" not in raw and completed is not None and not p2p:
        done = done or sequence <= completed
    return Entry(
        group=group[0],
        sequence=sequence,
        operation=_BACKEND.sub("", str(raw.get("profiling_name", ""))).partition(" ")[0],
        sizes=tuple(
            tuple(_whole(n) or 0 for n in size) for size in raw.get("input_sizes") or () if isinstance(size, Sequence)
        ),
        dtypes=tuple(map(str, raw.get("input_dtypes") or ())),
        done=done,
        point_to_point=p2p,
        created_ns=_whole(raw.get("time_created_ns")) or 0,
        caller=_find_caller(raw.get("frames")),
    )


def _completed(document: Mapping[str, Any], group: str) -> int | None:
    status = (document.get("pg_status") or {}).get(group)
    return _whole(status.get("last_completed_collective")) if isinstance(status, Mapping) else None


def _find_caller(raw: Any) -> Frame | None:
    for one in raw or ():
        if isinstance(one, Mapping):
            frame = Frame(
                function=str(one.get("name", "")), file=str(one.get("filename", "")), line=_whole(one.get("line"))
            )
            if frame.user:
                return frame
    return None


def _parse_ranks(raw: Any) -> tuple[int, ...]:
    try:
        ranks = json.loads(raw) if isinstance(raw, str) else raw
        return tuple(int(rank) for rank in ranks)
    except (TypeError, ValueError, RecursionError):
        return ()


def _whole(raw: Any) -> int | None:
    try:
        return int(raw)
    except (TypeError, ValueError):
        return None
