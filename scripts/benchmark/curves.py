"""Curves as SVG: nodes across, seconds up, both by powers, so that cost that grows with the nodes is a straight line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 62, 222, 44, 46
FIRST_COLOUR = "#c2410c"
COLOURS = ("#1d4ed8", "#047857", "#7c3aed", "#475569", "#0e7490", "#a16207", "#be185d")
LABEL_GAP = 15
FACTORS = (1, 2, 5)
STYLE = "font-family:system-ui,sans-serif;font-size:12px"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """One axis: values from low to high, on pixels from begin to end."""

    low: float
    high: float
    begin: float
    end: float

    def place(self, value: float) -> float:
        """The pixel of a value."""
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.begin + part * (self.end - self.begin), 1)


def draw_curves(title: str, curves: Mapping[str, Points]) -> str:
    """Draw a figure; the first curve is the one that is looked for."""
    sizes = sorted({x for points in curves.values() for x, _ in points})
    values = [y for points in curves.values() for _, y in points]
    across = Scale(low=sizes[0], high=sizes[-1], begin=LEFT, end=WIDTH - RIGHT)
    up = Scale(low=step_down(min(values)), high=step_up(max(values)), begin=HEIGHT - BOTTOM, end=TOP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" style="{STYLE}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        text(LEFT, 22, title, size=15, colour="#111827"),
        *draw_axes(across, up, sizes),
    ]
    names = list(curves)
    colours = dict(zip(names, [FIRST_COLOUR, *COLOURS * (1 + len(names) // len(COLOURS))], strict=False))
    for name in reversed(names):  # the first one lies on top
        lines += draw_line(across, up, curves[name], colours[name], 3 if name == names[0] else 1.6)
    ends = {name: up.place(max(points)[1]) for name, points in curves.items()}
    for name, y in spread(ends).items():
        x = across.place(max(curves[name])[0])
        lines.append(text(x + 10, y + 4, name, colour=colours[name]))
    return "\n".join([*lines, "</svg>", ""])


def draw_axes(across: Scale, up: Scale, sizes: Sequence[float]) -> list[str]:
    """The frame, with a line for every tick."""
    lines = []
    for value in list_ticks(up.low, up.high):
        y = up.place(value)
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#e5e7eb"/>')
        lines.append(text(LEFT - 8, y + 4, f"{value:g}", anchor="end"))
    for value in sizes:
        x = across.place(value)
        lines.append(f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#f3f4f6"/>')
        lines.append(text(x, HEIGHT - BOTTOM + 18, f"{value:g}", anchor="middle"))
    lines.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "nodes", anchor="middle"))
    lines.append(text(LEFT - 8, TOP - 8, "seconds", anchor="end"))
    return lines


def draw_line(across: Scale, up: Scale, points: Points, colour: str, width: float) -> list[str]:
    """One curve, with a dot for every size."""
    places = [(across.place(x), up.place(y)) for x, y in sorted(points)]
    path = " ".join(f"{x},{y}" for x, y in places)
    line = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
    return [line, *(f'<circle cx="{x}" cy="{y}" r="{width + 0.8:.1f}" fill="{colour}"/>' for x, y in places)]


def text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, colour: str = "#4b5563") -> str:
    """A line of text."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}" style="font-size:{size}px">{escape(words)}</text>'


def spread(ends: Mapping[str, float]) -> dict[str, float]:
    """Places for labels beside the curves' ends, none over another and none below the frame."""
    ordered = sorted(ends, key=lambda name: ends[name])
    places: dict[str, float] = {}
    last = -math.inf
    for name in ordered:
        places[name] = last = max(ends[name], last + LABEL_GAP)
    floor: float = HEIGHT - BOTTOM
    for name in reversed(ordered):
        places[name] = floor = min(places[name], floor)
        floor -= LABEL_GAP
    assert all(places[b] - places[a] >= LABEL_GAP - 0.01 for a, b in pairwise(ordered))
    return {name: round(places[name], 1) for name in ends}


def list_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, … between two values."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in FACTORS]
    return [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]


def step_down(value: float) -> float:
    """The tick at or below a value."""
    return max(list_ticks(10.0 ** (math.floor(math.log10(value)) - 1), value))


def step_up(value: float) -> float:
    """The tick at or above a value."""
    return min(list_ticks(value, 10.0 ** (math.ceil(math.log10(value)) + 1)))
