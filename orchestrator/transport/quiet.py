"""Stands between rsync and ssh, and drops what a noisy login shell prints before rsync's own stream begins.

Run as `python -I -S quiet.py COUNT SSH-WORDS... [-l USER] HOST COMMAND...`: COUNT says how many words are ssh's. rsync
takes the first bytes that it reads for its protocol; a .bashrc that prints a greeting would end every copy.
"""

from __future__ import annotations

import os
import select
import sys

TYPE_CHECKING = (
    False  # one of these is started a node: what typing and subprocess cost would cost more than all of this
)
if TYPE_CHECKING:
    from collections.abc import Sequence

TERM, PIPE = 15, 13
"""As in the module signal, which costs a fifth of a start of Python."""
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


def start(words: list[str]) -> tuple[int, int]:
    """Start the command with a pipe as its stdout; give its pid and our end."""
    stream, theirs = os.pipe()
    to_stdout = [(os.POSIX_SPAWN_DUP2, theirs, 1)]
    # Python ignores SIGPIPE, and what it starts would too.
    pid = os.posix_spawnp(words[0], words, os.environ, file_actions=to_stdout, setsigdef=[PIPE])
    os.close(theirs)
    return pid, stream


def main(argv: Sequence[str]) -> int:
    """Carry rsync's stream to its end and give ssh's exit code."""
    marker = f"AORTA-{os.urandom(8).hex()}"
    pid, stream = start(build_words(argv, marker))
    try:
        write_all(skip_noise(stream, marker.encode()))
        while data := os.read(stream, 1 << 16):
            write_all(data)
        # rsync waits for the end of the stream, which ssh's exit alone does not give it.
        os.close(1)
    except BrokenPipeError:
        os.kill(pid, TERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
