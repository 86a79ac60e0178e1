"""The files of a run on this node as the launch host names them, read by byte offset."""

from __future__ import annotations

import os

from orchestrator.node import runfolder

TYPE_CHECKING = False  # the module typing costs as much as a start of Python
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

CHUNK = 1 << 17
ERROR_LIMIT = 1 << 20


class LogFiles:
    """Knows which files there are and how far each was read."""

    def __init__(self, folder: str, run_id: str, attempt: int, offsets: dict[str, int]) -> None:
        self.folder = folder
        self.prefix = f"{run_id}.a{attempt}_"
        self.offsets = dict(offsets)
        self._paths: dict[str, str] = {}
        self._first = 0
        self.more = False
        """The last frames did not give all that was there."""
        self._errors: dict[str, tuple[float, int]] = {}
        for stream in ("out", "err"):
            self._paths[f"agent.{stream}"] = os.path.join(folder, f"agent.{stream}")

    def find(self) -> None:
        """Look for ranks that began to write; torchrun's folder name ends in eight random characters."""
        ranks = os.path.join(self.folder, "ranks")
        for top in listed(ranks):
            if not top.startswith(self.prefix):
                continue
            for attempt in listed(os.path.join(ranks, top)):
                for local in listed(os.path.join(ranks, top, attempt)):
                    place = os.path.join(ranks, top, attempt, local)
                    self._paths[f"{local}.out"] = os.path.join(place, "stdout.log")
                    self._paths[f"{local}.err"] = os.path.join(place, "stderr.log")
                    self._paths[f"{local}.json"] = os.path.join(place, "error.json")

    def logs(self) -> dict[str, str]:
        """Give the path of every log file by its name."""
        return {name: path for name, path in self._paths.items() if not name.endswith(".json")}

    def lengths(self) -> dict[str, int]:
        """Say how long each log file is by now."""
        self.find()
        lengths = {}
        for name, path in self.logs().items():
            try:
                lengths[name] = os.stat(path).st_size
            except OSError:
                pass
        return lengths

    def frames(self, limit: int) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Give what is new as frames, a fair share of each file, about `limit` bytes in all."""
        self.more = False
        paths = sorted(self.logs().items())
        # Each time another file begins, or two ranks that write without end would silence all others.
        self._first = (self._first + 1) % len(paths)
        for name, path in paths[self._first :] + paths[: self._first]:
            if limit <= 0:
                self.more = True
                return
            offset = self.offsets.get(name, 0)
            data = read_part(path, offset)
            if not data:
                continue
            self.more = self.more or len(data) == CHUNK
            end = self._punched(name) if b"\0" in data else 0
            if end > offset:
                # Something of it was a hole already, or became one while we read.
                self.offsets[name] = end
                yield {"t": "gap", "f": name, "from": offset, "to": end}, b""
                continue
            self.offsets[name] = offset + len(data)
            limit -= len(data)
            yield {"t": "log", "f": name, "o": offset}, data

    def go_back(self, offsets: dict[str, int]) -> None:
        """Read some files again from an offset on, and every error file: what was sent has not been kept."""
        self.offsets.update(offsets)
        self._errors.clear()

    def _punched(self, name: str) -> int:
        # The supervisor writes how far before it punches: what this does not name was no hole when we read it.
        status = runfolder.read_status(self.folder) or {}
        return int(status.get("punched", {}).get(name, 0))

    def errors(self) -> Iterator[tuple[str, bytes]]:
        """Give every error file that is new or has changed."""
        paths = {name: path for name, path in self._paths.items() if name.endswith(".json")}
        paths["agent.json"] = os.path.join(self.folder, "agent_error.json")
        for name, path in sorted(paths.items()):
            try:
                stat = os.stat(path)
            except OSError:
                continue
            if self._errors.get(name) == (stat.st_mtime, stat.st_size) or not 0 < stat.st_size <= ERROR_LIMIT:
                continue
            self._errors[name] = (stat.st_mtime, stat.st_size)
            yield name, read_part(path, 0, ERROR_LIMIT)


def listed(path: str) -> list[str]:
    """List a folder; nothing when there is none."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def read_part(path: str, offset: int, size: int = CHUNK) -> bytes:
    """Read some bytes of a file that may not be there yet."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(handle, size, offset)
    except OSError:
        return b""
    finally:
        os.close(handle)
