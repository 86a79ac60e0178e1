"""Asks one node about the folder that takes the code, and gives typed answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import NodeError, PushError
from orchestrator.plan.manifest import Manifest
from orchestrator.transport import Link

ASK_S = 60.0
SLOW_BYTES_A_S = 20e6
"""A cold disk hashes at least so fast."""
OURS = ("ours", "launch-host")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What every inspection of one push has in common."""

    workdir: str
    project: str
    nonce: str
    """Name of the file that stands in the launch host's own tree at this moment."""
    manifest: Manifest


@dataclass(frozen=True, kw_only=True)
class Workdir:
    """The folder on one node as it was found."""

    node: str
    path: str
    state: str
    """absent, ours, foreign, launch-host, inside or above the launch host's own tree."""
    owner: str
    inside: str
    tree_hash: str
    missing: tuple[str, ...]
    different: tuple[str, ...]
    stale: tuple[str, ...]
    """Pushed before, still there, no longer in the project."""
    extra: tuple[tuple[str, bool], ...]
    """Never pushed: path, and whether it is a folder."""
    pushed_from: str
    """Host and project of the last push."""


def inspect_workdir(link: Link, question: Question, finished: str = "") -> Workdir:
    """Look at the folder and hash it; with the token of a push, note that this push has ended.

    Raises:
        PushError: the node cannot read or write there.
        LinkLostError: the node does not answer.
    """
    answer = ask(link, question, {"act": "inspect", "token": finished})
    marker = answer.get("marker") or {}
    return Workdir(
        node=link.node.name,
        path=str(answer["workdir"]),
        state=str(answer["state"]),
        owner=str(answer["owner"]),
        inside=str(answer["inside"]),
        tree_hash=str(answer.get("hash", "")),
        missing=tuple(answer.get("missing", ())),
        different=tuple(answer.get("different", ())),
        stale=tuple(path for path, _kind in answer.get("stale", ())),
        extra=tuple((path, bool(is_folder)) for path, is_folder in answer.get("extra", ())),
        pushed_from=f"{marker.get('launch_host', '')}:{marker.get('project', '')}" if marker else "",
    )


def prepare_workdir(
    link: Link, question: Question, *, token: str, index: int, remove: Sequence[str], marker: Mapping[str, Any]
) -> tuple[list[str], int]:
    """Mark the folder as ours and remove what is gone here; list what stands in the way, and give the free bytes."""
    act = {"act": "prepare", "token": token, "index": index, "remove": list(remove), "marker": dict(marker)}
    answer = ask(link, question, act)
    return [str(path) for path in answer["blocked"]], int(answer["free_bytes"])


def read_neighbours(link: Link, question: Question, token: str) -> tuple[int, ...]:
    """List the indices of all nodes whose folder is this very one."""
    return tuple(ask(link, question, {"act": "seen", "token": token}, with_manifest=False)["seen"])


def find_workdir(link: Link, workdir: str) -> tuple[str, bool]:
    """Make the folder absolute and say whether it is there."""
    answer = _call(link, {"act": "find", "workdir": workdir}, ASK_S)
    return str(answer["workdir"]), bool(answer["exists"])


def ask(link: Link, question: Question, act: Mapping[str, Any], *, with_manifest: bool = True) -> dict[str, Any]:
    """Send one request about this push."""
    request: dict[str, Any] = {
        "workdir": question.workdir,
        "project": question.project,
        "nonce": question.nonce,
        **act,
    }
    if with_manifest:
        request["manifest"] = question.manifest.packed
    return _call(link, request, ASK_S + question.manifest.total_bytes / SLOW_BYTES_A_S)


def _call(link: Link, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    try:
        return link.call("tree", request, timeout_s)
    except NodeError as error:
        raise PushError(what=error.what, where=error.where, remedy=error.remedy) from error
