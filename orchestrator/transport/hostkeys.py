"""Reads known_hosts once and judges the keys that nodes show, as OpenSSH would."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import threading
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Literal

from orchestrator.errors import HostKeyError
from orchestrator.light_dataclass import dataclass

USABLE = frozenset({"ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"})
"""Types that paramiko can check; a line with another (sk-, dss) says nothing about the key we are shown."""
Standing = Literal["known", "unknown", "changed", "revoked"]


@dataclass(frozen=True)
class KnownHost:
    """One line of a known_hosts file."""

    patterns: str
    key_type: str
    key: bytes
    where: str
    """file:line"""
    marker: str = ""

    @cached_property
    def _plain(self) -> tuple[tuple[bool, re.Pattern[str]], ...]:
        found = []
        for word in self.patterns.lower().split(","):
            negated = word.startswith("!")
            text = re.escape(word[1:] if negated else word).replace(r"\*", ".*").replace(r"\?", ".")
            found.append((negated, re.compile(text + r"\Z", re.DOTALL)))
        return tuple(found)

    @cached_property
    def _hash(self) -> tuple[bytes, bytes] | None:
        try:
            _, _, salt, digest = self.patterns.split("|")
            return base64.b64decode(salt), base64.b64decode(digest)
        except (ValueError, binascii.Error):
            return None

    def matches(self, name: str) -> bool:
        """Say whether the line speaks of a host: hashed, plain or by pattern; a negated pattern rules it out."""
        if self.patterns.startswith("|1|"):
            return self._hash is not None and hmac.compare_digest(
                hmac.digest(self._hash[0], name.encode(), "sha1"), self._hash[1]
            )
        hits = [negated for negated, pattern in self._plain if pattern.match(name)]
        return bool(hits) and not any(hits)


def parse_known_hosts(text: str, file: str) -> list[KnownHost]:
    """Parse the text of a known_hosts file; a line that is none is passed over, as OpenSSH does."""
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#"):  # noqa: PLR2004 - names, type, key
            continue
        try:
            key = base64.b64decode(words[2], validate=True)
        except (ValueError, binascii.Error):
            continue
        hosts.append(KnownHost(words[0], words[1], key, f"{file}:{number}", marker))
    return hosts


def fingerprint(key: bytes) -> str:
    """Write a key's fingerprint as ssh-keygen -l does."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


@dataclass(frozen=True)
class Judgement:
    """What known_hosts says of one key of one host."""

    standing: Standing
    where: str = ""
    """The line that decides."""
    authority: str = ""
    """The @cert-authority line that would vouch for the host, which only a host certificate could use."""


class Lines:
    """The lines of one file: those with plain names by name, the others in a row."""

    def __init__(self, lines: list[KnownHost]) -> None:
        self._named: dict[str, list[tuple[int, KnownHost]]] = {}
        self._others: list[tuple[int, KnownHost]] = []
        for number, line in enumerate(lines):
            if any(sign in line.patterns for sign in "|*?!"):
                self._others.append((number, line))
                continue
            for name in dict.fromkeys(line.patterns.lower().split(",")):
                self._named.setdefault(name, []).append((number, line))

    def find(self, name: str) -> list[KnownHost]:
        """Find the lines that speak of a host, in their order."""
        odd = [(number, line) for number, line in self._others if line.matches(name)]
        return [line for _, line in sorted([*self._named.get(name, ()), *odd], key=lambda one: one[0])]


class KnownHosts:
    """All known_hosts files of one connect, each read once; shared between the nodes' threads."""

    def __init__(self) -> None:
        self._files: dict[str, Lines] = {}
        self._found: dict[tuple[str, tuple[str, ...]], list[KnownHost]] = {}
        self._lock = threading.Lock()

    def _lines_of(self, name: str, files: Iterable[str]) -> list[KnownHost]:
        """Find the lines that speak of a host; asked three times for each."""
        place = (name, tuple(files))
        with self._lock:
            if place not in self._found:
                for file in place[1]:
                    if file not in self._files:
                        self._files[file] = Lines(_read(file))
                self._found[place] = [line for file in place[1] for line in self._files[file].find(name)]
            return self._found[place]

    def key_types(self, name: str, files: Iterable[str]) -> list[str]:
        """Give the types of the keys that are known for a host, so that the node is asked for one of those."""
        return [line.key_type for line in self._lines_of(name, files) if not line.marker]

    def judge(self, name: str, key_type: str, key: bytes, files: Iterable[str]) -> Judgement:
        """Say where a key stands: revoked beats known, known beats changed."""
        mine = self._lines_of(name, files)
        for line in mine:
            if line.marker == "@revoked" and line.key == key:
                return Judgement("revoked", line.where)
        authority = next((line.where for line in mine if line.marker == "@cert-authority"), "")
        plain = [line for line in mine if not line.marker and line.key_type in USABLE]
        for line in plain:
            if line.key == key:
                return Judgement("known", line.where)
        same_type = [line for line in plain if line.key_type == key_type]
        if plain:
            return Judgement("changed", (same_type or plain)[0].where, authority)
        return Judgement("unknown", authority=authority)

    def remember(self, name: str, key_type: str, key: bytes, file: str, *, hashed: bool) -> None:
        """Append a new key to a known_hosts file, as OpenSSH's accept-new does."""
        written = _hash(name) if hashed else name
        line = f"{written} {key_type} {base64.b64encode(key).decode()}\n"
        with self._lock:
            path = Path(file)
            if any(known.key == key and not known.marker and known.matches(name) for known in _read(file)):
                return
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # What another program left without a last newline must not swallow our line.
                broken = path.exists() and path.stat().st_size > 0 and path.read_bytes()[-1:] != b"\n"
                with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w") as stream:
                    stream.write(("\n" if broken else "") + line)
            except OSError as error:
                raise HostKeyError(
                    what=f"the new host key cannot be remembered: {error.strerror}",
                    where=file,
                    remedy="make the file writable, or add the key with ssh-keyscan",
                ) from error
            self._files[file] = Lines(_read(file))
            self._found.clear()


def _hash(name: str) -> str:
    salt = os.urandom(20)
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _read(file: str) -> list[KnownHost]:
    try:
        return parse_known_hosts(Path(file).read_text("utf-8", "surrogateescape"), file)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise HostKeyError(
            what=f"the known host keys cannot be read: {error.strerror}", where=file, remedy="make the file readable"
        ) from error
