"""The environment that the settings give to the ranks: forwarded < launch.env < env file < --env."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError, UsageError
from orchestrator.kinds import is_env_name
from orchestrator.textfiles import read_text
from orchestrator.values import EnvValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from orchestrator.settings import Settings

NEVER_FORWARDED = ("*_SOCKET_IFNAME", "*VISIBLE_DEVICES*")
"""They name what this machine has: true here, wrong on the next one."""

SECRET_NAMES = ("*KEY*", "*TOKEN*", "*SECRET*", "*PASSW*")

_ASSIGNMENT = re.compile(r"[ \t]*(?:export[ \t]+)?([^\s=]+)[ \t]*=[ \t]*(.*)", re.DOTALL)
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_SINGLE = re.compile(r"'([^']*)'")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$", "`": "`", "\n": ""}


def settings_env(settings: Settings, environ: Mapping[str, str]) -> tuple[EnvValue, ...]:
    """Build the variables that the settings give to every rank, each with who set it.

    Raises:
        ConfigError: an env file that cannot be read as one.
        UsageError: an --env that names nothing.
    """
    given = build_forwarded(settings.forward_env, environ)
    origin = settings.origins.get("env", "config launch.env")
    given += [EnvValue(name=name, value=value, origin=origin) for name, value in settings.env.items()]
    if settings.env_file is not None:
        given += read_env_file(settings.env_file)
    given += parse_flag_env(settings.flag_env, environ)
    # The last word wins, and stands where it was said.
    return tuple(_mark_secret(value) for value in _drop_earlier(given))


def build_forwarded(globs: Sequence[str], environ: Mapping[str, str]) -> list[EnvValue]:
    """Pick this machine's variables that travel, by glob."""
    return [
        EnvValue(name=name, value=value, origin="environment of the launch host")
        for name, value in sorted(environ.items())
        if any(fnmatchcase(name, glob) for glob in globs)
        and not any(fnmatchcase(name, glob) for glob in NEVER_FORWARDED)
        and is_env_name(name)
        and _is_text(value)
    ]


def parse_flag_env(words: Sequence[str], environ: Mapping[str, str]) -> list[EnvValue]:
    """Parse every --env: NAME=VALUE, or NAME for this machine's value.

    Raises:
        UsageError: no name, or a name that is not set here.
    """
    values = []
    for word in words:
        name, equals, value = word.partition("=")
        if not is_env_name(name):
            # The word itself is not shown: a value may be a secret.
            raise UsageError(
                f"{name!r} cannot name a variable", where="flag --env", remedy="write --env NAME=VALUE or --env NAME"
            )
        if not equals and name not in environ:
            raise UsageError(f"{name} is not set here", where="flag --env", remedy=f"write --env {name}=VALUE")
        values.append(EnvValue(name=name, value=value if equals else environ[name], origin="flag --env"))
    return values


def read_env_file(path: Path) -> list[EnvValue]:
    """Read a file of NAME=VALUE lines; every value is a secret.

    Raises:
        ConfigError: not readable, or a line that sets nothing.
    """
    text = read_text(path, ConfigError, "env file", "name the file with --env-file FILE")
    return parse_env_file(text, str(path))


def parse_env_file(text: str, where: str) -> list[EnvValue]:
    """Parse NAME=VALUE lines: comments, export and quotes as in a shell, but nothing is expanded.

    Raises:
        ConfigError: a line that sets nothing, a quote without its partner, a name twice.
    """
    values: dict[str, EnvValue] = {}
    lines: dict[str, int] = {}
    text = text.replace("\r\n", "\n")
    at = 0
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        number = text.count("\n", 0, at) + 1
        line = text[at:end].strip()
        if line and not line.startswith("#"):
            name, value, end = _parse_assignment(text, at, end, f"{where}:{number}")
            if name in values:
                raise ConfigError(
                    f"{name} stands here and in line {lines[name]}", f"{where}:{number}", "keep one of the two"
                )
            lines[name] = number
            values[name] = EnvValue(name=name, value=value, origin=f"env file {where}:{number}", secret=True)
        at = end + 1
    return list(values.values())


def _parse_assignment(text: str, at: int, end: int, place: str) -> tuple[str, str, int]:
    found = _ASSIGNMENT.match(text, at, end)
    if found is None or not is_env_name(found[1]):
        # Never the line itself: it may be the secret.
        raise ConfigError("expected NAME=VALUE", place, "letters, digits and _ make a name; # begins a comment")
    start = found.start(2)
    quote = text[start : start + 1] if start < end else ""
    if quote not in {'"', "'"} or not quote:
        return found[1], re.split(r"(?:^|[ \t])#", found[2], maxsplit=1)[0].strip(), end
    # A quoted value may go on over lines, as a PEM key does.
    quoted = (_DOUBLE if quote == '"' else _SINGLE).match(text, start)
    if quoted is None:
        raise ConfigError(f"the quote of {found[1]} is never closed", place, f"close it with {quote}")
    end = text.find("\n", quoted.end())
    end = len(text) if end < 0 else end
    rest = text[quoted.end() : end].strip()
    if rest and not rest.startswith("#"):
        raise ConfigError(f"text after the closing quote of {found[1]}", place, "quote the whole value")
    value = quoted[1]
    if quote == '"':
        value = re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[0]), value, flags=re.DOTALL)
    return found[1], value, end


def _is_text(value: str) -> bool:
    # Bytes that are no UTF-8 cannot travel as JSON.
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _drop_earlier(values: Iterable[EnvValue]) -> list[EnvValue]:
    last: dict[str, EnvValue] = {}
    for value in values:
        last.pop(value.name, None)
        last[value.name] = value
    return list(last.values())


def is_secret_name(name: str) -> bool:
    """Tell a variable whose value no screen and no record shows, whoever set it."""
    return any(fnmatchcase(name.upper(), glob) for glob in SECRET_NAMES)


def _mark_secret(value: EnvValue) -> EnvValue:
    if value.secret or not is_secret_name(value.name):
        return value
    return EnvValue(name=value.name, value=value.value, origin=value.origin, secret=True)
