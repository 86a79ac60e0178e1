"""Reads a config where PyYAML may be missing: a node needs Python and PyTorch, nothing else."""

from __future__ import annotations

import re
from typing import Any

INTEGER = re.compile(r"[-+]?[0-9]+")
# 3e-4 is meant as a number; YAML 1.1, and so PyYAML, makes it a text.
FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.?[0-9]+)([eE][-+]?[0-9]+)?")
WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}


class PlainYamlError(ValueError):
    """A line that is outside the subset."""


def parse_yaml(text: str, skip: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read a config with PyYAML where it is installed, else as the plain subset of it."""
    try:
        import yaml  # noqa: PLC0415 - may be missing on a node
    except ImportError:
        return parse_plain_yaml(text, skip)
    data = yaml.safe_load(text)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise PlainYamlError("the config must be a mapping of sections")
    return {key: value for key, value in data.items() if key not in skip}


def parse_plain_yaml(text: str, skip: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read nested mappings of scalars and one-line lists; top-level sections in skip are not looked at."""
    root: dict[str, Any] = {}
    # The open mappings, outermost first: how far each is indented (-1: not known yet) and its content.
    open_levels: list[tuple[int, dict[str, Any]]] = [(0, root)]
    skipping = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = _without_comment(raw).rstrip()
        if not line or line == "---":
            continue
        indent = len(line) - len(line.lstrip(" "))
        skipping = line.split(":")[0] in skip if indent == 0 else skipping
        if not skipping:
            _take_line(line.lstrip(" "), indent, open_levels, number)
    return root


def _take_line(line: str, indent: int, open_levels: list[tuple[int, dict[str, Any]]], number: int) -> None:
    found = re.fullmatch(r"([A-Za-z_][\w.-]*)\s*:(?:\s+(.*))?", line)
    if found is None:
        raise PlainYamlError(f"line {number}: {line!r} is no 'key: value'; lists of lines and the like need PyYAML")
    place, mapping = open_levels[-1]
    if place < 0:
        parent = open_levels[-2][0]
        if indent > parent:
            open_levels[-1] = (indent, mapping)
    while indent < open_levels[-1][0] or open_levels[-1][0] < 0:
        open_levels.pop()
    place, mapping = open_levels[-1]
    if indent != place:
        raise PlainYamlError(f"line {number}: indented by {indent}, which belongs to no section above")
    key, rest = found.group(1), found.group(2)
    if key in mapping:
        raise PlainYamlError(f"line {number}: {key} is given twice")
    if rest:
        mapping[key] = _parse_value(rest, number)
    else:
        mapping[key] = {}
        open_levels.append((-1, mapping[key]))


def _without_comment(line: str) -> str:
    quote = ""
    for place, sign in enumerate(line):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign == "#" and (place == 0 or line[place - 1] in " \t"):
            return line[:place]
    return line


def _parse_value(text: str, number: int) -> Any:
    if text.startswith("["):
        if not text.endswith("]"):
            raise PlainYamlError(f"line {number}: a list must end on its own line; else PyYAML is needed")
        inside = text[1:-1].strip()
        return [_parse_scalar(part.strip(), number) for part in inside.split(",")] if inside else []
    return _parse_scalar(text, number)


def _parse_scalar(text: str, number: int) -> Any:
    if text[:1] in "\"'" and text:
        if len(text) < 2 or text[-1] != text[0] or text[0] in text[1:-1] or "\\" in text:  # noqa: PLR2004 - two quotes
            raise PlainYamlError(f"line {number}: {text} needs PyYAML to be read")
        return text[1:-1]
    if text[:1] in tuple("{[&*!|>%@`"):
        raise PlainYamlError(f"line {number}: {text} needs PyYAML to be read")
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if FLOAT.fullmatch(text) else text
