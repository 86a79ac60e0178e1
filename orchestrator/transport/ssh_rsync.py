"""The words with which rsync's own ssh reaches exactly what a link has reached."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from orchestrator.transport import RsyncTarget
from orchestrator.transport.sshconfig import SshHost


def build_ssh_words(
    host: SshHost, jumps: Sequence[tuple[SshHost, str]], files: tuple[str, ...], key: str, timeout_s: float
) -> list[str]:
    """Build `ssh` with every option that a link resolved, up to the host's name.

    Args:
        host: The node as the link reached it.
        jumps: The hops before it, first one first, each with the key file that opened it or nothing.
        files: The known_hosts files that were judged by, first the one to which a new key went.
        key: The key file that opened the node, or nothing where the agent's did.
        timeout_s: What is left to ssh for connecting.
    """
    options = [
        "BatchMode=yes",
        f"ConnectTimeout={max(1, math.ceil(timeout_s))}",
        "StrictHostKeyChecking=yes",
        f"UserKnownHostsFile={' '.join(_quoted(file) for file in files)}",
        "UpdateHostKeys=no",
        # OpenSSH's default costs seven times the CPU of a connection; the rest stays behind it.
        "KexAlgorithms=^curve25519-sha256",
        f"HostName={host.hostname}",
    ]
    if host.host_key_alias:
        options.append(f"HostKeyAlias={host.host_key_alias}")
    if key:
        options += ["IdentitiesOnly=yes", *(f"CertificateFile={_quoted(path)}" for path in host.certificates)]
    elif host.identities_only:
        options.append("IdentitiesOnly=yes")
    if host.agent:
        options.append(f"IdentityAgent={_quoted(host.agent)}")
    options += _proxy(host, jumps, files, timeout_s)
    words = ["ssh", "-x", "-T", "-p", str(host.port), "-l", host.user]
    words += ["-i", key] if key else []
    for option in options:
        words += ["-o", option]
    return words


def _proxy(host: SshHost, jumps: Sequence[tuple[SshHost, str]], files: tuple[str, ...], timeout_s: float) -> list[str]:
    if host.proxy_command:
        return ["ProxyJump=none", f"ProxyCommand={host.proxy_command}"]
    if not jumps:
        return ["ProxyJump=none"]
    *before, (last, key) = jumps
    # -J would start an ssh without our options; this one gets the hop's own.
    inner = build_ssh_words(last, before, files, key, timeout_s)
    text = shlex.join([*inner, "-W"]).replace("%", "%%") + " '[%h]:%p' " + shlex.quote(last.alias).replace("%", "%%")
    return ["ProxyJump=none", f"ProxyCommand={text}"]


def _quoted(path: str) -> str:
    # ssh_config splits at blanks unless quoted, and reads % as a token.
    return f'"{path}"' if " " in path else path


def build_target(host: SshHost, words: list[str]) -> RsyncTarget:
    """Join the words with the prefix that stands before paths."""
    name = f"[{host.alias}]" if ":" in host.alias else host.alias
    return RsyncTarget(shell=tuple(words), prefix=f"{host.user}@{name}:")
