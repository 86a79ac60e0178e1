"""Who gets to hear what: talk to stderr, results and training output to stdout, colour where it is wanted."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.text import Text

from orchestrator.errors import AortaError
from orchestrator.noderanges import fold_names
from orchestrator.output.errors import render_error, render_error_json
from orchestrator.output.pipes import drain_to_nowhere
from orchestrator.output.wording import strip_controls

if TYPE_CHECKING:
    from orchestrator.settings import Settings

PIPED_WIDTH = 160
"""Columns of tables that go to a file or a pipe, where nobody has a width."""

GLANCE_S = 1.0
"""What is done sooner needs no word."""


PATIENCE_S = 5.0
"""What takes longer is told again, with the nodes that are still waited for."""


class Talk:
    """The launcher's own voice: stderr for talk, stdout for results."""

    def __init__(self, *, err: Console, out: Console, verbosity: int, as_json: bool) -> None:
        self.err = err
        self.out = out
        self.verbosity = verbosity
        self.as_json = as_json
        self.clear_line: Callable[[], None] = lambda: None
        """Removes a progress bar of the training from the terminal's last line."""
        self._kept: Console | None = None

    def keep_in(self, path: Path) -> None:
        """Write whatever is told from now on into a file too, for shells that attach later."""
        # Plain, and flushed line by line: others read while we write.
        file = path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
        self._kept = Console(
            file=file,
            width=PIPED_WIDTH,
            no_color=True,
            markup=False,
            highlight=False,
            emoji=False,
            legacy_windows=False,
        )

    def _keep(self, words: RenderableType) -> None:
        if self._kept is not None:
            with suppress(OSError):  # a disk that is full now may have space again for the next word
                for part in words.renderables if isinstance(words, Group) else (words,):
                    self._kept.print(part, soft_wrap=isinstance(part, str | Text))

    def insist(self, words: RenderableType) -> None:
        """Tell what has to be heard with -q too."""
        self._keep(words)
        self.clear_line()
        _print(self.err, words)

    def say(self, words: RenderableType) -> None:
        """Tell what happens; silent with -q."""
        if self.verbosity >= 0:
            self.insist(words)
        else:
            self._keep(words)

    def detail(self, words: RenderableType, level: int = 1) -> None:
        """Tell more; heard with -v, or -vv for level 2."""
        if self.verbosity >= level:
            self.insist(words)

    @contextmanager
    def waiting(self, words: str, names: Sequence[str] = ()) -> Iterator[Callable[[int], None]]:
        """Tell people at a terminal what is being waited for, where it takes longer than a glance.

        What it gives is told the place of each name that is no longer waited for.
        """
        left = dict(enumerate(names))
        if self.verbosity < 0 or not self.err.is_terminal:
            yield lambda _: None
            return
        over = Event()

        def tell() -> None:
            pause_s = GLANCE_S
            while not over.wait(pause_s):
                whom = sorted(left.copy())
                few = whom and (len(whom) < len(names) or pause_s > GLANCE_S)
                rest = f": waiting for {fold_names(tuple(names[place] for place in whom))}" if few else ""
                _print(self.err, Text(words + rest, "dim"))
                pause_s = PATIENCE_S

        teller = Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield left.__delitem__
        finally:
            over.set()
            teller.join()

    def warn(self, words: str) -> None:
        """Tell what the user should know even with -q."""
        self.insist(Text.assemble(("warning: ", "bold yellow"), words))

    def error(self, error: AortaError) -> None:
        """Tell what is wrong, where, and what to do about it."""
        _print(self.err, Text(strip_controls(render_error(error))))
        if self.as_json:
            _write(self.out, render_error_json(error) + "\n")

    def show(self, result: RenderableType) -> None:
        """Print the result that was asked for; with --json a document stands for it."""
        if not self.as_json:
            _print(self.out, result)

    def document(self, document: Mapping[str, Any]) -> None:
        """Print one JSON document to stdout."""
        _write(self.out, json.dumps(document, indent=2, default=str) + "\n")


def build_talk(settings: Settings, environ: Mapping[str, str], *, stdout: TextIO, stderr: TextIO) -> Talk:
    """Build the voice that the settings and the terminals ask for."""
    return Talk(
        err=build_console(stderr, settings.color, environ),
        out=build_console(stdout, settings.color, environ),
        verbosity=settings.verbosity,
        as_json=settings.json_output,
    )


class _Console(Console):
    """A console whose lost reader is an OSError: Rich's own would end the program, and with it the run."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - called inside Rich's own except


def build_console(stream: TextIO, color: str, environ: Mapping[str, str]) -> Console:
    """Build a Rich console that never takes text for markup, and wraps only for people."""
    if isinstance(stream, io.TextIOWrapper):
        # A character that the locale lacks must not turn a page into a traceback.
        stream.reconfigure(errors="backslashreplace")
    terminal = stream.isatty()
    colored = wants_color(color, environ, terminal=terminal)
    return _Console(
        file=stream,
        markup=False,
        highlight=False,
        emoji=False,
        force_terminal=colored or terminal,
        no_color=not colored,
        color_system="standard" if colored else None,
        width=None if terminal else PIPED_WIDTH,
        legacy_windows=False,
    )


def wants_color(color: str, environ: Mapping[str, str], *, terminal: bool) -> bool:
    """Decide on colour: --color, then NO_COLOR and TERM=dumb, then whether a terminal looks."""
    if color in ("always", "never"):
        return color == "always"
    return terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _print(console: Console, words: RenderableType) -> None:
    if isinstance(words, Group):
        for part in words.renderables:
            _print(console, part)
        return
    # Text is left to the terminal to wrap: a copied command or path must not hold our line breaks.
    soft = isinstance(words, str | Text)
    try:
        console.print(words, soft_wrap=soft)
    except OSError as error:  # nobody reads any more, or a full disk is behind it: the run goes on
        drain_to_nowhere(console.file, error)


def _write(console: Console, text: str) -> None:
    try:
        console.file.write(text)
        console.file.flush()
    except OSError as error:  # nobody reads any more, or a full disk is behind it: the run goes on
        drain_to_nowhere(console.file, error)
