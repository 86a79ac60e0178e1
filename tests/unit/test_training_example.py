from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from workload.config import SECTIONS, Config, read_config  # noqa: E402 - found by the line above

EXAMPLE = PROJECT / "config" / "train.example.yaml"
HEAD = """\
# Every key of scripts/train.py's sections with its default. A config needs only those that it changes; an unknown key
# is an error. launch.example.yaml names the keys of launch:, which stand in the same file.
"""


def render_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def render_example() -> str:
    """The whole file, out of the schema."""
    lines = [HEAD]
    for section, kind in SECTIONS.items():
        lines.append(f"# {kind.__doc__}\n{section}:")
        for entry in dataclasses.fields(kind):
            about = entry.metadata
            others = [choice for choice in about["choices"] if choice not in about["doc"]]
            known = f" One of {', '.join(about['choices'])}." if others else ""
            only = (
                f" Needs {about['only'].replace('=>', ' > ').replace('=', ': ').replace('|', ' or ')}."
                if about["only"]
                else ""
            )
            lines.append(f"\n  # {about['doc']}{known}{only}\n  {entry.name}: {render_value(entry.default)}")
        lines.append("")
    return "\n".join(lines)


def test_the_example_names_every_key_with_its_default() -> None:
    assert EXAMPLE.read_text() == render_example()
    assert read_config(EXAMPLE) == Config()
