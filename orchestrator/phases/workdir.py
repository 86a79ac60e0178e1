"""Asks one node about the folder that takes the code, and gives typed answers."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import AortaError, NodeError, PushError
from orchestrator.light_dataclass import dataclass
from orchestrator.plan.manifest import Manifest
from orchestrator.plan.paths import file_name
from orchestrator.transport import Link
from orchestrator.transport.answers import read_frame

if TYPE_CHECKING:
    from orchestrator.settings import Settings

ASK_S = 60.0
SLOW_BYTES_A_S = 20e6
"""A cold disk hashes at least so fast."""
BEAT_S = 10.0
"""A node lets go of the folder when it hears nothing for six times as long."""
END_S = 5.0
"""For a program that was told to end."""
OURS = ("ours", "launch-host")


def default_workdir(project: Path) -> str:
    """Name the folder on a node for a project."""
    return f"~/.aorta/code/{file_name(project.resolve().name)}"


def folder_words(settings: Settings) -> dict[str, Any]:
    """Build what lets a node choose the folder: the one that is asked for, or of two one that is this project's."""
    project, host = str(settings.project.resolve()), socket.gethostname()
    words = {"project": project, "launch_host": host, "push": settings.push}
    if settings.workdir:
        return {**words, "workdir": settings.workdir}
    first = default_workdir(settings.project)
    # Projects of equal names, from here or from other launch hosts, must not overwrite each other in turn.
    mark = hashlib.sha256(f"{host}:{project}".encode("utf-8", "surrogateescape")).hexdigest()[:6]
    return {**words, "workdir": first, "other": f"{first}-{mark}"}


@dataclass(frozen=True, kw_only=True)
class Question:
    """What every inspection of one push has in common."""

    words: Mapping[str, Any]
    """See folder_words."""
    run_id: str
    nonce: str = ""
    """Name of the file that stands in the launch host's own tree at this moment."""
    manifest: Manifest | None = None
    """None when the folder is used as it is."""

    @property
    def limit_s(self) -> float:
        """How long an answer may take."""
        return ASK_S + (self.manifest.total_bytes / SLOW_BYTES_A_S if self.manifest else 0.0)


@dataclass(frozen=True, kw_only=True)
class Workdir:
    """The folder on one node as it was found."""

    node: str
    path: str
    other: bool
    """It is the other one of the two that go by the project's name."""
    busy: str | None
    """The run whose launch fills it at this moment; then nothing else is known."""
    without: str
    """Why it cannot be locked against others there."""
    taken: bool
    """A run of this id is there already."""
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
    exists: bool
    """Asked only when the folder is used as it is."""


@dataclass(frozen=True, kw_only=True)
class Filling:
    """Whether a folder may be filled: yes, when nothing is said."""

    holders: tuple[str, ...]
    """The live runs that use it."""
    busy: str | None
    """The run whose launch fills it; empty: somebody looks at it."""
    changed: bool
    """It was filled by another since it was looked at."""

    @property
    def ours(self) -> bool:
        """It is this launch's alone."""
        return not self.holders and self.busy is None and not self.changed


class Keeper:
    """The program that keeps the code folder of one node for this launch; it lives until it is closed."""

    def __init__(self, link: Link, node_rank: int, question: Question) -> None:
        self.node = link.node.name
        self.link = link
        self._question = question
        self._sending = threading.Lock()
        request = {**question.words, "run_id": question.run_id, "nonce": question.nonce, "node_rank": node_rank}
        if question.manifest is None:
            request["act"] = "find"
        else:
            request |= {"act": "inspect", "tree_hash": question.manifest.tree_hash}
        self._knows_manifest = False
        self._first: str | None = request["act"]
        self._channel = link.open("tree", request)

    def look(self, *, move: bool = False) -> Workdir:
        """Look at the folder and hash it; move: from now on the other one of the two.

        Raises:
            PushError: the node cannot read or write there.
            LinkLostError: the node does not answer.
        """
        act = "find" if self._question.manifest is None else "inspect"
        return self._workdir(self._ask({"act": act, "move": move}))

    def prove(self, token: str) -> Workdir:
        """Look once more after the push of a token, and note that this push has ended."""
        return self._workdir(self._ask({"act": "inspect", "token": token}))

    def fill(self) -> Filling:
        """Ask to have the folder alone."""
        answer = self._ask({"act": "fill"})
        return Filling(
            holders=tuple(answer.get("holders", ())), busy=answer.get("busy"), changed=bool(answer.get("changed"))
        )

    def leave(self) -> None:
        """Let others have the folder."""
        self._ask({"act": "leave"})

    def prepare(self, *, token: str, remove: Sequence[str], marker: Mapping[str, Any]) -> tuple[list[str], int]:
        """Mark the folder as ours and remove what is gone here; list what stands in the way, and give the free bytes."""
        order = {"act": "prepare", "token": token, "remove": list(remove), "marker": dict(marker)}
        answer = self._ask(order | self._manifest())
        return [str(path) for path in answer["blocked"]], int(answer["free_bytes"])

    def put(self, packed: str) -> None:
        """Put what is packed into the folder."""
        self._ask({"act": "put", "packed": packed})

    def read_neighbours(self, token: str) -> tuple[int, ...]:
        """List the indices of all nodes whose folder is this very one."""
        return tuple(self._ask({"act": "seen", "token": token})["seen"])

    def beat(self) -> None:
        """Let hear that we are still at it."""
        with self._sending, contextlib.suppress(AortaError):
            self._channel.send({"act": "beat"})

    def keep(self) -> None:
        """Say that the folder will be used, and end: without this word it is as if we had never come."""
        with self._sending:
            self._channel.send({"act": "keep"})

    def wait_end(self) -> None:
        """Wait until nothing of ours is open in the folder; what holds that up is no reason not to go on."""
        with contextlib.suppress(AortaError, TimeoutError):
            while self._channel.read(END_S) is not None:
                continue

    def close(self) -> None:
        """End the program; others may have the folder."""
        with self._sending:
            self._channel.close()

    def _manifest(self) -> dict[str, str]:
        """Send the manifest along, unless the node has it."""
        manifest = self._question.manifest
        if manifest is None or self._knows_manifest:
            return {}
        self._knows_manifest = True
        return {"manifest": manifest.packed}

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        # The first act was asked with the program's start.
        first, self._first = self._first, None
        try:
            if first != order["act"]:
                with self._sending:
                    self._channel.send(order)
            answer = dict(read_frame(self._channel, self.node, self._question.limit_s).header)
            # A node that remembers no tree of this hash, whatever is in the folder, has to be told what belongs there.
            if "need" in answer and (manifest := self._manifest()):
                return self._ask({**order, **manifest})
            return answer  # noqa: TRY300 - the rest is one line
        except NodeError as error:
            raise PushError(what=error.what, where=error.where, remedy=error.remedy) from error

    def _workdir(self, answer: Mapping[str, Any]) -> Workdir:
        marker = answer.get("marker") or {}
        return Workdir(
            node=self.node,
            path=str(answer["workdir"]),
            other=bool(answer.get("other")),
            busy=answer.get("busy"),
            without=str(answer.get("without", "")),
            taken=bool(answer.get("taken")),
            state=str(answer.get("state", "")),
            owner=str(answer.get("owner", "")),
            inside=str(answer.get("inside", "")),
            tree_hash=str(answer.get("hash", "")),
            missing=tuple(answer.get("missing", ())),
            different=tuple(answer.get("different", ())),
            stale=tuple(path for path, _kind in answer.get("stale", ())),
            extra=tuple((path, bool(is_folder)) for path, is_folder in answer.get("extra", ())),
            pushed_from=f"{marker.get('launch_host', '')}:{marker.get('project', '')}" if marker else "",
            exists=bool(answer.get("exists")),
        )


@contextlib.contextmanager
def beating(keepers: Sequence[Keeper]) -> Iterator[None]:
    """Let all nodes hear from us while one of them takes long."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_S):
            for keeper in keepers:
                keeper.beat()

    thread = threading.Thread(target=beat, name="beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
