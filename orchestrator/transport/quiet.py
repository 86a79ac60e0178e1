"""Stands between rsync and ssh, and drops what a noisy login shell prints before rsync's own stream begins.

Run as `python -I -S quiet.py COUNT SSH-WORDS... [-l USER] HOST COMMAND...`: COUNT says how many words are ssh's. rsync
takes the first bytes that it reads for its protocol; a .bashrc that prints a greeting would end every copy.
"""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import sys
from collections.abc import Sequence

NOISE_LIMIT = 1 << 20
"""A greeting may be this long; more is no greeting."""


def build_words(argv: Sequence[str], marker: str) -> list[str]:
    """Build the ssh command that prints the marker right before rsync takes over."""
    ssh, rest = list(argv[1 : 1 + int(argv[0])]), list(argv[1 + int(argv[0]) :])
    host = 2 if rest[0] == "-l" else 0
    # rsync has quoted its words for a remote shell; that shell is told to say the marker first.
    return [*ssh, *rest[: host + 1], f"echo {marker}; exec", *rest[host + 1 :]]


def skip_noise(stream: int, marker: bytes) -> bytes:
    """Read up to the marker's line; give what came behind it already."""
    seen = b""
    line = marker + b"\n"
    while line not in seen:
        data = os.read(stream, 1 << 16)
        if not data or len(seen) > NOISE_LIMIT:
            return seen + data  # rsync says what is wrong with it
        seen += data
    return seen.split(line, 1)[1]


def write_all(data: bytes) -> None:
    """Hand bytes to rsync."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(1, view) :]
        except BlockingIOError:
            # rsync's end is one socket for both directions, and ssh has made it non-blocking.
            select.select([], [1], [])


def main(argv: Sequence[str]) -> int:
    """Carry rsync's stream to its end and give ssh's exit code."""
    marker = f"AORTA-{secrets.token_hex(8)}"
    process = subprocess.Popen(build_words(argv, marker), stdout=subprocess.PIPE, bufsize=0)
    assert process.stdout is not None
    stream = process.stdout.fileno()
    try:
        write_all(skip_noise(stream, marker.encode()))
        while data := os.read(stream, 1 << 16):
            write_all(data)
        # rsync waits for the end of the stream, which ssh's exit alone does not give it.
        os.close(1)
    except BrokenPipeError:
        process.terminate()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
