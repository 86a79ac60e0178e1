"""One line of a node list: user@host:port and its key=value words."""

from __future__ import annotations

import re
from difflib import get_close_matches
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

from orchestrator.errors import NodeListError
from orchestrator.noderanges import expand_range
from orchestrator.values import Node

if TYPE_CHECKING:
    from collections.abc import Callable

_WORD = re.compile(r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'])+""")
_PIECE = re.compile(r""""((?:[^"\\]|\\.)*)"|'([^']*)'|([^"']+)""")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
_BRACKETED = re.compile(r"\[([^\[\]]*:[^\[\]]*)\](?::(.*))?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GPU_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{4,}")
_MAX_PORT = 65535
_MAX_SLOTS = 9999
_MAX_GPUS = 1024

IGNORED_KEYS = ("max_slots", "max-slots")
"""MPI's host files carry them; a launch takes what slots says."""


def parse_line(line: str, where: str) -> tuple[Node, ...]:
    """Parse one line; a range gives several nodes, a blank or comment line none.

    Raises:
        NodeListError: the line is not a node.
    """
    words = _split_line(line, where)
    if not words:
        return ()
    fields = _parse_words(words[1:], where)
    try:
        addresses = _expand(words[0])
    except ValueError as error:
        raise NodeListError(str(error), where, "write ranges as node[01-16] or node[1,3-5]") from None
    if len(addresses) > 1 and "addr" in fields:
        raise NodeListError(
            "addr= names one node, but the range names several", where, "give each node with an addr a line of its own"
        )
    return tuple(_build_node(address, fields, where) for address in addresses)


def _split_line(line: str, where: str) -> list[str]:
    words: list[str] = []
    at = 0
    while at < len(line):
        if line[at].isspace():
            at += 1
            continue
        if line[at] == "#":
            break
        found = _WORD.match(line, at)
        if found is None or (found.end() < len(line) and not line[found.end()].isspace()):
            raise NodeListError("a quote without its partner", where, "close the quote")
        words.append("".join(_unquote(piece) for piece in _PIECE.finditer(found[0])))
        at = found.end()
    return words


def _unquote(piece: re.Match[str]) -> str:
    double, single, bare = piece.groups()
    if double is not None:
        return re.sub(r'\\(["\\])', r"\1", double)
    return single if single is not None else bare


def _expand(text: str) -> tuple[str, ...]:
    # [::1]:22 is an address, node[1-2] a range.
    return (text,) if _BRACKETED.fullmatch(text.rpartition("@")[2]) else expand_range(text)


def _build_node(text: str, fields: dict[str, Any], where: str) -> Node:
    at_user, at, rest = text.rpartition("@")
    if at and (not at_user or at_user.startswith("-")):
        raise NodeListError(f"no user before the @ of {text}", where, "write user@host")
    host, port = _parse_host(rest, where)
    own = dict(fields)
    for key, value in (("user", at_user or None), ("port", port)):
        if value is None:
            continue
        if key in own:
            raise NodeListError(f"the {key} stands in {text} and in {key}=", where, "keep one of the two")
        own[key] = value
    return Node(name=host, host=host, where=where, **own)


def is_numeric(text: str) -> bool:
    """Tell an address from a name."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _parse_host(text: str, where: str) -> tuple[str, int | None]:
    bracketed = _BRACKETED.fullmatch(text)
    if bracketed is not None:
        port = None if bracketed[2] is None else _parse_port(bracketed[2], where)
        return _parse_ipv6(bracketed[1], where), port
    if text.count(":") > 1:
        return _parse_ipv6(text, where), None
    host, colon, port_text = text.partition(":")
    if re.fullmatch(r"[0-9.]+", host):
        try:
            ip_address(host)
        except ValueError:
            raise NodeListError(f"{host} is not an IPv4 address", where, "write four numbers from 0 to 255") from None
    if "," in host:
        raise NodeListError(f"several nodes in one line: {host}", where, "write one node a line")
    if not _HOST.fullmatch(host):
        raise NodeListError(
            f"{host!r} is not a host name or address" if host else "no host",
            where,
            "write a name, address or user@host:port",
        )
    return host, _parse_port(port_text, where) if colon else None


def _parse_ipv6(text: str, where: str) -> str:
    try:
        IPv6Address(text)
    except ValueError:
        raise NodeListError(
            f"{text} is neither host:port nor an IPv6 address", where, "write host:port, fd00::1 or [fd00::1]:22"
        ) from None
    return text


def _parse_words(words: list[str], where: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    env: dict[str, str] = {}
    seen: set[str] = set()
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise NodeListError(f"{word!r} is not key=value", where, "one node a line, then key=value words")
        if key in seen:
            raise NodeListError(f"{key} is given twice", where, "keep one of the two")
        seen.add(key)
        if key.startswith("env."):
            env[_parse_env_name(key[4:], where)] = value
        elif key in IGNORED_KEYS:
            _parse_slots(value, where)
        elif key in _PARSERS:
            fields[key] = _PARSERS[key](value, where)
        else:
            known = [*_PARSERS, "env.NAME"]
            near = get_close_matches(key, known, n=1, cutoff=0.5)
            guess = f", did you mean {near[0]}?" if near else ""
            raise NodeListError(f"unknown key {key}{guess}", where, f"the keys are {', '.join(known)}")
    return {**fields, "env": tuple(env.items())} if env else fields


def _parse_env_name(name: str, where: str) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise NodeListError(f"{name!r} cannot name a variable", where, "write env.NAME=value")
    return name


def _parse_number(noun: str, high: int) -> Callable[[str, str], int]:
    def parse(text: str, where: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= high:
            raise NodeListError(f"{text!r} is no {noun}", where, f"write a number from 1 to {high}")
        return int(text)

    return parse


def _parse_text(key: str) -> Callable[[str, str], str]:
    def parse(text: str, where: str) -> str:
        if not text or text.startswith("-") or not text.isprintable():
            raise NodeListError(f"{key}={text} has no usable value", where, f"give {key} a value or leave it out")
        return text

    return parse


def _parse_addr(text: str, where: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        raise NodeListError(
            f"addr={text} is not a numeric address", where, "write the IPv4 or IPv6 address that the ranks use"
        ) from None


def _parse_iface(text: str, where: str) -> str:
    if not re.fullmatch(r"[^\s/=^,-][^\s/=^,]{0,14}", text):
        raise NodeListError(f"iface={text} is no interface", where, "write one name as in `ip link`, like eth0")
    return text


def _parse_gpus(text: str, where: str) -> tuple[str, ...]:
    gpus: list[str] = []
    for part in text.split(","):
        span = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if span is not None:
            first, last = int(span[1]), int(span[2] or span[1])
            gpus.extend(str(index) for index in range(first, last + 1))
        if (span is None and not _GPU_UUID.fullmatch(part)) or (span is not None and not first <= last < _MAX_GPUS):
            raise NodeListError(
                f"gpus={text} is no list of GPUs", where, "write indices (0,2 or 0-3) or UUIDs (GPU-...)"
            )
        if span is None:
            gpus.append(part)
    if len(set(gpus)) < len(gpus):
        raise NodeListError(f"gpus={text} names one GPU twice", where, "keep one of the two")
    return tuple(gpus)


def _parse_python(text: str, where: str) -> str:
    if not text.startswith(("/", "~/")) or not text.isprintable():
        raise NodeListError(
            f"python={text} is not an absolute path", where, "write the path on the node, like /opt/venv/bin/python"
        )
    return text


def _parse_local(text: str, where: str) -> bool:
    word = text.lower()
    if word not in {"yes", "no", "true", "false"}:
        raise NodeListError(f"local={text} is neither yes nor no", where, "write local=yes or local=no")
    return word in {"yes", "true"}


_parse_port = _parse_number("port", _MAX_PORT)
_parse_slots = _parse_number("number of slots", _MAX_SLOTS)

_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "user": _parse_text("user"),
    "port": _parse_port,
    "key": _parse_text("key"),
    "jump": _parse_text("jump"),
    "addr": _parse_addr,
    "iface": _parse_iface,
    "slots": _parse_slots,
    "gpus": _parse_gpus,
    "python": _parse_python,
    "local": _parse_local,
}
