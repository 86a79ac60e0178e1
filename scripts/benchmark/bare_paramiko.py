"""A command on every node by paramiko alone, one thread a node; with `true` the floor of any launcher in Python.

Words: KEY KNOWN_HOSTS NODE,NODE,... USER COMMAND
"""

from __future__ import annotations

import sys
import threading

import paramiko


def main() -> int:
    """Log in everywhere at once, run the command, and say how many did not."""
    key = paramiko.Ed25519Key.from_private_key_file(sys.argv[1])
    known = paramiko.HostKeys(sys.argv[2])
    nodes = sys.argv[3].split(",")
    done: list[str] = []

    def run(node: str) -> None:
        client = paramiko.SSHClient()
        for kind, host_key in (known.lookup(node) or {}).items():
            client.get_host_keys().add(node, kind, host_key)
        client.connect(node, username=sys.argv[4], pkey=key, look_for_keys=False, allow_agent=False)
        _, stdout, _ = client.exec_command(sys.argv[5])
        if stdout.channel.recv_exit_status() == 0:
            done.append(node)
        client.close()

    threads = [threading.Thread(target=run, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(nodes) - len(done)


if __name__ == "__main__":
    sys.exit(main())
