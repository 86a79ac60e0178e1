"""What one command did on many nodes: those that answer the same become one block, headed by their names."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from orchestrator.diagnosis.exits import signal_name
from orchestrator.errors import AortaError, LinkLostError
from orchestrator.noderanges import fold_names
from orchestrator.output.wording import count, render_duration, strip_controls
from orchestrator.values import Executed, Exit, Stream


def fold_executed(results: Sequence[Executed]) -> list[list[Executed]]:
    """Fold the nodes on which the same happened and the same was written, in the order of first sight."""
    groups: dict[tuple[Any, ...], list[Executed]] = {}
    for one in results:
        # How long it took and which pids survived differs where nothing else does.
        key = (one.code, one.signal, one.ended, one.not_started, one.left_behind, one.stdout, one.stderr)
        groups.setdefault((*key, tuple(command for _, command in one.survivors)), []).append(one)
    return list(groups.values())


def render_head(group: Sequence[Executed]) -> Text:
    """Render the line above a block: who, how many, how it ended."""
    names = fold_names(tuple(one.node for one in group))
    style = "green" if group[0].clean else "bold red"
    text = Text.assemble((names, "bold"), f" ({count(len(group), 'node')}): ", (render_end(group), style))
    for one in group:
        for pid, command in one.survivors:
            text.append(f"\n  {one.node} pid {pid}  {strip_controls(command)}", "red")
    return text


def render_end(group: Sequence[Executed]) -> str:
    """Say how the command ended on nodes where it ended the same way."""
    one = group[0]
    said = [f"ended by {signal_name(one.signal)}" if one.signal is not None else f"exit code {one.code}"]
    if one.code is None and one.signal is None:
        said = ["it could not be ended"]
    if one.not_started:
        said.append(f"it did not start: {one.not_started}")
    if one.ended == "timed out":
        said.insert(0, f"timed out after {render_duration(max(each.seconds for each in group))}")
    elif one.ended:
        said.insert(0, one.ended)
    if one.left_behind:
        said.append(
            f"{one.left_behind} process{'' if one.left_behind == 1 else 'es'} left in the background, ended too"
        )
    if one.survivors:
        said.append(f"{len(one.survivors)} STILL RUNNING")
    return " · ".join(said)


def render_body(one: Executed) -> Iterator[str]:
    """Give what was written, ready for a terminal; stderr stands apart."""
    out, err = render_stream(one.stdout), render_stream(one.stderr)
    if out:
        yield out
    if err:
        yield f"stderr:\n{err}"


def render_stream(stream: Stream) -> str:
    """Turn bytes of a node into text that does nothing to a terminal and ends with a line's end."""
    data = stream.data
    text = strip_controls(decode(data))
    if stream.left_out:
        head, tail = decode(data[: stream.cut_at]), decode(data[stream.cut_at :])
        gap = f"… {stream.left_out:,} bytes left out …"
        text = f"{strip_controls(head)}\n{gap}\n{strip_controls(tail)}"
    return text if not text or text.endswith("\n") else text + "\n"


def decode(data: bytes) -> str:
    """Read UTF-8; a byte that is none is shown as what it is."""
    return data.decode("utf-8", "backslashreplace")


def executed_exit(results: Sequence[Executed], errors: Sequence[AortaError]) -> Exit:
    """Decide the exit code: a node that was not reached weighs most, then one that was lost, then a command that failed."""
    if any(not isinstance(error, LinkLostError) for error in errors):
        return Exit.NOT_READY
    if errors:
        return Exit.NODE_LOST
    return Exit.DONE if all(one.clean for one in results) else Exit.FAILED


def executed_document(
    words: Sequence[str],
    names: Sequence[str],
    results: Mapping[int, Executed],
    errors: Mapping[int, AortaError],
    code: int,
) -> dict[str, Any]:
    """Build the JSON document, one entry a node, in the order of the list."""
    return {
        "schema": 1,
        "command": [word.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for word in words],
        "exit_code": code,
        "nodes": [_node_document(name, results.get(place), errors.get(place)) for place, name in enumerate(names)],
    }


def _node_document(name: str, one: Executed | None, error: AortaError | None) -> dict[str, Any]:
    if one is None:
        what = error.what if error else "it has not said how the command ended there"
        return {"node": name, "error": what, "remedy": error.remedy if error else ""}
    return {
        "node": name,
        "exit_code": one.code,
        "signal": signal_name(one.signal),
        "ended": one.ended,
        "not_started": one.not_started,
        "seconds": round(one.seconds, 3),
        **_stream_document("stdout", one.stdout),
        **_stream_document("stderr", one.stderr),
        "left_behind": one.left_behind,
        "survivors": [{"pid": pid, "command": command} for pid, command in one.survivors],
    }


def _stream_document(name: str, stream: Stream) -> dict[str, Any]:
    document: dict[str, Any] = {name: decode(stream.data), f"{name}_left_out": stream.left_out}
    if stream.left_out:
        document[f"{name}_cut_at"] = stream.cut_at
    try:
        stream.data.decode("utf-8")
    except UnicodeDecodeError:
        # The very bytes, where the text above cannot hold them.
        document[f"{name}_base64"] = base64.b64encode(stream.data).decode("ascii")
    return document
