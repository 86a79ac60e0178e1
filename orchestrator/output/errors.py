"""Errors as people and programs read them: what, where, and what to do about it."""

from __future__ import annotations

import json
import sys
import tempfile
import traceback

from orchestrator.errors import AortaError, Several
from orchestrator.noderanges import fold_names
from orchestrator.values import Exit


def fold_errors(error: AortaError) -> list[AortaError]:
    """Fold the errors of several nodes: those that say the same become one, with all their places."""
    if not isinstance(error, Several):
        return [error]
    groups: dict[tuple[type[AortaError], str, str], list[AortaError]] = {}
    for one in error.errors:
        for part in fold_errors(one):
            groups.setdefault((type(part), part.what, part.remedy), []).append(part)
    return [_fold_group(group) for group in groups.values()]


def _fold_group(group: list[AortaError]) -> AortaError:
    if len(group) == 1:
        return group[0]
    where = fold_names(tuple(error.where for error in group if error.where))
    exit_code = max(error.exit_code for error in group)
    return AortaError(group[0].what, where, group[0].remedy, exit_code=exit_code)


def render_error(error: AortaError) -> str:
    """Render an error for people: a line that says what is wrong where, a line with the remedy."""
    lines = []
    for one in fold_errors(error):
        lines.append(f"error: {one}")
        if one.remedy:
            lines.append(f"  → {one.remedy}")
    return "\n".join(lines)


def render_error_json(error: AortaError) -> str:
    """Render an error for programs: one JSON document in one line, every node by itself."""
    found = [
        {"kind": type(one).__name__, "where": one.where, "what": one.what, "remedy": one.remedy}
        for one in _flatten(error)
    ]
    return json.dumps({"schema": 1, "error": found, "exit_code": error.exit_code}, ensure_ascii=True)


def _flatten(error: AortaError) -> list[AortaError]:
    if isinstance(error, Several):
        return [part for one in error.errors for part in _flatten(one)]
    return [error]


def print_error(error: AortaError, *, as_json: bool) -> int:
    """Print an error to stderr, with as_json also as a document to stdout, and give its exit code."""
    # A name that is no UTF-8 must not turn one error into two.
    text = render_error(error).encode(sys.stderr.encoding or "utf-8", "backslashreplace")
    sys.stderr.write(text.decode(sys.stderr.encoding or "utf-8") + "\n")
    if as_json:
        sys.stdout.write(render_error_json(error) + "\n")
    return int(error.exit_code)


def print_internal_error(error: BaseException, *, as_json: bool) -> int:
    """Print one line about a bug of ours and keep its traceback in a file of the temp folder."""
    details = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="aorta-launch-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(details)
        place = file.name
    except OSError:
        place = "no file (the temp folder is not writable)"
    cause = " ".join(str(error).split())
    what = f"internal error: {type(error).__name__}: {cause}, this is a bug; details in {place}"
    return print_error(AortaError(what, exit_code=Exit.FAILED), as_json=as_json)
