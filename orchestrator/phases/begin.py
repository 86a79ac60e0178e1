"""Begins a push while something else is still going on: reads the project and has every node look at its folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.light_dataclass import dataclass
from orchestrator.phases.later import Later
from orchestrator.phases.tree import Tree, read_tree
from orchestrator.phases.turns import open_keepers
from orchestrator.phases.workdir import Keeper, Question, folder_words
from orchestrator.transport import Link

if TYPE_CHECKING:
    from orchestrator.settings import Settings

CANCEL_S = 5.0
"""For what is being begun in the very moment in which it is called off; after that it undoes itself."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A push that has begun: nothing was changed on any node, and undoing it leaves nothing."""

    tree: Tree | None
    """None when nothing is pushed."""
    keepers: Sequence[Keeper]
    """Each was asked to look already."""
    undo: ExitStack


def open_push(links: Sequence[Link], settings: Settings, run_id: str, tree: Tree | None = None) -> Opened:
    """Read the project, and have every node look at its folder.

    Raises:
        PushError: the project cannot be read.
        AortaError: a node on which the program does not start.
    """
    with ExitStack() as undo:
        words = folder_words(settings)
        question = Question(words=words, run_id=run_id)
        if settings.push:
            tree = tree or read_tree(settings)
            nonce = undo.enter_context(own_nonce(tree.root))
            question = Question(words=words, run_id=run_id, nonce=nonce, manifest=tree.manifest)
        keepers = undo.enter_context(open_keepers(links, question, settings.fanout))
        return Opened(tree=tree, keepers=keepers, undo=undo.pop_all())
    raise AssertionError


@contextmanager
def own_nonce(root: Path) -> Iterator[str]:
    """Leave a file in the project for a moment: a node that sees it has the launch host's own tree before it."""
    name = f".aorta-nonce-{secrets.token_hex(8)}"
    file = root / name
    before = root.stat().st_mtime_ns
    try:
        file.touch(exist_ok=False)
    except OSError:
        yield name  # a read-only project: no node can be made to write into it either
        return
    ours = root.stat().st_mtime_ns
    try:
        yield name
    finally:
        with suppress(OSError):
            untouched = root.stat().st_mtime_ns == ours
            file.unlink()
            if untouched:
                os.utime(root, ns=(root.stat().st_atime_ns, before))


class Begun:
    """A push that has been begun beside something else, to be taken over by push_code, or called off."""

    def __init__(self, links: Sequence[Link], settings: Settings, run_id: str) -> None:
        self.run_id = run_id
        self._opened = Later(
            "begin push", lambda: open_push(links, settings, run_id), lambda opened: opened.undo.close()
        )

    def take(self) -> Opened:
        """Wait for it, and have it; the one who takes it undoes it.

        Raises:
            AortaError: see open_push.
        """
        return self._opened.take()

    def cancel(self) -> None:
        """Call it off, unless it was taken: every node forgets that it was asked, and the project is as it was."""
        self._opened.cancel(CANCEL_S)
