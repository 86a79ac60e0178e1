"""Where the text comes from: a file of the user's, or sources of Python's standard library, which every node has."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from workload.schema import ConfigError

LARGEST_CHARS = 1_500_000
LEAST_CHARS = 2_000


def read_text(path: str | None) -> str:
    """Read the text, ConfigError when there is none; without a path it differs from one Python version to another."""
    text = _read_library() if path is None else _read_file(path)
    if len(text) < LEAST_CHARS:
        raise ConfigError(f"dataset.path: {path} has {len(text)} characters; at least {LEAST_CHARS} are needed")
    return text


def _read_file(path: str) -> str:
    try:
        place = Path(path).expanduser()
        if place.exists() and not place.is_file():
            raise ConfigError(f"dataset.path: {path} is no plain file")
        return place.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"dataset.path: {path}: {error.strerror}") from None
    except (RuntimeError, MemoryError) as error:  # nobody's home; more than there is memory for
        raise ConfigError(f"dataset.path: {path}: {error or 'larger than the memory'}") from None
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"dataset.path: {path!a}: {error}") from None


def _read_library() -> str:
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts: list[str] = []
    left = LARGEST_CHARS
    for path in sorted(folder.glob("*.py")):
        if left <= 0:
            break
        try:
            texts.append(path.read_text(encoding="utf-8", errors="replace")[:left])
        except OSError:
            continue
        left -= len(texts[-1])
    if LARGEST_CHARS - left < LEAST_CHARS:
        raise ConfigError(f"dataset.path: {folder} holds no sources of the standard library; name a text file")
    return "".join(texts)
