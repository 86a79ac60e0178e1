"""What OpenSSH would do to reach a node: asked from `ssh -G`, which knows Include, Match and every default."""

from __future__ import annotations

import getpass
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator.errors import LinkError, UsageError
from orchestrator.light_dataclass import dataclass

SSH_PORT = 22
ASK_TIMEOUT_S = 10.0
KEY_NAMES = ("id_rsa", "id_ecdsa", "id_ed25519")


@dataclass(frozen=True, kw_only=True)
class SshHost:
    """Everything that decides how one node is reached."""

    alias: str
    """What the node list or a jump names."""
    hostname: str
    port: int = SSH_PORT
    user: str = ""
    named_key: str | None = None
    """The key that the node list or a flag names; it must be there."""
    identities: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()
    identities_only: bool = False
    agent: str | None = None
    """Path of the agent's socket."""
    proxy_jump: tuple[str, ...] = ()
    proxy_command: str = ""
    user_known_hosts: tuple[str, ...] = ()
    global_known_hosts: tuple[str, ...] = ()
    host_key_alias: str = ""
    hash_known_hosts: bool = False
    connect_timeout_s: float | None = None
    ciphers: tuple[str, ...] = ()
    """What OpenSSH would offer, in its order."""
    family: str = "any"
    asked: bool = True
    """False: OpenSSH is not installed here, ssh_config was not looked at."""

    @property
    def known_as(self) -> str:
        """The name under which known_hosts holds its key."""
        if self.host_key_alias:
            return self.host_key_alias.lower()
        name = self.hostname.lower()
        return name if self.port == SSH_PORT else f"[{name}]:{self.port}"

    @property
    def proxied(self) -> bool:
        """Something stands between us and it."""
        return bool(self.proxy_jump or self.proxy_command)


def home_folder() -> Path:
    """The home that OpenSSH goes by: the account's, whatever HOME says."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path.home()


def parse_ssh_answer(text: str, alias: str, environ: Mapping[str, str], home: Path) -> SshHost:
    """Parse what `ssh -G` printed."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        if value:
            values.setdefault(key.lower(), []).append(value)

    def one(key: str, default: str = "") -> str:
        value = values.get(key, [default])[0]
        return "" if value == "none" else value

    host = SshHost(
        alias=alias,
        hostname=one("hostname", alias).strip("[]"),
        port=int(one("port", str(SSH_PORT))),
        user=one("user"),
        identities_only=one("identitiesonly") == "yes",
        proxy_jump=tuple(hop for hop in one("proxyjump").split(",") if hop),
        proxy_command=one("proxycommand"),
        host_key_alias=one("hostkeyalias"),
        hash_known_hosts=one("hashknownhosts") == "yes",
        connect_timeout_s=float(one("connecttimeout")) if one("connecttimeout").isdigit() else None,
        family=one("addressfamily", "any"),
        ciphers=tuple(name for name in one("ciphers").split(",") if name),
    )

    def paths(key: str) -> tuple[str, ...]:
        return tuple(expand_path(word, host, home, environ) for word in values.get(key, ()) if word != "none")

    return replace(
        host,
        identities=paths("identityfile"),
        certificates=paths("certificatefile"),
        agent=_agent(values.get("identityagent", ["SSH_AUTH_SOCK"])[0], host, home, environ),
        user_known_hosts=tuple(
            expand_path(p, host, home, environ) for p in split_paths(one("userknownhostsfile"), home)
        ),
        global_known_hosts=tuple(split_paths(one("globalknownhostsfile"), home)),
    )


def _agent(value: str, host: SshHost, home: Path, environ: Mapping[str, str]) -> str | None:
    if value == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return environ.get("SSH_AUTH_SOCK") or None
    if match := re.fullmatch(r"\$(\w+)", value):
        return environ.get(match[1]) or None
    return expand_path(value, host, home, environ)


def expand_path(path: str, host: SshHost, home: Path, environ: Mapping[str, str]) -> str:
    """Fill in the home and the tokens that ssh_config allows in paths."""
    if path == "~" or path.startswith("~/"):
        path = str(home) + path[1:]
    path = re.sub(r"\$\{(\w+)\}", lambda match: environ.get(match[1], ""), path)
    return expand_tokens(path, host, home)


def expand_tokens(text: str, host: SshHost, home: Path) -> str:
    """Fill in %h, %p and their kin as OpenSSH does."""
    if "%" not in text:
        return text  # most have none, and to know who we are takes a look into files
    here = os.uname().nodename
    tokens = {
        "%": "%",
        "h": host.hostname,
        "n": host.alias,
        "p": str(host.port),
        "r": host.user,
        "u": getpass.getuser(),
        "d": str(home),
        "i": str(os.getuid()),
        "k": host.host_key_alias or host.alias,
        "l": here,
        "L": here.partition(".")[0],
    }
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def split_paths(text: str, home: Path) -> list[str]:
    """Take a list of paths apart; one path that holds blanks is known by being there."""
    if text and " " in text and Path(text.replace("~", str(home), 1)).exists():
        return [text]
    return text.split()


def ask_ssh(alias: str, *, user: str | None = None, port: int | None = None) -> SshHost:
    """Ask OpenSSH how it would reach a host; without OpenSSH go by what is given and by the usual files."""
    if alias.startswith("-") or not alias or re.search(r"\s", alias):
        raise UsageError(what=f"{alias!r} is no host name", remedy="a host name has no blank and no leading dash")
    told = ask_openssh(alias, user, port)
    if told is None:
        return _without_openssh(alias, user, port, home_folder())
    return parse_ssh_answer(told[0], alias, os.environ, home_folder())


def ask_openssh(alias: str, user: str | None, port: int | None, *, tell_files: bool = False) -> tuple[str, str] | None:
    """Give the words of `ssh -G`, and what it tells beside them; None where OpenSSH is not installed."""
    program = shutil.which("ssh")
    if program is None:
        return None
    words = [program, "-G", *(["-v"] if tell_files else [])]
    # Match blocks may look at user and port: what overrides the config is said in the question.
    words += ["-l", user] if user else []
    words += ["-p", str(port)] if port else []
    try:
        answer = subprocess.run(
            [*words, "--", alias],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=ASK_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise LinkError(
            what=f"`ssh -G {alias}` gave no answer within {ASK_TIMEOUT_S:g} s",
            where=alias,
            step="ssh_config",
            remedy="does a `Match exec` line of ssh_config hang?",
        ) from error
    if answer.returncode != 0:
        raise LinkError(
            what=f"OpenSSH does not accept its configuration for this host: {_complaint(answer.stderr)}",
            where=alias,
            step="ssh_config",
            remedy=f"try `ssh -G {alias}` and mend ~/.ssh/config",
        )
    return answer.stdout, answer.stderr


def _complaint(told: str) -> str:
    return "\n".join(line for line in told.splitlines() if not line.startswith(("debug1: ", "OpenSSH_"))).strip()


def _without_openssh(alias: str, user: str | None, port: int | None, home: Path) -> SshHost:
    return SshHost(
        alias=alias,
        hostname=alias,
        port=port or SSH_PORT,
        user=user or getpass.getuser(),
        identities=tuple(str(home / ".ssh" / name) for name in KEY_NAMES),
        agent=os.environ.get("SSH_AUTH_SOCK") or None,
        user_known_hosts=(str(home / ".ssh" / "known_hosts"),),
        global_known_hosts=("/etc/ssh/ssh_known_hosts",),
        asked=False,
    )


def parse_jump(text: str) -> tuple[str, str | None, int | None]:
    """Parse one hop, [user@]host[:port] or ssh://…, into host, user and port."""
    text = text.removeprefix("ssh://").rstrip("/")
    user, at, place = text.rpartition("@")
    match = re.fullmatch(r"\[(?P<six>[^\]]+)\](?::(?P<p6>\d+))?|(?P<name>[^:]+)(?::(?P<p>\d+))?", place)
    if match is None and place.count(":") > 1:
        return place, user if at else None, None
    if match is None:
        raise UsageError(what=f"{text!r} is no jump host", remedy="write jump=[user@]host[:port]")
    port = match["p6"] or match["p"]
    return match["six"] or match["name"], user if at else None, int(port) if port else None
