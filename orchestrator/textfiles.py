"""Reading the files that a person names, with one clear error for each way in which that goes wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.errors import AortaError

MOST_BYTES = 16 * 2**20
"""A larger file is not what was meant, and a device file never ends."""


def read_text(path: Path, error: type[AortaError], noun: str, missing_remedy: str) -> str:
    """Read a UTF-8 file whole; its line ends stay as they are, a byte order mark goes.

    Raises:
        AortaError: of the given type, when there is no such text file.
    """
    where = str(path)
    try:
        # Bytes first: text mode would turn CRLF into LF, and a copy is to be what the file is.
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise error("no such file", where, missing_remedy) from None
    except IsADirectoryError:
        raise error(f"this is a folder, not a {noun}", where, "name the file in it") from None
    except UnicodeDecodeError as found:
        line = content.count(b"\n", 0, found.start) + 1
        raise error("not UTF-8 text", f"{where}:{line}", f"is this the right {noun}? Save it as UTF-8") from None
    except (OSError, ValueError) as found:
        reason = getattr(found, "strerror", None) or str(found)
        raise error(f"cannot be read: {reason}", where, "look at its path and its rights") from None
    if len(content) > MOST_BYTES:
        raise error(f"too large for a {noun}", where, f"is this the right {noun}?")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise error("binary data", f"{where}:{line}", f"is this the right {noun}?")
    return text
