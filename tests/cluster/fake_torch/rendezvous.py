"""How the stand-ins of all nodes find each other: node 0 listens on the master port, and tells each its first rank."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import IO, NamedTuple


class RendezvousError(Exception):
    """The nodes did not come together."""


class Place(NamedTuple):
    """Where a node stands among all ranks."""

    first_rank: int
    world_size: int


class Store:
    """What keeps the nodes together while they run; closing it lets the port go."""

    def __init__(self, place: Place, sockets: list[socket.socket], peers: list[IO[bytes]]) -> None:
        self.place = place
        self._sockets = sockets
        self._peers = peers

    def wait_for_others(self, timeout_s: float) -> None:
        """Wait at the end until every node has come to its end too, as torchrun's exit barrier does."""
        deadline = time.monotonic() + timeout_s
        for own in self._sockets[-len(self._peers) :]:
            own.settimeout(max(0.01, deadline - time.monotonic()))
            # Node 0 hears an end of file from each node that is through or gone, torchrun cannot tell which either;
            # the others hear one when node 0 has heard all.
            with contextlib.suppress(OSError):
                if len(self._sockets) == len(self._peers):
                    own.shutdown(socket.SHUT_WR)
                own.recv(1)

    def close(self) -> None:
        """Close every connection and the port."""
        for own in self._sockets:
            own.close()


def listen(port: int) -> socket.socket:
    """Bind the master port on all addresses, or say in torch's words why it cannot be."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(("", port))
        server.listen(1024)
    except OSError as error:
        server.close()
        name = {98: "EADDRINUSE", 13: "EACCES"}.get(error.errno or 0, "UNKNOWN")
        raise RendezvousError(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            f"port: {port}, useIpv6: false, code: -{error.errno}, name: {name}, message: {os.strerror(error.errno or 0).lower()}"
        ) from None
    return server


def host_store(port: int, run: str, nodes: int, processes: int, timeout_s: float) -> Store:
    """Node 0: take every other node's count, then tell each where it stands."""
    server = listen(port)
    begin = time.monotonic()
    counts = {0: processes}
    joined: dict[int, tuple[socket.socket, IO[bytes]]] = {}
    while len(counts) < nodes:
        left = begin + timeout_s - time.monotonic()
        try:
            server.settimeout(max(0.01, left))
            client, _ = server.accept()
        except TimeoutError:
            waited = int(time.monotonic() - begin) + 1
            raise RendezvousError(
                f"torch.distributed.DistStoreError: Timed out after {waited} seconds waiting for clients. "
                f"{len(counts)}/{nodes} clients joined."
            ) from None
        client.settimeout(5)
        stream = client.makefile("rb")
        try:
            hello = json.loads(stream.readline() or b"{}")
        except (OSError, ValueError):
            hello = {}
        if hello.get("run") != run:
            client.close()  # somebody else's; with torchrun it would wait for ever in a store that is not its own
            continue
        counts[hello["node_rank"]] = hello["processes"]
        joined[hello["node_rank"]] = (client, stream)
    firsts = {rank: sum(counts[lower] for lower in range(rank)) for rank in range(nodes)}
    world = sum(counts.values())
    for rank, (client, _) in joined.items():
        client.sendall(json.dumps([firsts[rank], world]).encode() + b"\n")
        client.settimeout(None)
    return Store(Place(0, world), [server, *(c for c, _ in joined.values())], [s for _, s in joined.values()])


def join_store(address: str, port: int, run: str, node_rank: int, processes: int, timeout_s: float) -> Store:
    """Any other node: knock until node 0 answers with where this node stands."""
    deadline = time.monotonic() + timeout_s
    hello = json.dumps({"run": run, "node_rank": node_rank, "processes": processes}).encode() + b"\n"
    while time.monotonic() < deadline:
        try:
            client = socket.create_connection((address, port), timeout=1)
            client.sendall(hello)
            client.settimeout(max(0.01, deadline - time.monotonic()))
            stream = client.makefile("rb")
            answer = stream.readline()
        except OSError:
            answer = b""
        if answer:
            client.settimeout(None)
            return Store(Place(*json.loads(answer)), [client], [stream])
        time.sleep(0.05)
    raise RendezvousError(
        "torch.distributed.DistNetworkError: The client socket has timed out after "
        f"{int(timeout_s * 1000)}ms while trying to connect to ({address}, {port})."
    )
