"""Reads the training config strictly: an unknown key, a wrong value and a contradiction are told with file and line."""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import Any

from workload.contradictions import find_contradiction
from workload.plain_yaml import Parsed, PlainYamlError, parse_yaml
from workload.schema import SECTIONS, Config, ConfigError

__all__ = ["SECTIONS", "Config", "ConfigError", "build_config", "find_idle_keys", "read_config"]

LAUNCHER_SECTION = "launch"
KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
BETAS = 2
LONGEST = 60
"""As much of a wrong value as an error shows."""


class _KeyError(ConfigError):
    """A value that cannot be, with the path of its key."""

    def __init__(self, path: tuple[str, ...], what: str) -> None:
        super().__init__(what)
        self.path = path


def read_config(path: Path | None) -> Config:
    """Read a config file; None gives the defaults. ConfigError says file and line."""
    if path is None:
        return Config()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        parsed = parse_yaml(text, skip=(LAUNCHER_SECTION,))
        return _build(parsed.data)
    except PlainYamlError as error:
        raise ConfigError(f"{path}: {error}") from None
    except _KeyError as error:
        raise ConfigError(f"{path}{_find_line(parsed, error.path)}: {error}") from None


def _find_line(parsed: Parsed, path: tuple[str, ...]) -> str:
    for length in range(len(path), 0, -1):
        number = parsed.lines.get(path[:length])
        if number is not None:
            return f":{number}"
    return ""


def build_config(data: dict[str, Any]) -> Config:
    """Build the config from what a file says, strictly."""
    return _build(data)


def _build(data: dict[str, Any]) -> Config:
    _refuse_unknown(data, tuple(SECTIONS), ())
    config = Config(**{name: _build_section(name, kind, data.get(name)) for name, kind in SECTIONS.items()})
    contradiction = find_contradiction(config)
    if contradiction is not None:
        key, what = contradiction
        raise _KeyError(tuple(key.split(".")), f"{key} {what}")
    return config


def find_idle_keys(path: Path | None, config: Config) -> list[str]:
    """Name the keys that a file gives though they change nothing beside its other keys."""
    if path is None:
        return []
    given = parse_yaml(path.read_text(encoding="utf-8"), skip=(LAUNCHER_SECTION,)).data
    idle = []
    for section, kind in SECTIONS.items():
        for entry in dataclasses.fields(kind):
            only = entry.metadata["only"]
            if entry.name in (given.get(section) or {}) and only and not _holds(config, only):
                idle.append(
                    f"{section}.{entry.name} has no effect without {only.replace('=>', ' > ').replace('=', ': ')}"
                )
    return idle


def _holds(config: Config, only: str) -> bool:
    key, _, wanted = only.partition("=")
    section, name = key.split(".")
    value = getattr(getattr(config, section), name)
    if wanted.startswith(">"):
        return bool(value > float(wanted[1:]))
    return str(value).lower() in wanted.split("|")


def _build_section(name: str, kind: Any, given: Any) -> Any:
    if given is None:
        return kind()
    if not isinstance(given, dict):
        raise _KeyError((name,), f"{name} must be a section of keys, not {given!r}")
    entries = {entry.name: entry for entry in dataclasses.fields(kind)}
    _refuse_unknown(given, tuple(entries), (name,))
    return kind(**{key: _convert((name, key), value, entries[key].metadata) for key, value in given.items()})


def _refuse_unknown(given: dict[str, Any], known: tuple[str, ...], section: tuple[str, ...]) -> None:
    prefix = "".join(f"{part}." for part in section)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known are {', '.join(known)}"
            raise _KeyError((*section, str(key)), f"unknown key {prefix}{key}: {hint}")


def _convert(path: tuple[str, ...], value: Any, about: Any) -> Any:
    key = ".".join(path)
    if value is None and about["optional"]:
        return None
    kind = about["kind"]
    if kind == "betas":
        return _convert_betas(path, value)
    if kind == "ranks":
        return _convert_ranks(path, value)
    converted = _to_kind(value, kind)
    if converted is None:
        raise _KeyError(
            path, f"{key} must be {KINDS[kind]}{' or null' if about['optional'] else ''}, not {_short(value)}"
        )
    if about["choices"] and converted not in about["choices"]:
        near = difflib.get_close_matches(str(value), about["choices"], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise _KeyError(path, f"{key} must be one of {', '.join(about['choices'])}, not {_short(value)}{hint}")
    _check_bounds(path, converted, about)
    return converted


def _to_kind(value: Any, kind: str) -> Any:
    # YAML 1.1 makes 3e-4 a text, and a whole number of what is meant as one with a fraction.
    if kind == "float" and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return None
    return value if type(value).__name__ == kind else None


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python prints no whole number of more than 4300 digits
        return "a number without an end"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _check_bounds(path: tuple[str, ...], value: Any, about: Any) -> None:
    key = ".".join(path)
    if isinstance(value, float) and not abs(value) < float("inf"):
        raise _KeyError(path, f"{key} must be a finite number, not {_short(value)}")
    for name, words in (("least", "at least"), ("above", "more than"), ("most", "at most"), ("below", "less than")):
        bound = about[name]
        if bound is None:
            continue
        fits = {"least": value >= bound, "above": value > bound, "most": value <= bound, "below": value < bound}
        if not fits[name]:
            raise _KeyError(path, f"{key} must be {words} {bound}, not {_short(value)}")


def _convert_betas(path: tuple[str, ...], value: Any) -> tuple[float, ...]:
    numbers = [_to_kind(part, "float") for part in value] if isinstance(value, list) else []
    if len(numbers) != BETAS or any(number is None or not 0 <= number < 1 for number in numbers):
        raise _KeyError(
            path, f"{'.'.join(path)} must be two numbers from 0 to below 1, like [0.9, 0.95], not {_short(value)}"
        )
    return tuple(numbers)


def _convert_ranks(path: tuple[str, ...], value: Any) -> str | tuple[int, ...]:
    if value == "all":
        return "all"
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    try:
        # A rank of 0.7 is none; int() would make it 0.
        ranks = tuple(int(part) for part in parts if isinstance(part, (int, str)) and not isinstance(part, bool))
    except ValueError:
        ranks = ()
    if not ranks or len(ranks) != len(parts) or min(ranks) < 0:
        raise _KeyError(path, f"{'.'.join(path)} must be all or ranks like [0, 3], not {_short(value)}")
    return ranks
