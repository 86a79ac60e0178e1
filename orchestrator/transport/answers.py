"""What a program on a node has to say: waited for with a limit, and its errors turned into ours."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import LinkLostError, NodeError
from orchestrator.transport import Channel, Frame


def read_frame(channel: Channel, where: str, limit_s: float) -> Frame:
    """Wait for the next frame of a program that has to send one.

    Raises:
        LinkLostError: none came in time.
        NodeError: the program ended without one, or it is an error.
    """
    try:
        frame = channel.read(limit_s)
    except TimeoutError:
        raise LinkLostError(
            what=f"no answer within {limit_s:g} s",
            where=where,
            remedy="is the node overloaded, its disk hanging, or a login file (.bashrc) waiting for something?",
        ) from None
    if frame is None:
        raise NodeError(what="the launcher's program ended without an answer", where=where)
    if "error" in frame.header:
        remedy = str(frame.header.get("remedy", ""))
        raise NodeError(what=str(frame.header["error"]), where=where, remedy=remedy)
    return frame


def read_answer(channel: Channel, where: str, timeout_s: float) -> dict[str, Any]:
    """Wait for the single answer of a program that gives one, and close the channel."""
    try:
        frame = read_frame(channel, where, timeout_s)
    finally:
        channel.close()
    return {**frame.header, "body": frame.body} if frame.body else dict(frame.header)
