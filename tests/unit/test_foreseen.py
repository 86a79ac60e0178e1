"""Ways that are tried before the facts are known: they save a round trip, and cost nothing where it comes otherwise."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import pytest

from orchestrator.facts import Facts
from orchestrator.node import hold, reach
from orchestrator.phases import foreseen
from orchestrator.phases import mesh as early_mesh
from orchestrator.phases.addresses import ask_for_port, prove_addresses
from orchestrator.phases.ahead import ask_ahead, prove_ways
from orchestrator.phases.foreseen import EarlyReach, foresee_address
from orchestrator.phases.mesh import foresee_mesh, measure_mesh
from orchestrator.settings import Settings
from orchestrator.transport import Channel
from orchestrator.transport.local import LocalLink
from orchestrator.values import Node

ADDRESS = "127.0.0.1"


class CountingLink(LocalLink):
    """A link that notes what is asked over it."""

    def __init__(self, node: Node, *, far: bool = True) -> None:
        super().__init__(node)
        self.round_trip_s = 1.0 if far else 0.001
        self.asked: list[Mapping[str, Any]] = []
        self.orders: list[Mapping[str, Any]] = []

    def open(self, program: str, request: Mapping[str, Any]) -> Channel:
        self.asked.append({"program": program, **request})
        channel = super().open(program, request)
        send = channel.send

        def noting(order: Mapping[str, Any]) -> None:
            self.orders.append(order)
            send(order)

        channel.send = noting  # type: ignore[method-assign]
        return channel

    def count(self, program: str) -> int:
        return sum(one["program"] == program for one in self.asked)


def open_links(count: int, near: Sequence[int] = ()) -> tuple[list[Node], list[CountingLink], list[Facts]]:
    nodes = [Node(name=f"n{rank}", host=ADDRESS, local=True) for rank in range(count)]
    facts = [Facts(node_rank=rank, boot_id="b", network_id="n", ssh_server_address=ADDRESS) for rank in range(count)]
    return nodes, [CountingLink(node, far=rank not in near) for rank, node in enumerate(nodes)], facts


@pytest.mark.parametrize("near", [(), (1,), (0, 1, 2)])
def test_what_was_foreseen_is_asked_once_and_who_is_near_is_told_later_to_test(
    near: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_mesh, "PATIENCE_S", 30.0)  # however busy this machine is
    monkeypatch.setattr(foreseen, "PATIENCE_S", 30.0)
    monkeypatch.setattr(early_mesh, "_pick_port", find_free_port)
    nodes, links, facts = open_links(3, near)
    with ExitStack() as undo:
        ahead = ask_ahead(links, nodes, Settings(check=True), undo)
        for rank, link in enumerate(links):
            ahead.ask(rank, link)
        early = {rank for rank, link in enumerate(links) if link.count("reach")}
        proof, mesh = prove_ways(links, nodes, facts, Settings(check=True), ahead)
        assert proof.hold is not None
        undo.callback(proof.hold.close)
    assert early == {0, 1, 2} - set(near)
    assert (proof.master_addr, proof.master_port) == (ADDRESS, ahead.question.early.port)
    assert mesh is not None
    assert {(way.source, way.target) for way in mesh.ways if way.ok} == {(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)}
    assert [(link.count("reach"), link.count("mesh")) for link in links] == [(1, 1)] * 3
    told = {rank for rank, link in enumerate(links) if any(not order.get("again") for order in link.orders)}
    assert told == set(near)


def test_a_port_that_somebody_has_is_found_out_and_the_way_tried_again() -> None:
    nodes, links, facts = open_links(2)
    with ExitStack() as undo:
        question = ask_for_port(links[0], Settings())
        undo.callback(question.close)
        wrong = EarlyReach(ADDRESS, question.early.port + 1, question.nonce)
        question = type(question)(question.channel, question.nonce, wrong)
        for rank, link in enumerate(links):
            wrong.ask(rank, link)
        proof = prove_addresses(links, nodes, facts, Settings(), question)
        assert proof.hold is not None
        undo.callback(proof.hold.close)
    assert proof.master_addr == ADDRESS
    assert [link.count("reach") for link in links] == [2, 2]


def test_a_mesh_port_that_somebody_has_is_another_one_and_the_way_is_tried_again() -> None:
    nodes, links, _ = open_links(2)
    mesh = foresee_mesh(nodes)
    assert mesh is not None
    with ExitStack() as undo:
        taken = undo.enter_context(socket.create_server((ADDRESS, 0)))
        mesh._peers[1]["tcp"] = taken.getsockname()[1]
        undo.callback(mesh.close)
        for rank, link in enumerate(links):
            mesh.ask(rank, link)
        threading.Thread(target=hang_up, args=(taken,), daemon=True).start()
        found = measure_mesh(links, nodes, mesh.places, Settings(check=True), mesh)
    assert all(way.ok for way in found.ways), found
    tests = [order for order in links[0].orders if not order.get("again")]
    assert [[peer["rank"] for peer in order["peers"]] for order in tests] == [[1]]
    assert not [order for order in links[1].orders if not order.get("again")]


def find_free_port() -> int:
    """A port of those that the kernel picks from, which nobody has at this moment."""
    with socket.create_server((ADDRESS, 0)) as listener:
        return int(listener.getsockname()[1])


def hang_up(listener: socket.socket) -> None:
    """Let every visitor find somebody else."""
    while True:
        try:
            listener.accept()[0].close()
        except OSError:
            return


def test_what_cannot_be_foreseen_is_not_asked() -> None:
    named, at = Node(name="a", host="a.example"), Node(name="b", host="10.0.0.2")
    bound = Node(name="c", host="10.0.0.3", iface="eth1")
    assert [foresee_address(node) for node in (named, at, bound)] == ["", "10.0.0.2", ""]
    assert foresee_address(Node(name="a", host="a.example", addr="10.9.0.1")) == "10.9.0.1"
    assert foresee_mesh([named, at]) is None
    assert foresee_mesh([at]) is None


@pytest.mark.parametrize("patience_s", [0.0, 10.0])
def test_who_comes_too_early_tries_again_as_long_as_it_is_patient(patience_s: float) -> None:
    with socket.create_server((ADDRESS, 0)) as listener:
        port = listener.getsockname()[1]
    request = {"candidates": [ADDRESS], "port": port, "nonce": "n", "limit_s": 3.0, "patience_s": patience_s}

    def listen() -> None:
        time.sleep(0.3)
        with socket.create_server((ADDRESS, port)) as late:
            late.settimeout(5)
            with late.accept()[0] as visitor:
                visitor.sendall(b"AORTA n\n")

    server = threading.Thread(target=listen, daemon=True)
    if patience_s:
        server.start()
    (found,) = reach.test_candidates(request)
    if patience_s:
        assert found["ok"], found
        server.join(10)
    else:
        assert found["step"] == "refused"


def test_the_head_holds_the_proposed_port_where_it_can() -> None:
    def held(proposed: int) -> int:
        with closing(hold._listen_somewhere(proposed)) as listener:
            return int(listener.getsockname()[1])

    free = next(port for port in range(21000, 22000) if is_free(port))
    assert held(free) == free
    with closing(hold._listen(free)):
        assert held(free) != free
    assert 20000 <= held(40000) < 30000, "a kernel may give it to anybody"


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
        return sock.connect_ex(("::ffff:127.0.0.1", port)) != 0
