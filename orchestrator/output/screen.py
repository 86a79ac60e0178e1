"""The one printer of training output: bytes of many ranks in, whole readable lines out."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from typing import BinaryIO

from orchestrator.errors import ConfigError
from orchestrator.light_dataclass import dataclass
from orchestrator.output.blocks import has_longer_line, prefix_lines
from orchestrator.output.console import wants_color
from orchestrator.output.pipes import drain_to_nowhere
from orchestrator.output.wording import CONTROL, keep_colors, strip_controls

LINE_CHARS = 4096
"""Longest line on the screen; the files hold it whole."""
HELD_BYTES = 64 * 1024
"""What is kept of a line that does not end."""
REDRAW_S = 0.25
"""Shortest time between two states of one progress bar."""
CUT_NOTE = " … (cut here, the log file holds the whole line)"

_CONTROLS = bytes(number for number in range(128) if CONTROL.match(chr(number)))
_RESET = "\x1b[0m"
_COLORS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)


def parse_ranks(text: str, world_size: int, flag: str = "--ranks") -> frozenset[int] | None:
    """Parse which ranks are shown: None is all of them.

    Raises:
        ConfigError: not a list of ranks of this run.
    """
    if text.strip() == "all":
        return None
    remedy = "give all, or ranks and ranges such as 0,3-5"
    chosen: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            raise ConfigError(f"{part!r} names no rank", flag, remedy)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= world_size:
            raise ConfigError(f"{part.strip()} is not within ranks 0 to {world_size - 1} of this run", flag, remedy)
        chosen.update(range(first, last + 1))
    return frozenset(chosen)


def render_line(raw: bytes) -> str:
    """Make one line of a rank fit for a screen: last state of a progress bar, valid text, colours only, bounded."""
    state = raw.rstrip(b"\r").rpartition(b"\r")[2]
    text = state[:HELD_BYTES].decode("utf-8", "replace")
    if CONTROL.search(text):
        text = keep_colors(text)
        if "\x1b" in text and not text.endswith(_RESET):
            text += _RESET
    if len(text) > LINE_CHARS or len(state) > HELD_BYTES:
        text = text[:LINE_CHARS] + (_RESET if "\x1b" in text else "") + CUT_NOTE
    return text


@dataclass
class _Source:
    """One stream of one rank: how its lines begin, and what of its last line has come."""

    prefix: str
    held: bytes = b""
    drawn_at: float = float("-inf")


class LogScreen:
    """Print the chosen ranks' output by whole line; call it from one thread only."""

    def __init__(
        self,
        out: BinaryIO,
        *,
        ranks: frozenset[int] | None,
        world_size: int,
        agents: bool = False,
        terminal: bool = False,
        color: bool = False,
        width: int = 80,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Choose what is shown: ranks (None: all), and whether the agents' own words are."""
        self._out = out
        self._ranks = ranks
        self._agents = agents
        self._digits = len(str(max(0, world_size - 1)))
        self._terminal = terminal
        self._color = color
        self._width = width
        self._clock = clock
        self._sources: dict[tuple[int, int | None, str], _Source] = {}
        self._live = False
        self.closed = False
        """Nothing can be printed any more; the run goes on."""
        self.broken: OSError | None = None
        """Why, where it is another reason than that nobody reads any more: a full disk."""

    def feed(self, node_rank: int, rank: int | None, stream: str, data: bytes) -> None:
        """Take what a rank (None: the agent) wrote to "out" or "err", cut anywhere."""
        if self.closed or not self.shows(rank):
            return
        key = (node_rank, rank, stream)
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = _Source(self._build_prefix(node_rank, rank))
        block, newline, rest = data.rpartition(b"\n")
        if newline:
            self._print_lines(source, source.held + block)
            source.held = b""
        source.held = _bounded(source.held + rest)
        if self._terminal and b"\r" in data:
            self._draw_state(source)

    def hide_state(self) -> None:
        """Remove the progress bar at the bottom, before somebody else writes to the terminal."""
        if self._live:
            self._live = False
            self._write(b"\r\x1b[2K")

    def flush(self) -> None:
        """Print the lines that never ended."""
        for source in self._sources.values():
            if source.held.rstrip(b"\r"):
                self._print_lines(source, source.held)
            source.held = b""

    def shows(self, rank: int | None) -> bool:
        """Tell whether this rank (None: the agents) is shown at all."""
        if rank is None:
            return self._agents
        return self._ranks is None or rank in self._ranks

    def _build_prefix(self, node_rank: int, rank: int | None) -> str:
        name = "agent" if rank is None else str(rank).rjust(self._digits)
        prefix = f"[{node_rank}:{name}]"
        if self._color:
            shade = 90 if rank is None else _COLORS[rank % len(_COLORS)]
            prefix = f"\x1b[{shade}m{prefix}{_RESET}"
        return prefix + " "

    def _print_lines(self, source: _Source, block: bytes) -> None:
        if block.isascii():
            # Thirty passes at the speed of memory take less time than one that looks at each byte.
            plain = not any(control in block for control in _CONTROLS)
        else:
            # Whole lines decode by themselves: a character never spans a newline in UTF-8.
            text = block.decode("utf-8", "replace")
            plain = not CONTROL.search(text)
            block = text.encode() if plain else block
        if not plain or has_longer_line(block, LINE_CHARS):
            block = b"\n".join(render_line(line).encode() for line in block.split(b"\n"))
        self.hide_state()
        self._write(prefix_lines(block, source.prefix.encode()))

    def _draw_state(self, source: _Source) -> None:
        now = self._clock()
        if now - source.drawn_at < REDRAW_S or not source.held.rstrip(b"\r"):
            return
        source.drawn_at = now
        plain = strip_controls(render_line(source.held))
        room = self._width - 1 - len(strip_controls(source.prefix))
        self._write(f"\r\x1b[2K{source.prefix}{plain[: max(0, room)]}".encode())
        self._live = True

    def _write(self, data: bytes) -> None:
        if self.closed:
            return
        try:
            self._out.write(data)
            self._out.flush()
        except OSError as error:  # nobody reads any more, or a full disk is behind it: the run goes on
            self.closed = True
            self.broken = None if isinstance(error, BrokenPipeError) else error
            drain_to_nowhere(self._out, error)


def open_screen(
    out: BinaryIO,
    ranks: frozenset[int] | None,
    world_size: int,
    color: str,
    environ: Mapping[str, str],
    *,
    agents: bool = False,
) -> LogScreen:
    """Make the screen of one of our streams, as wide and as colourful as whoever looks at it."""
    terminal = out.isatty()
    return LogScreen(
        out,
        ranks=ranks,
        world_size=world_size,
        agents=agents,
        terminal=terminal,
        color=wants_color(color, environ, terminal=terminal),
        width=shutil.get_terminal_size().columns,
    )


def _bounded(held: bytes) -> bytes:
    """Keep of an unfinished line only what render_line would show: the last state, and that within bounds."""
    if not held:
        return held
    body = held.rstrip(b"\r")
    kept = body.rpartition(b"\r")[2][: HELD_BYTES + 1]
    # The return is kept because what follows it replaces the state, unless it is a newline.
    return kept + b"\r" if len(body) < len(held) else kept
