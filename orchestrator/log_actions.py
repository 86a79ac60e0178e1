"""What the verb logs does: choose log files of a run, read them, print them as the live view would."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from orchestrator.errors import AortaError, UsageError
from orchestrator.light_dataclass import dataclass
from orchestrator.nodelist import find_nodes
from orchestrator.output.console import Talk, build_talk
from orchestrator.output.node_log import render_dropped
from orchestrator.output.pipes import drain_to_nowhere, wait_read
from orchestrator.output.screen import LogScreen, open_screen, parse_ranks
from orchestrator.output.wording import strip_controls
from orchestrator.phases import control
from orchestrator.phases.attend import ensure_controller
from orchestrator.phases.known_runs import KnownRun, choose_run, reach_settings, read_known_runs
from orchestrator.phases.logfetch import fetch_missing
from orchestrator.phases.logview import (
    Dropped,
    LogFile,
    Piece,
    choose_files,
    follow,
    list_files,
    open_tails,
    read_in_order,
    render_piece,
)
from orchestrator.phases.saved_run import SavedRun, read_saved_run
from orchestrator.settings import Settings
from orchestrator.values import Exit

POLL_S = 0.2
LOOK_S = 1.0


@dataclass(frozen=True, kw_only=True)
class LogWords:
    """What of a run's logs is asked for."""

    ranks: str | None
    nodes: tuple[str, ...]
    since_s: float | None
    stream: str
    raw: bool
    follow: bool


def logs(settings: Settings, run: str | None, words: LogWords) -> int:
    """Print what ranks wrote, as far as it is here; with follow until the run is over."""
    talk = build_talk(settings, os.environ, stdout=sys.stdout, stderr=sys.stderr)
    known = choose_run(read_known_runs(Path.home()), run, "logs")
    reach = reach_settings(settings, known)
    saved = wait_plan(known, words)
    files = choose(saved, settings, words)
    if known.live:
        fetch_missing(known, reach, talk, files)
    tails = open_tails(files, None if words.since_s is None else time.time() - words.since_s)
    out = sys.stdout.buffer
    end = End(known, reach, talk)

    def read() -> Iterator[tuple[LogFile, Piece]]:
        yield from read_in_order(tails)
        if words.follow:
            yield from follow(tails, end, lambda: wait_read(out, POLL_S))

    if words.raw:
        print_raw(read(), out, talk)
    else:
        print_lines(
            read(),
            open_screen(out, None, int(saved.document["plan"]["world_size"]), settings.color, os.environ, agents=True),
        )
    if words.follow and not words.raw:
        verdict = read_saved_run(known).verdict
        if verdict is not None:
            how = f"{verdict.state} · exit code {verdict.exit_code}"
            talk.say(f"{known.run_id} is over: " + " · ".join(filter(None, (how, strip_controls(verdict.cause)))))
    return int(Exit.FAILED if end.failed else Exit.DONE)


def wait_plan(known: KnownRun, words: LogWords) -> SavedRun:
    """Give the record of a run that has a plan; a follower waits for it.

    Raises:
        UsageError: there is none: nothing was started.
    """
    while (saved := read_saved_run(known)).plan is None:
        if not words.follow or not control.has_controller(known.run_id):
            raise UsageError(
                what=f"{known.run_id} has no logs: nothing was started (state: {saved.state})",
                where=known.experiment,
                remedy="with -f logs waits for a run that is about to start",
            )
        time.sleep(POLL_S)
    return saved


class End:
    """Tells whether no more log bytes can come; a controller that died meanwhile gets a successor."""

    def __init__(self, known: KnownRun, settings: Settings, talk: Talk) -> None:
        self._known = known
        self._settings = settings
        self._talk = talk
        self._looked = 0.0
        self.failed = False
        """The run is not over, and nobody can go on with it."""

    def __call__(self) -> bool:
        """Look once a second."""
        if time.monotonic() < self._looked + LOOK_S:
            return False
        self._looked = time.monotonic()
        saved = read_saved_run(self._known)
        if saved.verdict is not None or saved.complete:
            return not control.has_controller(self._known.run_id)
        if saved.state == "unknown" and not control.has_controller(self._known.run_id):
            self._talk.warn(f"no more logs can be fetched: {saved.document.get('error', 'no reason is known')}")
            self.failed = True
            return True
        try:
            ensure_controller(self._known, self._settings, self._talk)
        except AortaError as error:
            self._talk.warn(f"nobody fetches the logs any more: {error}")
            self.failed = True
            return True
        return False


def choose(saved: SavedRun, settings: Settings, words: LogWords) -> list[LogFile]:
    """Choose the log files that are meant.

    Raises:
        UsageError: names or ranks that the run does not have, or --raw for more than one stream of one rank.
    """
    said = settings.ranks if settings.origins.get("ranks", "default") != "default" else None
    own = str(saved.known.control.get("ranks", settings.ranks))
    plan = saved.document["plan"]
    ranks = parse_ranks(words.ranks or ("all" if words.nodes else said or own), int(plan["world_size"]), "--rank")
    nodes = find_nodes(saved.known.nodes, words.nodes, "--node") if words.nodes else None
    files = list_files(plan, saved.paths)
    # Raw bytes are of one stream: of the two it is stdout, unless the other one is named.
    chosen = choose_files(files, ranks, nodes, "out" if words.raw and words.stream == "both" else words.stream)
    if words.raw:
        chosen = [file for file in chosen if file.rank is not None]
        if len(chosen) != 1:
            raise UsageError(
                what=f"--raw prints the bytes of one rank, not of {len(chosen)}",
                where="--raw",
                remedy="name one with --rank N",
            )
    return chosen


def print_lines(pieces: Iterator[tuple[LogFile, Piece]], screen: LogScreen) -> None:
    """Print by whole line until the end, or until nobody reads any more.

    Raises:
        AortaError: the output cannot be written.
    """
    try:
        for file, piece in pieces:
            screen.feed(file.node_rank, file.rank, file.stream, render_piece(piece))
            if screen.closed:
                break
    finally:
        screen.hide_state()
        screen.flush()
    if screen.broken is not None:
        raise unwritten(screen.broken)


def print_raw(pieces: Iterator[tuple[LogFile, Piece]], out: BinaryIO, talk: Talk) -> None:
    """Write the very bytes and nothing else; what is missing is told beside them.

    Raises:
        AortaError: the output cannot be written.
    """
    try:
        for file, piece in pieces:
            if isinstance(piece, Dropped):
                talk.warn(f"{file.path.name}: {render_dropped(piece.size).decode()}")
                continue
            out.write(piece)
            out.flush()
    except OSError as error:
        drain_to_nowhere(out, error)
        # That nobody reads any more is no error: a copy that is cut short is.
        if not isinstance(error, BrokenPipeError):
            raise unwritten(error) from error


def unwritten(error: OSError) -> AortaError:
    """Build the error of an output that cannot be written."""
    return AortaError(
        what=f"what is printed cannot be written: {error.strerror}", where="stdout", remedy="free space there"
    )
