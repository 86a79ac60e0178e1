"""Turns a program of orchestrator.node into one fixed remote command line and the bytes for its stdin."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from orchestrator.node.boot import SOURCES
from orchestrator.transport.cargo import MAGIC, pack_modules, pack_sources, read_code, read_texts

# What the shell on the node sees never changes: no value of a user is in it. It has neither a newline nor an
# exclamation mark nor a backslash, so that fish and csh read it as sh does.
# A Python of the system is started at once, and hands over to the next one itself when it is too old or cut down: to
# try it first would cost as much as all that follows. Whatever else may be a shim that leads nowhere, and is tried.
CHOOSE = (
    "choose=$1; boot=$2; shift 2; "
    'for p in "$@"; do shift; case $(command -v "$p" 2>/dev/null) in "") continue ;; '
    '/usr/bin/*) exec "$p" -I -S -u -c "$boot" "$choose" "$boot" "$@" ;; esac; '
    'if "$p" -I -S -c "import sys, json, zlib, ctypes, select, socket, fcntl; sys.exit(sys.version_info < (3, 9))" '
    '>/dev/null 2>&1; then exec "$p" -I -S -u -c "$boot" "$choose" "$boot" "$@"; fi; done; '
    "echo AORTA-NO-PYTHON; exit 97"
)
# A buffer of one byte never reads past what it was asked for: the orders that follow stay in the pipe.
BOOT = (
    "import sys, os; "
    "sys.version_info >= (3, 9) and all(n in sys.builtin_module_names or sys.meta_path[-1].find_spec(n) for n in "
    '("json", "zlib", "ctypes", "_ctypes", "select", "_socket", "fcntl")) '
    'or os.execv("/bin/sh", ["/bin/sh", "-c", sys.argv[1], "aorta"] + sys.argv[1:]); '
    "import io, marshal; i = io.BufferedReader(io.FileIO(0, closefd=False), 1); n = i.readline().split(); "
    "b = i.read(int(n[0])); c = i.read(int(n[1])); "
    'm = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER.hex().encode() == n[4]; '
    'exec(marshal.loads(c) if m else compile(b, "boot.py", "exec"), {"__name__": "__main__", "INPUT": i, "SIZES": n})'
)
NO_PYTHON = b"AORTA-NO-PYTHON"
PYTHONS = (
    "python3",
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/opt/conda/bin/python3",
    "python3.13",
    "python3.12",
    "python3.11",
    "python3.10",
    "python3.9",
    "python",
)


def remote_words(pythons: tuple[str, ...] = ()) -> list[str]:
    """Build the argv that starts the bootstrap with the first usable Python."""
    return ["/bin/sh", "-c", CHOOSE, "aorta", CHOOSE, BOOT, *pythons, *PYTHONS]


def remote_command(pythons: tuple[str, ...] = ()) -> str:
    """Build the same as the one line that sshd hands to the login shell."""
    return "exec " + shlex.join(remote_words(pythons))


def first_bytes(program: str, nonce: str, request: Mapping[str, Any]) -> bytes:
    """Build what goes over stdin first: sizes, then boot code, order and modules."""
    order = json.dumps({"program": program, "request": request}).encode()
    parts = (read_texts()["boot"].encode(), read_code("boot"), order, pack_modules(program))
    sizes = " ".join(str(len(part)) for part in parts)
    return f"{sizes} {MAGIC.hex()} {nonce}\n".encode() + b"".join(parts)


def source_bytes() -> bytes:
    """Build what a Python gets that asked for sources; orders that were sent before may stand before it."""
    sources = pack_sources()
    return json.dumps({"op": SOURCES, "bytes": len(sources)}).encode() + b"\n" + sources
