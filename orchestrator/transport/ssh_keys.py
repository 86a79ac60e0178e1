"""The keys for a login: files parsed once a process, the agent's keys after them."""

from __future__ import annotations

import base64
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from orchestrator.light_dataclass import dataclass
from orchestrator.transport.ssh_base import paramiko
from orchestrator.transport.sshconfig import SshHost

AGENT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Offer:
    """One key that can be shown to a server."""

    key: paramiko.PKey
    name: str
    """What people are told: the file, or the agent's comment."""
    path: str = ""
    """The file of the key, empty for one that only the agent has."""


@dataclass(frozen=True)
class KeyFile:
    """What came of reading one key file."""

    key: paramiko.PKey | None = None
    problem: str = ""
    remedy: str = ""
    public: bytes = b""


class KeyStore:
    """Every key file read so far; parsing an RSA key takes longer than a login."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, tuple[str, ...]], KeyFile] = {}
        self._lock = threading.Lock()

    def file(self, path: str, certificates: tuple[str, ...] = ()) -> KeyFile:
        """Read a key file, the first time that it is asked for."""
        with self._lock:
            place = (path, certificates)
            if place not in self._files:
                self._files[place] = read_key_file(path, certificates)
            return self._files[place]


def read_key_file(path: str, certificates: tuple[str, ...] = ()) -> KeyFile:
    """Read a private key with the certificate beside it or one that ssh_config names for it."""
    public = _public_of(path)
    try:
        key = paramiko.PKey.from_path(path)
    except FileNotFoundError:
        return KeyFile(problem="is not there", remedy="name a key that exists", public=public)
    except OSError as error:
        return KeyFile(problem=f"cannot be read ({error.strerror})", remedy="look at its mode", public=public)
    except (TypeError, paramiko.PasswordRequiredException):
        remedy = f"load it into an agent first: ssh-add {path}"
        return KeyFile(problem="is encrypted and no agent holds it", remedy=remedy, public=public)
    except Exception as error:  # noqa: BLE001 - paramiko and cryptography raise some ten types for a file they cannot read
        return _unreadable(path, public, error)
    if key.public_blob is None:
        for certificate in certificates:
            _load_certificate(key, certificate)
    return KeyFile(key=key, public=public or key.asbytes())


def _unreadable(path: str, public: bytes, error: Exception) -> KeyFile:
    if b"\x00\x00sk-" in public[:8] or b"sk-ssh-" in public or b"sk-ecdsa-" in public:
        remedy = "name an ordinary key (ssh-keygen -t ed25519), or load this one into an agent"
        return KeyFile(
            problem="is a security key (sk-), which paramiko cannot use from a file", remedy=remedy, public=public
        )
    if path.endswith(".pub"):
        remedy = "load the private key into an agent: ssh-add"
        return KeyFile(problem="is a public key and no agent holds its private half", remedy=remedy, public=public)
    remedy = f"rewrite it in OpenSSH's own format: ssh-keygen -p -f {path}"
    return KeyFile(problem=f"is in no format that paramiko reads ({error})", remedy=remedy, public=public)


def _load_certificate(key: paramiko.PKey, path: str) -> None:
    try:
        blob = paramiko.pkey.PublicBlob.from_file(path)
    except (OSError, ValueError, paramiko.SSHException):
        return
    # A certificate holds the public key it is for; only that key may carry it.
    if key.get_name() in blob.key_type and _inner(key) in blob.key_blob:
        key.load_certificate(path)


def _inner(key: paramiko.PKey) -> bytes:
    name = key.get_name().encode()
    return key.asbytes()[4 + len(name) :]


def _public_of(path: str) -> bytes:
    """Find the public half without the passphrase: in the .pub file, or at the head of an OpenSSH private key."""
    for file in (path, path + ".pub"):
        try:
            text = Path(file).read_text("ascii", "replace")
        except OSError:
            continue
        words = text.split()
        try:
            if file.endswith(".pub"):
                return base64.b64decode(words[1])
            if "BEGIN OPENSSH PRIVATE KEY" in text:
                return _openssh_public(base64.b64decode("".join(text.splitlines()[1:-1])))
        except (IndexError, ValueError):
            continue
    return b""


def _openssh_public(data: bytes) -> bytes:
    """Skip magic, cipher, kdf and kdf options, and take the one public key."""
    place = len(b"openssh-key-v1\x00")
    for _ in range(3):
        place += 4 + int.from_bytes(data[place : place + 4], "big")
    place += 4
    length = int.from_bytes(data[place : place + 4], "big")
    return data[place + 4 : place + 4 + length]


class Agent(paramiko.agent.AgentSSH):
    """A connection to the agent at a given socket; paramiko's own looks only at SSH_AUTH_SOCK."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(AGENT_TIMEOUT_S)
        try:
            self._socket.connect(path)
            self._connect(self._socket)  # type: ignore[attr-defined] # the stubs leave it out
        except (OSError, paramiko.SSHException):
            # No agent there is no error: then there are the files.
            self._socket.close()

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


def offers(host: SshHost, store: KeyStore, agent: Agent | None, problems: list[KeyFile]) -> Iterator[Offer]:
    """Give the keys in the order in which they are tried: named, ssh_config's files, the agent's others."""
    held = {key.asbytes(): key for key in agent.get_keys()} if agent else {}
    used: set[bytes] = set()
    paths = list(dict.fromkeys(([host.named_key] if host.named_key else []) + list(host.identities)))
    for path in paths:
        if path != host.named_key and not os.path.lexists(path):
            continue
        file = store.file(path, host.certificates)
        key = file.key or held.get(file.public)
        if key is None:
            problems.append(KeyFile(problem=f"{path} {file.problem}", remedy=file.remedy))
        elif key.asbytes() not in used:
            used.add(key.asbytes())
            yield Offer(key, path, path)
    if host.identities_only:
        return
    for blob, key in held.items():
        if blob not in used:
            yield Offer(key, f"agent: {getattr(key, 'comment', '') or key.get_name()}")
