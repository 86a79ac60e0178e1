"""Takes a cluster down when the process that owns it is gone, however it went: `python -m cluster.guard STATE`.

The owner holds the other end of this program's stdin. An end of file is the one sign that comes after an exception, a
SIGTERM and a SIGKILL alike.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .life import down


def main() -> None:
    """Wait for the owner's end, then tidy up."""
    while sys.stdin.buffer.read(1 << 12):
        pass
    state = Path(sys.argv[1])
    if state.exists():
        down(state)


if __name__ == "__main__":
    main()
