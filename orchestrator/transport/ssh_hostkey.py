"""The rule for host keys: unknown is refused unless asked to accept, changed and revoked always."""

from __future__ import annotations

from dataclasses import field

from orchestrator.errors import HostKeyError
from orchestrator.light_dataclass import dataclass
from orchestrator.transport.hostkeys import Judgement, KnownHosts, fingerprint
from orchestrator.transport.ssh_base import paramiko
from orchestrator.transport.sshconfig import SSH_PORT, SshHost, home_folder

NAMES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
"""One key, several names in the negotiation."""


def user_files(host: SshHost) -> tuple[str, ...]:
    """Give the user's files, first the one to which new keys go; /dev/null remembers nothing, so the usual one stands in."""
    files = tuple(file for file in host.user_known_hosts if file not in ("none", "/dev/null"))
    return files or (str(home_folder() / ".ssh" / "known_hosts"),)


def global_files(host: SshHost) -> tuple[str, ...]:
    """Give the machine's files."""
    return tuple(file for file in host.global_known_hosts if file not in ("none", "/dev/null"))


def prefer_known_types(transport: paramiko.Transport, host: SshHost, known: KnownHosts) -> None:
    """Ask the node for a key of a type that is known, should it have several."""
    types = known.key_types(host.known_as, user_files(host) + global_files(host))
    wanted = [name for key_type in types for name in NAMES.get(key_type, (key_type,))]
    options = transport.get_security_options()
    first = [name for name in dict.fromkeys(wanted) if name in options.key_types]
    options.key_types = tuple(first + [name for name in options.key_types if name not in first])


@dataclass
class HostKeyRule(paramiko.MissingHostKeyPolicy):
    """Called by paramiko with every node's key, as its own list of known keys stays empty."""

    host: SshHost
    where: str
    known: KnownHosts
    accept_new: bool
    accepted: str = field(default="", init=False)
    """The fingerprint of a key that was new and is now remembered."""

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Judge a key; return to accept it.

        Raises:
            HostKeyError: it is not to be trusted.
        """
        del client, hostname
        host, name = self.host, self.host.known_as
        judged = self.known.judge(name, key.get_name(), key.asbytes(), user_files(host) + global_files(host))
        if judged.standing == "known":
            return
        if judged.standing == "unknown" and self.accept_new:
            self.known.remember(name, key.get_name(), key.asbytes(), user_files(host)[0], hashed=host.hash_known_hosts)
            self.accepted = fingerprint(key.asbytes())
            return
        raise self._error(judged, key)

    def _error(self, judged: Judgement, key: paramiko.PKey) -> HostKeyError:
        shown = f"{key.get_name()} {fingerprint(key.asbytes())}"
        name = self.host.known_as
        if judged.standing == "revoked":
            what = f"its host key {shown} is revoked ({judged.where})"
            return self._refuse(what, "do not connect: somebody has declared this key stolen or retired")
        if judged.standing == "changed":
            file = judged.where.rpartition(":")[0]
            what = f"its host key has changed: it shows {shown}, but {judged.where} holds another"
            remedy = (
                "somebody may be in between. Only once you have verified the new fingerprint with the node's owner: "
                f"ssh-keygen -f {file} -R '{name}'"
            )
            return self._refuse(what, remedy)
        port = "" if self.host.port == SSH_PORT else f"-p {self.host.port} "
        scan = f"ssh-keyscan {port}{self.host.hostname} >> {user_files(self.host)[0]}"
        if self.host.proxied or self.host.host_key_alias:
            scan = f"ssh {self.host.alias} once"
        if judged.authority:
            what = f"its host key {shown} is vouched for only by a host certificate ({judged.authority}), which paramiko cannot check"
            return self._refuse(what, f"add the plain key after verifying it ({scan}), or --accept-new-host-keys")
        remedy = f"verify the fingerprint, then {scan}; or trust it unseen with --accept-new-host-keys"
        return self._refuse(f"its host key is unknown: {shown}", remedy)

    def _refuse(self, what: str, remedy: str) -> HostKeyError:
        return HostKeyError(what=what, where=self.where, remedy=remedy)
