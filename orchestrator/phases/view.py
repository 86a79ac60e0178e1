"""The live view of a run that another process controls: its log files and its launcher's words, as they grow."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import AortaError
from orchestrator.light_dataclass import dataclass
from orchestrator.output.pipes import drain_to_nowhere, wait_read
from orchestrator.output.screen import LogScreen, open_screen, parse_ranks
from orchestrator.output.wording import count
from orchestrator.phases.attend import ensure_controller, open_watch
from orchestrator.phases.control import has_controller, tell_controller
from orchestrator.phases.finish import say_verdict
from orchestrator.phases.keys import Keys, ask_choice, caught_keys
from orchestrator.phases.logview import LogFile, LogTail, choose_files, list_files, render_piece, size_of
from orchestrator.phases.saved_run import SavedRun, read_saved_run
from orchestrator.values import Exit

if TYPE_CHECKING:
    from orchestrator.output.console import Talk
    from orchestrator.phases.known_runs import KnownRun
    from orchestrator.settings import Settings

POLL_S = 0.1
LAST_BYTES = 2000
"""So much of each rank's output before now is shown again."""
TAKEOVERS = 3
"""Controllers that end at once so often in a row will not do better the next time."""
AT_ONCE_S = 10.0


class Detached(Exception):  # noqa: N818 - no error: the user leaves, the run stays
    """Whoever watched has left; the run goes on."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


@dataclass(frozen=True)
class View:
    """Which run is shown to whom."""

    known: KnownRun
    settings: Settings
    talk: Talk


def watch_run(view: View) -> int:
    """Show a run until it is over and give its exit code; one without a controller gets a new one.

    Raises:
        AortaError: no controller can be started, or each one ends at once.
    """
    known, talk = view.known, view.talk
    saved = read_saved_run(known)
    if saved.complete and not has_controller(known.run_id):
        return tell_end(saved, talk)
    # What launch.log said of it before we came is not shown again.
    told = saved.verdict is not None and not saved.reopened
    if saved.plan is not None:
        size = f"{count(saved.plan.world_size, 'rank')} on {count(len(saved.plan.nodes), 'node')}"
        talk.say(f"{known.run_id} · {saved.state} · {size}")
    screen = Screens(view, saved)
    with caught_keys() as keys:
        tries = 0
        while tries < TAKEOVERS:
            begun = time.monotonic()
            if ensure_controller(known, view.settings, talk):
                what = "brings home what is missing" if told else "has taken it over"
                talk.say(f"{known.run_id} had no controller; a new one {what}")
            client = open_watch(known)
            try:
                if client is not None:
                    with client:
                        show_until_end(client, screen, keys, view)
                wait_released(known, screen, keys, view)
            except Detached as left:
                screen.close()
                talk.say(f"{known.run_id} goes on · aorta-launch attach {known.run_id} shows it again")
                return left.exit_code
            saved = read_saved_run(known)
            if saved.verdict is not None or saved.state in ("not started", "unknown"):
                screen.show()
                screen.close()
                return tell_end(saved, talk) if told or saved.verdict is None else exit_code_of(saved)
            tries = tries + 1 if time.monotonic() - begun < AT_ONCE_S else 0
    raise AortaError(
        what="its controllers end at once; the run itself goes on",
        where=known.run_id,
        remedy=f"see {saved.paths.launch_log}, then aorta-launch attach {known.run_id} once more",
    )


def tell_end(saved: SavedRun, talk: Talk) -> int:
    """Say how a run ended that has been over for a while."""
    if saved.verdict is not None and saved.plan is not None:
        say_verdict(talk, saved.verdict, saved.plan, saved.paths.root)
    else:
        what = "was not started" if saved.state == "not started" else "is not over"
        talk.insist(f"{saved.known.run_id} {what}: {saved.document.get('error', 'no reason is known')}")
    return exit_code_of(saved)


def exit_code_of(saved: SavedRun) -> int:
    """Give the exit code that a run's record tells."""
    if saved.verdict is not None:
        return saved.verdict.exit_code
    return int(Exit.FAILED if saved.state == "unknown" else Exit.NOT_READY)


class Screens:
    """Reads on where it stopped: what the launcher says goes to stderr, what the ranks write to stdout."""

    def __init__(self, view: View, saved: SavedRun) -> None:
        self._view = view
        self._run_json = saved.paths.run_json
        self._said = LogTail(_plain_file(saved.paths.launch_log), size_of(saved.paths.launch_log))
        self._tails: list[LogTail] = []
        self._screen: LogScreen | None = None
        self._attempt = 0
        self._seen = 0
        """When run.json was written last, as far as we have read it."""

    def show(self) -> None:
        """Show what is new."""
        self._open()
        for piece in self._said.pieces():
            if isinstance(piece, bytes):
                if self._screen is not None:
                    self._screen.hide_state()
                self._say(piece.decode("utf-8", "replace"))
        for tail in self._tails:
            for piece in tail.pieces():
                assert self._screen is not None
                self._screen.feed(tail.file.node_rank, tail.file.rank, tail.file.stream, render_piece(piece))

    @property
    def unread(self) -> bool:
        """Nobody reads any more what the ranks write."""
        return not wait_read(sys.stdout.buffer, 0)

    def _say(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError as error:  # nobody hears us any more: how the run ends is told by the exit code
            drain_to_nowhere(sys.stderr, error)

    def close(self) -> None:
        """Show the lines that did not end."""
        if self._screen is not None:
            self._screen.hide_state()
            self._screen.flush()

    def _open(self) -> None:
        """Open the log files once the run is planned, and those of a new attempt."""
        try:
            seen = self._run_json.stat().st_mtime_ns
        except OSError:
            return  # it was moved away: whoever asks for the verdict says so
        if seen == self._seen:
            return
        self._seen, saved = seen, read_saved_run(self._view.known)
        if saved.plan is None or saved.plan.attempt == self._attempt:
            return
        settings = self._view.settings
        first, self._attempt = self._attempt == 0, saved.plan.attempt
        own = str(self._view.known.control.get("ranks", settings.ranks))
        text = settings.ranks if settings.origins.get("ranks", "default").startswith("flag ") else own
        ranks = parse_ranks(text, saved.plan.world_size)
        files = choose_files(list_files(saved.document["plan"], saved.paths), ranks, None, "both")
        files = [file for file in files if file.rank is not None]
        self._tails = [LogTail(file, _last_lines(file.path) if first else 0) for file in files]
        if self._screen is None:
            self._screen = open_screen(sys.stdout.buffer, ranks, saved.plan.world_size, settings.color, os.environ)


def _plain_file(path: Path) -> LogFile:
    # It has no gaps and no times: names that are not there.
    return LogFile(path=path, times=path / "times", gaps=path / "gaps", node_rank=-1, rank=None, stream="err")


def _last_lines(path: Path) -> int:
    """Find where the last few whole lines of a file begin."""
    size = size_of(path)
    begin = max(0, size - LAST_BYTES)
    if begin == 0:
        return 0
    with path.open("rb") as file:
        file.seek(begin)
        _, newline, rest = file.read(size - begin).partition(b"\n")
    return size - len(rest) if newline else begin


def show_until_end(client: socket.socket, screen: Screens, keys: Keys, view: View) -> None:
    """Show the run until its controller closes the connection, and heed the keys meanwhile."""
    while True:
        show_on(screen, keys, view)
        ready, _, _ = select.select([client], [], [], POLL_S)
        if ready and not client.recv(1 << 16):
            return


def wait_released(known: KnownRun, screen: Screens, keys: Keys, view: View) -> None:
    """Wait until the controller has ended; it may still bring the outputs home."""
    while has_controller(known.run_id):
        show_on(screen, keys, view)
        time.sleep(POLL_S)


def show_on(screen: Screens, keys: Keys, view: View) -> None:
    """Show what is new, and heed the keys.

    Raises:
        Detached: the user leaves, or nobody reads any more.
    """
    screen.show()
    if keys.pressed:
        heed(keys, screen, view)
    if screen.unread:
        raise Detached(int(Exit.DONE))


def heed(keys: Keys, screen: Screens, view: View) -> None:
    """Do what a key press means: ask at a terminal, else leave.

    Raises:
        Detached: the run is left to itself.
    """
    number = keys.pressed.pop(0)
    if number != signal.SIGINT or not sys.stdin.isatty():
        raise Detached(128 + number)
    screen.close()
    choice = ask_choice(view.known.run_id)
    keys.pressed.clear()
    if choice == "d":
        raise Detached(int(Exit.DONE))
    if choice == "s":
        # Not waited for: meanwhile we go on showing how it ends.
        tell_controller(view.known, {"op": "stop", "how": "interrupt", "grace_s": view.settings.grace_s})
