"""Reads a config where PyYAML may be missing: a node needs Python and PyTorch, nothing else."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

INTEGER = re.compile(r"[-+]?[0-9]+")
# 3e-4 is meant as a number; YAML 1.1, and so PyYAML, makes it a text.
FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.?[0-9]+)([eE][-+]?[0-9]+)?")
# Octal, hexadecimal, grouped and sexagesimal numbers of YAML 1.1, and its other words for true and false.
AMBIGUOUS = re.compile(
    r"[-+]?0[0-9_]+|[-+]?[0-9]+_[0-9_.]*|[-+]?0[xXbBoO][0-9a-fA-F_]+|[-+]?[0-9]+(:[0-9]+)+(\.[0-9]*)?"
    r"|(?i:yes|no|on|off)"
)
WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
KEY = re.compile(r"([A-Za-z_][\w.-]*)\s*:(?:\s+(.*))?")
OPENERS = {"[": "]", "{": "}"}

Lines = dict[tuple[str, ...], int]
"""Where each key stands, by the path of names that leads to it."""


class PlainYamlError(ValueError):
    """A line that is outside the subset."""


class Parsed(NamedTuple):
    """A config's content, and the line of each of its keys."""

    data: dict[str, Any]
    lines: Lines


def parse_yaml(text: str, skip: tuple[str, ...] = ()) -> Parsed:
    """Read a config with PyYAML where it is installed, else as the plain subset of it."""
    try:
        import yaml  # noqa: PLC0415 - may be missing on a node
    except ImportError:
        return parse_plain_yaml(text, skip)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise PlainYamlError(f"{where}{getattr(error, 'problem', None) or error}") from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        # Out of YAML's own readers of dates and numbers: 2024-13-45, !!int abc, a mapping that holds itself.
        raise PlainYamlError(f"a value that YAML cannot read: {error}") from None
    if data is None:
        return Parsed({}, {})
    if not isinstance(data, dict):
        raise PlainYamlError("line 1: the config must be a mapping of sections")
    lines: Lines = {}
    try:
        _note_lines(root, (), lines, skip)
    except RecursionError:
        raise PlainYamlError("a mapping that holds itself") from None
    return Parsed({key: value for key, value in data.items() if key not in skip}, lines)


def _note_lines(node: Any, path: tuple[str, ...], lines: Lines, skip: tuple[str, ...]) -> None:
    if node.id != "mapping":
        return
    for key, value in node.value:
        inner = (*path, str(key.value))
        if inner[0] in skip:
            continue
        number = key.start_mark.line + 1
        if inner in lines:
            raise PlainYamlError(f"line {number}: {inner[-1]} is given twice")
        lines[inner] = number
        _note_lines(value, inner, lines, skip)


class _Level(NamedTuple):
    indent: int
    """-1: not known yet."""
    content: dict[str, Any]
    path: tuple[str, ...]


def parse_plain_yaml(text: str, skip: tuple[str, ...] = ()) -> Parsed:
    """Read nested mappings of scalars and of one-line lists and mappings; sections in skip are not looked at."""
    parsed = Parsed({}, {})
    levels = [_Level(0, parsed.data, ())]
    skipping = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = _without_comment(raw).rstrip()
        if not line or line == "---":
            continue
        indent = len(line) - len(line.lstrip(" "))
        skipping = line.split(":")[0] in skip if indent == 0 else skipping
        if not skipping:
            _take_line(line.lstrip(" "), indent, levels, parsed.lines, number)
    # A key with nothing below it means null, as PyYAML has it.
    _empty_to_none(parsed.data)
    return parsed


class _Open(dict[str, Any]):
    """What stands below a key that ends its line."""


def _empty_to_none(data: dict[str, Any]) -> None:
    for key, value in data.items():
        if isinstance(value, _Open):
            _empty_to_none(value)
            data[key] = dict(value) or None


def _take_line(line: str, indent: int, levels: list[_Level], lines: Lines, number: int) -> None:
    found = KEY.fullmatch(line)
    if found is None:
        raise PlainYamlError(f"line {number}: {line!r} is no 'key: value'; lists of lines and the like need PyYAML")
    top = levels[-1]
    if top.indent < 0 and indent > levels[-2].indent:
        levels[-1] = top._replace(indent=indent)
    while indent < levels[-1].indent or levels[-1].indent < 0:
        levels.pop()
    top = levels[-1]
    if indent != top.indent:
        raise PlainYamlError(f"line {number}: indented by {indent}, which belongs to no section above")
    key, rest = found.group(1), found.group(2)
    path = (*top.path, key)
    if path in lines:
        raise PlainYamlError(f"line {number}: {key} is given twice")
    lines[path] = number
    if rest:
        top.content[key] = _parse_value(rest, path, lines, number)
    else:
        top.content[key] = _Open()
        levels.append(_Level(-1, top.content[key], path))


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


def _split(inside: str) -> list[str]:
    # At the commas that lie in no quotes and in no brackets.
    parts, depth, quote = [""], 0, ""
    for sign in inside:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in "[{":
            depth += 1
        elif sign in "]}":
            depth -= 1
        elif sign == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += sign
    return [part.strip() for part in parts] if inside.strip() else []


def _parse_value(text: str, path: tuple[str, ...], lines: Lines, number: int) -> Any:
    closer = OPENERS.get(text[:1])
    if closer is None:
        return _parse_scalar(text, number)
    if not text.endswith(closer) or len(text) == 1:
        raise PlainYamlError(
            f"line {number}: what opens with {text[0]} must end on its own line; else PyYAML is needed"
        )
    parts = _split(text[1:-1])
    if text[0] == "[":
        return [_parse_part(part, path, lines, number) for part in parts]
    mapping: dict[str, Any] = {}
    for part in parts:
        found = KEY.fullmatch(part)
        if found is None:
            raise PlainYamlError(f"line {number}: {part!r} is no 'key: value'")
        key, rest = found.group(1), found.group(2)
        if key in mapping:
            raise PlainYamlError(f"line {number}: {key} is given twice")
        lines[(*path, key)] = number
        mapping[key] = _parse_part(rest or "", (*path, key), lines, number)
    return mapping


def _parse_part(text: str, path: tuple[str, ...], lines: Lines, number: int) -> Any:
    # What stands in brackets ends at them, unless it is quoted.
    if text[:1] not in tuple("[{\"'") and set(text) & set("[]{}"):
        raise PlainYamlError(f"line {number}: {text} needs PyYAML to be read")
    return _parse_value(text, path, lines, number)


def _parse_scalar(text: str, number: int) -> Any:
    if text[:1] in "\"'" and text:
        if len(text) < 2 or text[-1] != text[0] or text[0] in text[1:-1] or "\\" in text:  # noqa: PLR2004 - two quotes
            raise PlainYamlError(f"line {number}: {text} needs PyYAML to be read")
        return text[1:-1]
    if text[:1] in tuple("{}[]&*!|>%@`") or ": " in text or text.endswith(":"):
        raise PlainYamlError(f"line {number}: {text} needs PyYAML to be read")
    if AMBIGUOUS.fullmatch(text):
        raise PlainYamlError(f"line {number}: {text} means one thing with PyYAML and another without: write it plainly")
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if FLOAT.fullmatch(text) else text
