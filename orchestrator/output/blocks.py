"""Blocks of whole lines, worked on at the speed of memory: ranks may print 100 MB a second."""

from __future__ import annotations


def has_longer_line(block: bytes, limit: int) -> bool:
    """Tell whether a line of a block has more bytes than so many."""
    place = 0
    while len(block) - place > limit:
        # The last newline within reach: lines that all end before it need no look of their own.
        end = block.rfind(b"\n", place, place + limit + 1)
        if end < 0:
            return True
        place = end + 1
    return False


def prefix_lines(block: bytes, prefix: bytes) -> bytes:
    """Put a prefix in front of every line of a block whose last newline was taken off, and end it with one."""
    return b"%b%b\n" % (prefix, block.replace(b"\n", b"\n" + prefix))
