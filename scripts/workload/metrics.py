"""One file of measurements a rank, one JSON line a logged step."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TextIO


def find_output_dir() -> Path:
    """Find where the launcher collects from; ./outputs without one."""
    return Path(os.environ.get("AORTA_OUTPUT_DIR") or "outputs")


class MetricsFile:
    """Writes rank_00_metrics.jsonl and its like, each line at once."""

    def __init__(self, folder: Path, rank: int, node_rank: int, host: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._place: dict[str, object] = {"host": host, "node_rank": node_rank, "rank": rank}
        # Line by line: what was measured before a crash is there after it.
        self._file: TextIO = (folder / f"rank_{rank:02d}_metrics.jsonl").open("w", encoding="utf-8", buffering=1)

    def write(self, step: int, **values: float) -> None:
        """Write one line."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")  # noqa: UP017 - nodes may have Python 3.9
        rounded = {name: float(f"{value:.6g}") for name, value in values.items()}
        self._file.write(json.dumps({"time": now, **self._place, "step": step, **rounded}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
