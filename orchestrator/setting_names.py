"""How each setting is called: as a flag, as a variable, and in the `launch:` section of a config."""

from __future__ import annotations

VARIABLE_PREFIX = "AORTA_LAUNCH_"

FLAG_NAMES = {
    "connect_timeout_s": "--connect-timeout",
    "json_output": "--json",
    "flag_env": "--env",
    "timeout_s": "--timeout",
    "grace_s": "--grace",
    "hang_after_s": "--hang-after",
    "hang_grace_s": "--hang-grace",
    "checks_skip": "--skip",
    "checks_only": "--only",
    "check_level": "--level",
    "every_finding": "--all",
}
"""Where a flag is not simply the key with dashes."""

SECTIONS = ("hang",)
"""Keys of `launch:` that hold keys of their own: hang.after_s is the setting hang_after_s."""


def variable_name(key: str) -> str:
    """Name the variable that sets a key."""
    return VARIABLE_PREFIX + key.upper()


def flag_name(key: str) -> str:
    """Name the flag that sets a key."""
    return FLAG_NAMES.get(key, "--" + key.replace("_", "-"))


def config_name(key: str) -> str:
    """Name the place of a key below `launch:`."""
    section = next((section for section in SECTIONS if key.startswith(f"{section}_")), None)
    return key if section is None else f"{section}.{key.removeprefix(f'{section}_')}"
