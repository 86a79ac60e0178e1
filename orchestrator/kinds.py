"""The kinds of value that a setting takes: each parser reads a flag, a variable and a YAML value alike."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from orchestrator.light_dataclass import dataclass
from orchestrator.noderanges import split_names

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d*)?)s?)?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_RANKS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})


def is_env_name(text: str) -> bool:
    """Tell whether a text can name an environment variable that every shell keeps."""
    return _ENV_NAME.fullmatch(text) is not None


def _is_text(raw: str) -> bool:
    # What cannot be UTF-8 cannot travel as JSON; what holds a NUL cannot be an argument.
    return "\0" not in raw and not any("\ud800" <= character <= "\udfff" for character in raw)


def _is_finite(number: float) -> bool:
    # YAML has integers of any length; those beyond a float are as infinite as .inf.
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def parse_seconds(raw: Any) -> float:
    """Parse a duration: a number of seconds, or text like 90s, 5m, 1h, 1h30m."""
    expected = "a duration like 90, 90s, 5m or 1h"
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        if not _is_finite(raw) or raw < 0:
            raise ValueError(expected)
        return float(raw)
    found = _DURATION.fullmatch(raw.strip()) if isinstance(raw, str) else None
    if found is None or not any(found.groups()):
        raise ValueError(expected)
    hours, minutes, seconds = (float(group or 0) for group in found.groups())
    return hours * 3600 + minutes * 60 + seconds


def _parse_some_seconds(raw: Any) -> float:
    seconds = parse_seconds(raw)
    if seconds <= 0:
        raise ValueError("a duration above 0, like 90, 90s, 5m or 1h")
    return seconds


def _parse_switch(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    word = raw.strip().lower() if isinstance(raw, str) else ""
    if word in _YES or word in _NO:
        return word in _YES
    raise ValueError("true or false")


def _whole(low: int, high: int | None = None) -> Callable[[Any], int]:
    expected = f"a whole number from {low}" + (" up" if high is None else f" to {high}")

    def parse(raw: Any) -> int:
        text = str(raw).strip() if isinstance(raw, int | str) and not isinstance(raw, bool) else ""
        if not re.fullmatch(r"-?[0-9]{1,15}", text) or int(text) < low or (high is not None and int(text) > high):
            raise ValueError(expected)
        return int(text)

    return parse


def _parse_amount(raw: Any) -> float:
    try:
        amount = math.nan if isinstance(raw, bool) else float(raw)
    except (TypeError, ValueError, OverflowError):
        amount = math.nan
    if not math.isfinite(amount) or amount < 0:
        raise ValueError("a number from 0 up")
    return amount


def _parse_text(raw: Any) -> str:
    if not isinstance(raw, str) or not raw or not _is_text(raw):
        raise ValueError("some UTF-8 text")
    return raw


def _parse_path(raw: Any) -> Path:
    if isinstance(raw, Path):
        return raw
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise ValueError("a path")
    return Path(raw).expanduser()


def _parse_names(raw: Any) -> tuple[str, ...]:
    items = [raw] if isinstance(raw, str) else raw
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ValueError("a list of names")
    return tuple(name for item in items for name in split_names(item))


def _parse_words(raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, list | tuple) or not all(isinstance(item, str) and _is_text(item) for item in raw):
        raise ValueError("a list of words of UTF-8 text")
    return tuple(raw)


def _parse_command(raw: Any) -> tuple[str, ...]:
    if isinstance(raw, str) and _is_text(raw):
        import shlex  # noqa: PLC0415 - few calls have a command

        try:
            return tuple(shlex.split(raw))
        except ValueError as error:
            raise ValueError(f"words as a shell would read them ({str(error).lower()})") from None
    if isinstance(raw, list | tuple) and all(isinstance(item, str) and _is_text(item) for item in raw):
        return tuple(raw)
    raise ValueError("a list of words, or one text of words as a shell would read them")


def _parse_agent(raw: Any) -> str:
    if raw not in ("torchrun", "accelerate", "command"):
        raise ValueError("torchrun, accelerate or command")
    return str(raw)


def _parse_env(raw: Any) -> dict[str, str]:
    if not isinstance(raw, Mapping):
        raise ValueError("a mapping of NAME: value")  # noqa: TRY004 - a value that is wrong is a ValueError
    for name, value in raw.items():
        if not isinstance(name, str) or not is_env_name(name):
            raise ValueError("names of environment variables (letters, digits and _) as keys")
        if not isinstance(value, str) or "\0" in value:
            raise ValueError(f'a text as the value of {name} (quote it; "" for an empty one)')
    return dict(raw)


def _parse_python(raw: Any) -> str:
    if isinstance(raw, str) and raw.startswith(("/", "~/")) and raw.isprintable():
        return raw
    raise ValueError("the absolute path of an interpreter on the nodes")


def _parse_processes(raw: Any) -> str:
    text = str(raw).strip()
    if text in {"auto", "gpu", "cpu"} or re.fullmatch(r"[1-9][0-9]{0,3}", text):
        return text
    raise ValueError("auto, gpu, cpu or a number of processes from 1 to 9999")


def _parse_ranks(raw: Any) -> str:
    text = re.sub(r"\s", "", ",".join(map(str, raw)) if isinstance(raw, list | tuple) else str(raw))
    if text == "all" or _RANKS.fullmatch(text):
        return text
    raise ValueError("0, all or a list of ranks like 0,3-5")


def _parse_label(raw: Any) -> str:
    if isinstance(raw, str) and _LABEL.fullmatch(raw):
        return raw
    raise ValueError("1 to 64 letters, digits, dots, dashes or underscores, the first no dot or dash")


def _parse_on_disconnect(raw: Any) -> str:
    if raw not in ("keep", "stop"):
        raise ValueError("keep or stop")
    return str(raw)


def _parse_hang_action(raw: Any) -> str:
    text = "off" if raw is False else str(raw)  # a bare off is false in YAML
    if text in {"warn", "stop", "off"}:
        return text
    raise ValueError("warn, stop or off")


def _parse_color(raw: Any) -> str:
    # A bare no or off is false in YAML; whoever writes that means never.
    text = "never" if raw is False else str(raw)
    if text in {"auto", "always", "never"}:
        return text
    raise ValueError("auto, always or never")


@dataclass(frozen=True, kw_only=True)
class CheckRule:
    """What launch.checks says of one check."""

    severity: Literal["warn", "fail"] | None = None
    """What a problem that it finds counts as; None: as the check itself says."""
    skip: bool = False
    reason: str = ""
    thresholds: Mapping[str, float] = field(default_factory=dict)


def _parse_rule(name: str, raw: Any) -> CheckRule:
    if not isinstance(raw, Mapping):
        raise ValueError(f"a mapping like {{severity: warn, reason: ...}} for {name}")  # noqa: TRY004 - as above
    given = dict(raw)
    severity, skip, reason = given.pop("severity", None), given.pop("skip", False), given.pop("reason", "")
    if severity not in (None, "warn", "fail"):
        raise ValueError(f"severity of {name} to be warn or fail (skip: true leaves the check out)")
    if not isinstance(skip, bool):
        raise ValueError(f"skip of {name} to be true or false")  # noqa: TRY004 - as above
    if not isinstance(reason, str):
        raise ValueError(f"reason of {name} to be a text")  # noqa: TRY004 - as above
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise ValueError(f"{key} of {name} to be a number")
    thresholds = {str(key): float(value) for key, value in given.items()}
    return CheckRule(severity=severity, skip=skip, reason=reason, thresholds=thresholds)


def _parse_checks(raw: Any) -> dict[str, CheckRule]:
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise ValueError("a mapping of checks, like disk: {fail_gib: 20}")  # noqa: TRY004 - as above
    return {
        str(name): rule if isinstance(rule, CheckRule) else _parse_rule(str(name), rule) for name, rule in raw.items()
    }


def _or_none(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda raw: None if raw is None else parse(raw)


class Kind(NamedTuple):
    """How a kind of value is read: what stands behind its type."""

    parse: Callable[[Any], Any]
    """Raises a ValueError that says what was expected."""
    typed: bool = False
    """Takes what YAML makes of a value; any other kind takes its very characters: 3.0e-4 and 007 stay what was written."""


Switch = Annotated[bool, Kind(_parse_switch, typed=True)]
Seconds = Annotated[float, Kind(parse_seconds, typed=True)]
SomeSeconds = Annotated[float, Kind(_parse_some_seconds, typed=True)]
MaybeSeconds = Annotated[float | None, Kind(_or_none(_parse_some_seconds), typed=True)]
Amount = Annotated[float, Kind(_parse_amount, typed=True)]
Count = Annotated[int, Kind(_whole(1), typed=True)]
CountOrZero = Annotated[int, Kind(_whole(0), typed=True)]
Verbosity = Annotated[int, Kind(_whole(-1, 9), typed=True)]
MaybePort = Annotated[int | None, Kind(_or_none(_whole(1, 65535)), typed=True)]
Text = Annotated[str, Kind(_parse_text)]
MaybeText = Annotated[str | None, Kind(_or_none(_parse_text))]
MaybePython = Annotated[str | None, Kind(_or_none(_parse_python))]
FilePath = Annotated[Path, Kind(_parse_path)]
MaybePath = Annotated[Path | None, Kind(_or_none(_parse_path))]
Names = Annotated[tuple[str, ...], Kind(_parse_names)]
Words = Annotated[tuple[str, ...], Kind(_parse_words)]
CommandWords = Annotated[tuple[str, ...], Kind(_parse_command)]
Agent = Annotated[Literal["torchrun", "accelerate", "command"], Kind(_parse_agent)]
Env = Annotated[Mapping[str, str], Kind(_parse_env)]
Checks = Annotated[Mapping[str, CheckRule], Kind(_parse_checks, typed=True)]
Level = Annotated[int, Kind(_whole(0, 2), typed=True)]
Processes = Annotated[str, Kind(_parse_processes)]
Ranks = Annotated[str, Kind(_parse_ranks)]
Label = Annotated[str, Kind(_parse_label)]
Color = Annotated[Literal["auto", "always", "never"], Kind(_parse_color, typed=True)]
HangAction = Annotated[Literal["warn", "stop", "off"], Kind(_parse_hang_action)]
OnDisconnect = Annotated[Literal["keep", "stop"], Kind(_parse_on_disconnect)]
