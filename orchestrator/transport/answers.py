"""The one answer of a program that gives one."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import LinkLostError, NodeError
from orchestrator.transport import Channel


def read_answer(channel: Channel, where: str, timeout_s: float) -> dict[str, Any]:
    """Wait for the single answer, close the channel, turn an error of the program into one of ours."""
    try:
        frame = channel.read(timeout_s)
    except TimeoutError:
        raise LinkLostError(
            what=f"no answer within {timeout_s:g} s", where=where, remedy="is the node overloaded or its disk hanging?"
        ) from None
    finally:
        channel.close()
    if frame is None:
        raise NodeError(what="the launcher's program ended without an answer", where=where)
    answer = dict(frame.header)
    if "error" in answer:
        raise NodeError(what=str(answer["error"]), where=where, remedy=str(answer.get("remedy", "")))
    if frame.body:
        answer["body"] = frame.body
    return answer
