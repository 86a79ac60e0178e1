"""Unpacks the flight recorders that nodes send, and keeps them."""

from __future__ import annotations

import base64
import contextlib
import itertools
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_BYTES = 16 << 20
"""Of one flight recorder, unpacked."""


def take_dumps(answers: Mapping[int, Mapping[str, Any]], silent_s: float) -> dict[int, tuple[str, bytes]]:
    """Unpack the flight recorders that came: by rank, how a file of it is called and what it holds.

    One that was written before the run fell silent tells of an earlier moment: beside fresh ones it would blame its rank.
    """
    dumps: dict[int, tuple[str, bytes]] = {}
    for raw in itertools.chain.from_iterable(answer.get("ranks") or () for answer in answers.values()):
        with contextlib.suppress(KeyError, TypeError, ValueError, zlib.error):
            if float(raw.get("age_s") or 0.0) > silent_s:
                continue
            unpack = zlib.decompressobj()
            data = unpack.decompress(base64.b64decode(raw["data"]), MOST_BYTES)
            if not unpack.eof:
                continue
            dumps[int(raw["rank"])] = ("json" if data.lstrip()[:1] == b"{" else "pickle", data)
    return dumps


def write_dumps(folder: Path, dumps: Mapping[int, tuple[str, bytes]]) -> None:
    """Keep the flight recorders as they came, for torch's own tools as well."""
    if dumps:
        folder.mkdir(exist_ok=True)
    for rank, (form, data) in dumps.items():
        (folder / f"rank_{rank:04d}.{form}").write_bytes(data)
