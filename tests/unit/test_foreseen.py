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
from orchestrator.phases.addresses import _ask_node, ask_for_port, prove_addresses
from orchestrator.phases.ahead import ask_ahead, prove_ways
from orchestrator.phases.foreseen import EarlyReach, foresee_address
from orchestrator.phases.mesh import foresee_mesh, measure_mesh
from orchestrator.settings import Settings
from orchestrator.transport import Channel, Frame
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


@pytest.mark.parametrize("taken", ["tcp", "udp"])
@pytest.mark.parametrize("behaves", ["hangs up", "is silent", "speaks JSON"])
def test_a_mesh_port_that_somebody_has_is_another_one_and_the_way_is_tried_again(taken: str, behaves: str) -> None:
    nodes, links, _ = open_links(2)
    mesh = foresee_mesh(nodes)
    assert mesh is not None
    with ExitStack() as undo:
        kind = socket.SOCK_DGRAM if taken == "udp" else socket.SOCK_STREAM
        holder = undo.enter_context(socket.socket(socket.AF_INET, kind))
        holder.bind((ADDRESS, 0))
        if taken == "tcp":
            holder.listen()
            threading.Thread(target=be_somebody_else, args=(holder, behaves), daemon=True).start()
        mesh._peers[1][taken] = holder.getsockname()[1]
        undo.callback(mesh.close)
        for rank, link in enumerate(links):
            mesh.ask(rank, link)
        found = measure_mesh(links, nodes, mesh.places, Settings(check=True), mesh)
    assert [(way.ok, way.udp) for way in found.ways] == [(True, "ok")] * 2
    tests = [order for order in links[0].orders if not order.get("again")]
    assert [[peer["rank"] for peer in order["peers"]] for order in tests] == [[1]]


def be_somebody_else(listener: socket.socket, behaves: str) -> None:
    """Answer every visitor like a service that has nothing to do with us."""
    visitors = []
    while True:
        try:
            visitors.append(listener.accept()[0])
        except OSError:
            return
        if behaves == "speaks JSON":
            visitors[-1].sendall(b"[]\n")
        elif behaves == "hangs up":
            visitors.pop().close()


def test_an_early_try_that_nobody_takes_ends_with_the_proof() -> None:
    nodes, links, facts = open_links(2)
    with ExitStack() as undo:
        question = ask_for_port(links[0], Settings())
        undo.callback(question.close)
        wrong = EarlyReach("127.0.0.9", question.early.port, question.nonce)
        for rank, link in enumerate(links):
            wrong.ask(rank, link)
        proof = prove_addresses(links, nodes, facts, Settings(), type(question)(question.channel, "", wrong))
        if proof.hold is not None:
            undo.callback(proof.hold.close)
        assert not wrong._channels


class SayingLink(LocalLink):
    """A node whose way to the head is as it is told."""

    def __init__(self, node: Node, ways: Mapping[str, bool]) -> None:
        super().__init__(node)
        self.ways, self.asked = ways, list[Sequence[str]]()

    def call(self, program: str, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        del program, timeout_s
        self.asked.append(request["candidates"])
        return {"results": [self.way(address) for address in request["candidates"]]}

    def way(self, address: str) -> dict[str, Any]:
        found = {"address": address, "ok": self.ways.get(address, False)}
        return {**found, "local": "10.0.0.2"} if found["ok"] else {**found, "step": "timeout", "detail": "none"}


class Answered:
    """The channel of a program that has said its one word."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        self.header = header

    def read(self, timeout_s: float | None = None) -> Frame:
        del timeout_s
        return Frame(dict(self.header))

    def close(self) -> None:
        return


def test_an_early_answer_for_one_address_does_not_stand_for_the_others() -> None:
    link = SayingLink(Node(name="b", host="10.0.0.2"), {"10.0.0.1": True, "192.168.0.1": True})
    begun = Answered({"results": [link.way("203.0.113.7")]})
    request = {"port": 20001, "nonce": "n", "limit_s": 3.0}
    batch = ["203.0.113.7", "192.168.0.1"]
    tries = _ask_node(link, Facts(node_rank=1), batch, request, begun, is_head=False)  # type: ignore[arg-type]
    assert {address: one.ok for address, one in tries.items()} == {"203.0.113.7": False, "192.168.0.1": True}
    assert link.asked == [["192.168.0.1"]], "what is known is not asked again"


def find_free_port() -> int:
    """A port of those that the kernel picks from, which nobody has at this moment."""
    with socket.create_server((ADDRESS, 0)) as listener:
        return int(listener.getsockname()[1])


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
    assert range(hold.LOW, hold.HIGH) == foreseen.HEAD_PORTS

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
