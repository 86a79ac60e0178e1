"""One question to OpenSSH for many nodes, where its configuration provably says the same of them."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import replace
from pathlib import Path

from orchestrator.light_dataclass import dataclass
from orchestrator.transport.sshconfig import SshHost, ask_openssh, ask_ssh, home_folder, parse_ssh_answer

SIMPLE_NAME = re.compile(r"[a-z0-9._:-]+")
"""Of others ssh changes the letters."""
SIMPLE_PATTERN = re.compile(r"!?[A-Za-z0-9._:/*?-]+")
READ = re.compile(r"^debug1: Reading configuration data (.+?)\r?$", re.MULTILINE)
SAME_FOR_ALL = frozenset({"all", "final", "canonical"})
"""What a Match line may ask for that no host's name decides."""

Lines = tuple[tuple[str, ...], ...]
"""The patterns of every Host line."""


@dataclass(frozen=True)
class Answer:
    """What ssh said of one host, and of whom it says the same."""

    name: str
    text: str
    lines: Lines
    matched: tuple[bool, ...]
    host: SshHost

    def tell_of(self, alias: str) -> SshHost:
        """Give what it says of another host than the one that was asked for."""
        if "%" in self.text:  # a path that a name is to be put into
            return parse_ssh_answer(rename(self, alias), alias, os.environ, home_folder())
        return replace(self.host, alias=alias, hostname=alias)


class Asked:
    """The questions of one connect; many threads ask."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str | None, int | None], list[Answer]] = {}
        self._locks: dict[tuple[str | None, int | None], threading.Lock] = {}
        self._lock = threading.Lock()

    def ask(self, alias: str, *, user: str | None = None, port: int | None = None) -> SshHost:
        """Ask how ssh would reach a host, or know it from what it said of another one."""
        if not SIMPLE_NAME.fullmatch(alias) or alias.startswith("-"):
            return ask_ssh(alias, user=user, port=port)
        key = (user, port)
        with self._lock:
            first = self._locks.setdefault(key, threading.Lock())
        # The others wait for the first answer alone: it may be theirs.
        with first:
            known = self._answers.get(key)
            if known is None:
                self._answers[key] = known = []
                return self._ask(alias, user, port, known)
        for answer in known:
            same = find_matches(answer.lines, alias) == answer.matched
            # A line that speaks of this very host, a jump through it for one, is for ssh to judge.
            if alias == answer.name or (same and not find_lines(answer.text, alias)):
                return answer.tell_of(alias)
        return self._ask(alias, user, port, known)

    def _ask(self, alias: str, user: str | None, port: int | None, known: list[Answer]) -> SshHost:
        told = ask_openssh(alias, user, port, tell_files=True)
        if told is None:
            return ask_ssh(alias, user=user, port=port)
        text, complaints = told
        lines = read_host_lines(READ.findall(complaints)) if "debug1: " in complaints else None
        host = parse_ssh_answer(text, alias, os.environ, home_folder())
        answer = None if lines is None else Answer(alias, text, lines, find_matches(lines, alias), host)
        if answer is not None and is_plain(answer):
            known.append(answer)
        return host


def read_host_lines(files: list[str]) -> Lines | None:
    """Read every Host line of the files that ssh has read; None where something else than the name decides."""
    lines: list[tuple[str, ...]] = []
    for file in files:
        try:
            text = Path(file).read_text("utf-8", "surrogateescape")
        except OSError:
            return None
        for line in text.splitlines():
            keyword, *words = re.split(r"[\s=]+", line.strip())
            if keyword.lower() == "match" and not SAME_FOR_ALL.issuperset(word.lower() for word in words):
                return None
            if keyword.lower() == "host":
                patterns = tuple(word for word in words if word)
                if not all(SIMPLE_PATTERN.fullmatch(pattern) for pattern in patterns):
                    return None
                lines.append(patterns)
    return tuple(lines)


def find_matches(lines: Lines, name: str) -> tuple[bool, ...]:
    """Find which Host lines speak of a host, as ssh does: a pattern that fits, and none with ! that fits."""
    return tuple(
        any(_fits(pattern, name) for pattern in line if not pattern.startswith("!"))
        and not any(_fits(pattern[1:], name) for pattern in line if pattern.startswith("!"))
        for line in lines
    )


def _fits(pattern: str, name: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), name) is not None


def is_plain(answer: Answer) -> bool:
    """Say whether the host's name stands in an answer only where it is sure to: as the name and as the host to dial."""
    found = find_lines(answer.text, answer.name)
    canonical = re.search(r"^canonicalizehostname (.*)$", answer.text, re.MULTILINE)
    named = {f"host {answer.name}", f"hostname {answer.name}"}
    return (
        f"hostname {answer.name}" in found
        and named.issuperset(found)
        and (canonical is None or canonical[1] in ("false", "no"))
    )


def find_lines(text: str, name: str) -> list[str]:
    """Find the lines in which a host's name stands."""
    if name not in text:
        return []
    word = re.compile(rf"(?<![\w.:-]){re.escape(name)}(?![\w.:-])")
    return [line for line in text.splitlines() if word.search(line)]


def rename(answer: Answer, name: str) -> str:
    """Make of the answer for one host that for another."""
    return re.sub(rf"^(host|hostname) {re.escape(answer.name)}$", rf"\1 {name}", answer.text, flags=re.MULTILINE)
