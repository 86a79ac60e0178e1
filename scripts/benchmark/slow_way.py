"""Stands between an SSH client and a node as its ProxyCommand, and lets every byte take its time. Words: SECONDS HOST PORT."""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from collections import deque

CHUNK = 1 << 16


def main() -> None:
    """Carry bytes both ways, each chunk so many seconds after it came."""
    delay_s = float(sys.argv[1])
    way = socket.create_connection((sys.argv[2], int(sys.argv[3])))
    way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    outs = {0: way.fileno(), way.fileno(): 1}
    under_way: deque[tuple[float, int, bytes]] = deque()
    with selectors.DefaultSelector() as selector:
        for source in outs:
            selector.register(source, selectors.EVENT_READ)
        while True:
            due_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
            for key, _ in selector.select(due_s):
                data = os.read(key.fd, CHUNK)
                if not data:
                    return
                under_way.append((time.monotonic() + delay_s, outs[key.fd], data))
            while under_way and under_way[0][0] <= time.monotonic():
                _, out, data = under_way.popleft()
                while data:
                    data = data[os.write(out, data) :]


if __name__ == "__main__":
    main()
