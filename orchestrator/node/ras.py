"""Asks NCCL's own service on this node (RAS, NCCL 2.24 and newer) how its communicators stand."""

from __future__ import annotations

import os
import socket
from typing import Any, Dict

from orchestrator.node import processes, report, runfolder

Facts = Dict[str, Any]
ADDRESS = "localhost:28028"
CONNECT_S = 1.0
ANSWER_S = 8.0
COLLECT_S = 5
"""How long the service may wait for ranks that do not answer it."""
MOST_BYTES = 1 << 20


def ask(folder: str, order: Facts) -> Facts:
    """Give the status of all communicators as text, or why there is none."""
    del order
    host, _, port = find_address(folder).rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S) as wire:
            wire.settimeout(ANSWER_S)
            # Each line is answered before the next one is read.
            for line in ("client protocol 2", "timeout %d" % COLLECT_S):
                wire.sendall(line.encode() + b"\n")
                wire.recv(1 << 12)
            wire.sendall(b"verbose status\n")
            text = _read(wire)
            return {"text": text, "why": "" if text else f"NCCL's RAS at {host}:{port} said nothing"}
    except (OSError, ValueError) as error:
        return {"text": "", "why": f"NCCL's RAS at {host}:{port}: {error}"}


def _read(wire: socket.socket) -> str:
    data = b""
    while len(data) < MOST_BYTES:
        try:
            part = wire.recv(1 << 16)
        except socket.timeout:  # before Python 3.10 it is no TimeoutError
            break
        if not part:
            break
        data += part
    return data.decode("utf-8", "replace")


def find_address(folder: str) -> str:
    """Find where the ranks have the service listen: NCCL_RAS_ADDR of theirs, or its default."""
    for event in report.last_ranks(runfolder.read_status(folder) or {}):
        told = processes.environ_of(event["pid"]).get(b"NCCL_RAS_ADDR", b"").decode("utf-8", "replace")
        if told:
            return told
    return os.environ.get("NCCL_RAS_ADDR") or ADDRESS
