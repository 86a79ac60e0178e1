"""docs/errors.md: each row is made by a test, compared with the page, and written where AORTA_TESTS_WRITE is set."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
WRITES = bool(os.environ.get("AORTA_TESTS_WRITE"))
HEAD = ("What is wrong", "Message", "Exit code", "Remedy")


@dataclass(frozen=True)
class Row:
    """One thing that is wrong, and what a user is told of it."""

    name: str
    message: str
    exit_code: str
    remedy: str

    @property
    def line(self) -> str:
        """The row as the page has it."""
        cells = [self.name, _code(self.message), self.exit_code, _code(self.remedy)]
        return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    lines = [line.replace("|", "\\|") for line in text.splitlines()]
    # A cell is one line of the page; a backtick in a message needs a longer fence.
    return "<br>".join(f"`` {line} ``" if "`" in line else f"`{line}`" for line in lines)


def build_row(name: str, exit_code: int, said: str, hide: Mapping[str, str]) -> Row:
    """Build a row from what a command said; hide: what differs from machine to machine, and what stands for it."""
    for text in sorted(hide, key=len, reverse=True):
        said = said.replace(text, hide[text])
    said = re.sub(r"SHA256:[A-Za-z0-9+/]{43}", "SHA256:FINGERPRINT", said)
    said = re.sub(r"\bport \d{4,5}\b|(?<=--master-port )\d+|(?<=allow )\d+(?=/tcp)", _hide_port, said)
    said = re.sub(r"\bpid \d+", "pid PID", said)
    said = re.sub(r"(http.server) \d+", r"\1 PORT", said)
    said = re.sub(r"(sport = :)\d+", r"\1PORT", said)
    messages: list[str] = []
    remedies: list[str] = []
    for line in said.splitlines():
        if line.startswith("  → "):
            remedies.append(line.removeprefix("  → "))
        elif line.startswith(("error: ", "FAIL ", "warning: ")):
            messages.append(line.removeprefix("error: "))
        elif messages and line.startswith("    ") and not remedies:
            messages.append(line.strip())
    return Row(name, "\n".join(messages), str(exit_code), "\n".join(remedies))


def _hide_port(found: re.Match[str]) -> str:
    return "port PORT" if found[0].startswith("port ") else "PORT"


def read_sections() -> dict[str, list[str]]:
    """Read the lines of every section by its title; what stands before the first has none."""
    sections: dict[str, list[str]] = {"": []}
    lines = sections[""]
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            lines = sections[line.removeprefix("## ")] = []
        else:
            lines.append(line)
    return sections


def read_section(title: str) -> dict[str, str]:
    """Read the lines of a section's table, by the name of what is wrong."""
    rows = [line for line in read_sections()[title] if line.startswith("| ")]
    return {line.split(" | ")[0].removeprefix("| "): line for line in rows[1:]}


def check_row(title: str, row: Row) -> None:
    """Assert that the page has this row; with AORTA_TESTS_WRITE put it there."""
    assert row.message, "the command said nothing"
    assert row.remedy, f"no remedy for: {row.message}"
    if WRITES:
        write_section(title, read_section(title) | {row.name: row.line})
    assert read_section(title).get(row.name) == row.line


def check_names(title: str, names: Sequence[str]) -> None:
    """Assert that the page has these rows and no others, in this order."""
    rows = read_section(title)
    if WRITES:
        write_section(title, {name: rows[name] for name in names if name in rows})
    assert list(read_section(title)) == list(names)


def write_section(title: str, rows: Mapping[str, str]) -> None:
    """Replace the table of one section."""
    sections = read_sections()
    words = [line for line in sections[title] if line and not line.startswith("|")]
    sections[title] = ["", *words, "", f"| {' | '.join(HEAD)} |", "|---|---|---|---|", *rows.values(), ""]
    text = "\n".join("\n".join([f"## {name}", *lines] if name else lines) for name, lines in sections.items())
    PAGE.write_text(text.rstrip() + "\n")
