"""Turns a program of orchestrator.node into one fixed remote command line and the bytes for its stdin."""

from __future__ import annotations

import json
import shlex
import zlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

# What the shell on the node sees never changes: no value of a user is in it. It has neither a newline nor an
# exclamation mark nor a backslash, so that fish and csh read it as sh does.
CHOOSE = (
    'boot=$1; shift; for p in "$@"; do '
    'if command -v "$p" >/dev/null 2>&1 && '
    '"$p" -I -S -c "import sys, json, zlib, ctypes, select, socket, fcntl; sys.exit(sys.version_info < (3, 9))" '
    '>/dev/null 2>&1; then exec "$p" -I -S -u -c "$boot"; fi; done; echo AORTA-NO-PYTHON; exit 97'
)
# A buffer of one byte never reads past what it was asked for: the orders that follow stay in the pipe.
BOOT = (
    "import io, zlib; i = io.BufferedReader(io.FileIO(0, closefd=False), 1); n = i.readline().split(); "
    "b = zlib.decompress(i.read(int(n[0]))); m = int(n[1]); "
    'exec(compile(b[:m], "boot.py", "exec"), {"__name__": "__main__", "BUNDLE": b[m:]})'
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
    return ["/bin/sh", "-c", CHOOSE, "aorta", BOOT, *pythons, *PYTHONS]


def remote_command(pythons: tuple[str, ...] = ()) -> str:
    """Build the same as the one line that sshd hands to the login shell."""
    return "exec " + shlex.join(remote_words(pythons))


def read_library() -> dict[str, str]:
    """Read the helper library for training scripts, by the names of its modules; also out of a zip."""
    texts = _read_folder("distributed")
    return {f"orchestrator.distributed.{name}".removesuffix(".__init__"): text for name, text in sorted(texts.items())}


def _read_folder(name: str) -> dict[str, str]:
    room = resources.files("orchestrator").joinpath(name)
    return {entry.name[:-3]: entry.read_text("utf-8") for entry in room.iterdir() if entry.name.endswith(".py")}


@cache
def _packed_room(*, library: bool) -> tuple[zlib._Compress, bytes, int]:
    """Compress boot code and modules once: they are the same for every program and node, and most of what is sent.

    Gives the compressor as it stands behind them, what it gave so far, and the length of the boot code.
    """
    texts = _read_folder("node")
    boot = texts.pop("boot").encode()
    modules = {"orchestrator": "", "orchestrator.node": texts.pop("__init__")}
    modules.update({f"orchestrator.node.{name}": text for name, text in sorted(texts.items())})
    modules.update(read_library() if library else {})
    packer = zlib.compressobj(6)
    begun = packer.compress(boot + b'{"modules": ' + json.dumps(modules).encode() + b", ")
    return packer, begun, len(boot)


def first_bytes(program: str, nonce: str, request: Mapping[str, Any]) -> bytes:
    """Build what goes over stdin first: sizes, then boot code and bundle, compressed."""
    # Only what starts a run has a use for the library of the ranks.
    packer, begun, boot_size = _packed_room(library=program == "start")
    rest = json.dumps({"program": program, "nonce": nonce, "request": request}).encode()
    # The copy goes on where the modules end; the rest closes the object that they began.
    own = packer.copy()
    packed = begun + own.compress(rest[1:]) + own.flush()
    return b"%d %d\n" % (len(packed), boot_size) + packed
