"""The words with which rsync's own ssh reaches exactly what a link has reached."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from orchestrator.light_dataclass import dataclass
from orchestrator.transport import RsyncTarget
from orchestrator.transport.sshconfig import SshHost

FAST_CIPHER = "aes128-gcm@openssh.com"
"""With a processor that knows AES: a tenth less of a first push than with OpenSSH's own choice."""
CPUINFO = Path("/proc/cpuinfo")


@cache
def has_aes() -> bool:
    """Say whether this machine's processor knows AES."""
    try:
        return re.search(r"^(flags|Features)\s*:.*\baes\b", CPUINFO.read_text("utf-8"), re.MULTILINE) is not None
    except OSError:
        return False


@dataclass(frozen=True)
class Hop:
    """One host on the way, as the link reached it; the node itself comes last."""

    host: SshHost
    known_hosts: tuple[str, ...]
    """The files that its key was judged by, first the one to which a new key went."""
    key: str
    """The key file that opened it, empty where the agent's did."""


def build_ssh_words(way: Sequence[Hop], timeout_s: float) -> list[str]:
    """Build `ssh` with every option that a link resolved, up to the host's name."""
    hop = way[-1]
    host = hop.host
    options = [
        "BatchMode=yes",
        f"ConnectTimeout={max(1, math.ceil(timeout_s))}",
        "StrictHostKeyChecking=yes",
        f"UserKnownHostsFile={' '.join(_quoted(file) for file in hop.known_hosts)}",
        "UpdateHostKeys=no",
        # What a person's own sessions are to do would stand in rsync's way: "Cannot execute command-line and remote command".
        "RemoteCommand=none",
        "ClearAllForwardings=yes",
        # OpenSSH's default costs seven times the CPU of a connection; the rest stays behind it.
        "KexAlgorithms=^curve25519-sha256",
        f"HostName={host.hostname}",
    ]
    if FAST_CIPHER in host.ciphers and has_aes():
        options.append(f"Ciphers={','.join(sorted(host.ciphers, key=lambda name: name != FAST_CIPHER))}")
    if host.host_key_alias:
        options.append(f"HostKeyAlias={host.host_key_alias}")
    if hop.key:
        options += ["IdentitiesOnly=yes", *(f"CertificateFile={_quoted(path)}" for path in host.certificates)]
    elif host.identities_only:
        options.append("IdentitiesOnly=yes")
    if host.agent:
        options.append(f"IdentityAgent={_quoted(host.agent)}")
    options += _proxy(host, way[:-1], timeout_s)
    words = ["ssh", "-x", "-T", "-p", str(host.port), "-l", host.user]
    words += ["-i", hop.key] if hop.key else []
    for option in options:
        words += ["-o", option]
    return words


def _proxy(host: SshHost, before: Sequence[Hop], timeout_s: float) -> list[str]:
    if host.proxy_command:
        return ["ProxyJump=none", f"ProxyCommand={host.proxy_command}"]
    if not before:
        return ["ProxyJump=none"]
    # -J would start an ssh without our options; this one gets the hop's own.
    inner = shlex.join([*build_ssh_words(before, timeout_s), "-W"]).replace("%", "%%")
    gate = shlex.quote(before[-1].host.alias).replace("%", "%%")
    return ["ProxyJump=none", f"ProxyCommand={inner} '[%h]:%p' {gate}"]


def _quoted(path: str) -> str:
    # ssh_config splits at blanks unless quoted.
    return f'"{path}"' if " " in path else path


def build_target(host: SshHost, words: list[str]) -> RsyncTarget:
    """Join the words with the prefix that stands before paths."""
    name = f"[{host.alias}]" if ":" in host.alias else host.alias
    return RsyncTarget(shell=tuple(words), prefix=f"{host.user}@{name}:")
