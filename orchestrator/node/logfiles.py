"""The files of a run on this node as the launch host names them, read by byte offset."""

from __future__ import annotations

import os
from collections.abc import Iterator

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

    def chunks(self, limit: int) -> Iterator[tuple[str, int, bytes]]:
        """Give what is new as (name, offset, bytes), a fair share of each file, about `limit` bytes in all."""
        paths = sorted(self._paths.items())
        # Each time another file begins, or two ranks that write without end would silence all others.
        self._first = (self._first + 1) % len(paths)
        for name, path in paths[self._first :] + paths[: self._first]:
            if limit <= 0:
                return
            if name.endswith(".json"):
                continue
            offset = self.offsets.get(name, 0)
            data = read_part(path, offset)
            if data:
                self.offsets[name] = offset + len(data)
                limit -= len(data)
                yield name, offset, data

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
