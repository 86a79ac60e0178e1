"""Logs in on every node by paramiko alone, by the ProxyCommand of an ssh_config. Words: KEY CONFIG NODE,NODE,... USER."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import paramiko


def main() -> None:
    """Log in everywhere at once."""
    key = paramiko.Ed25519Key.from_private_key_file(sys.argv[1])
    command = Path(sys.argv[2]).read_text().split("ProxyCommand ", 1)[1].strip()

    def log_in(node: str) -> None:
        transport = paramiko.Transport(paramiko.ProxyCommand(command.replace("%h", node).replace("%p", "22")))
        transport.connect(username=sys.argv[4], pkey=key)
        transport.close()

    threads = [threading.Thread(target=log_in, args=(node,)) for node in sys.argv[3].split(",")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
