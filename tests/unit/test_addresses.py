from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.checks.catalogue import run_checks
from orchestrator.facts import Address, Facts, Survey
from orchestrator.facts.reach import Attempt, ReachFacts
from orchestrator.kinds import CheckRule
from orchestrator.phases import preflight
from orchestrator.phases.addresses import Place, build_candidates, find_sources
from orchestrator.phases.preflight import Proof, _ask_probe, estimate_clock, probe_nodes, prove_addresses
from orchestrator.settings import Settings
from orchestrator.transport import Frame
from orchestrator.transport.local import LocalLink
from orchestrator.transport.porter import TELL_TIME
from orchestrator.values import Finding, Node

HEAD = Node(name="head", host="head.example")
FACTS = Facts(
    node_rank=0,
    boot_id="b",
    network_id="n",
    ssh_server_address="10.0.0.1",
    addresses=(
        Address(interface="lo", address="127.0.0.1"),
        Address(interface="docker0", address="172.17.0.1"),
        Address(interface="eth0", address="fd00::1"),
        Address(interface="eth0", address="fe80::1"),
        Address(interface="eth0", address="10.0.0.1"),
        Address(interface="usb0", address="169.254.1.1"),
        Address(interface="ib0", address="192.168.9.1"),
    ),
)


def candidates(facts: Facts = FACTS, *, one_machine: bool = False, **line: Any) -> tuple[str, ...]:
    return build_candidates(replace(HEAD, **line), facts, {}, one_machine=one_machine)


def test_the_address_that_ssh_came_to_is_first_and_decoys_are_left_out() -> None:
    assert candidates() == ("10.0.0.1", "192.168.9.1", "fd00::1", "169.254.1.1")


def test_a_numeric_host_is_next_also_behind_an_address_translation() -> None:
    assert candidates(host="203.0.113.7")[:2] == ("10.0.0.1", "203.0.113.7")


def test_an_address_of_the_list_leaves_no_choice() -> None:
    assert candidates(addr="10.9.9.9") == ("10.9.9.9",)
    head = replace(HEAD, addr="head-ib")
    assert build_candidates(head, FACTS, {"head-ib": ["192.168.9.1"]}, one_machine=False) == ("192.168.9.1",)


def test_an_interface_of_the_list_leaves_its_addresses() -> None:
    assert candidates(iface="ib0") == ("192.168.9.1",)
    assert candidates(iface="docker0") == ("172.17.0.1",)


def test_loopback_only_where_there_is_no_other_machine() -> None:
    assert candidates(replace(FACTS, ssh_server_address="127.0.0.2"))[0] != "127.0.0.2"
    assert candidates(one_machine=True)[-1] == "127.0.0.1"


def judge(*steps: str, **line: Any) -> list[Any]:
    nodes = [replace(HEAD, name=name, host=name, **(line if name == "a" else {})) for name in "abc"[: len(steps)]]
    attempts = tuple(
        (Attempt(address="10.0.0.1", ok=not step, local="10.0.0.2", interface="eth0", step=step, detail="d"),)
        for step in steps
    )
    return found_in(ReachFacts(port=29400, winner="" if any(steps) else "10.0.0.1", attempts=attempts), nodes)


def found_in(reach: ReachFacts, nodes: Sequence[Node]) -> list[Finding]:
    facts = [replace(FACTS, node_rank=rank) for rank in range(len(nodes))]
    settings = Settings(check=False)
    return [one for one in run_checks(nodes, facts, Survey(reach=reach), settings) if one.status != "skip"]


def judged(proof: Proof, *nodes: Node) -> list[Finding]:
    return found_in(proof.reach, nodes)


@pytest.mark.parametrize(
    ("step", "remedy"),
    [
        ("timeout", "ssh -t a 'sudo ufw allow 29400/tcp', then --master-port 29400"),
        ("no route", "ssh b 'ip route get 10.0.0.1'"),
        ("no such address", "correct addr= or iface= of b in the node list"),
        ("refused", "add addr=ADDRESS of a in the node list"),
        ("wrong answer", "add addr=ADDRESS of a in the node list"),
    ],
)
def test_each_step_names_the_node_the_address_and_what_to_do(step: str, remedy: str) -> None:
    _, head, other = judge("", step)
    assert (head.status, head.node_rank) == ("ok", 0)
    assert (other.status, other.node_rank) == ("fail", 1)
    assert f"does not reach a at 10.0.0.1 port 29400: {step}" in other.detail
    assert remedy in other.remedy


def test_a_head_without_any_address_is_told() -> None:
    _, finding = found_in(ReachFacts(port=29400, attempts=((),)), [HEAD])
    assert (finding.status, finding.node_rank) == ("fail", 0)
    assert "no address" in finding.detail


def prove(*nodes: Node, **values: Any) -> Proof:
    settings = Settings(**values)
    links = [LocalLink(node) for node in nodes]
    facts = [replace(FACTS, node_rank=rank, ssh_server_address="127.0.0.1") for rank in range(len(nodes))]
    return prove_addresses(links, nodes, facts, settings)


def node(name: str, **line: Any) -> Node:
    return Node(name=name, host=name, local=True, **line)


def test_the_port_is_held_while_the_store_of_the_run_may_take_it() -> None:
    proof = prove(node("a"), node("b"))
    assert (proof.master_addr, proof.places) == ("127.0.0.1", (Place("127.0.0.1", "lo"), Place("127.0.0.1", "lo")))
    assert proof.hold is not None
    with closing(proof.hold):
        socket.create_connection((proof.master_addr, proof.master_port), 2).close()
        proof.hold.ask_release()
        proof.hold.await_release()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((proof.master_addr, proof.master_port), 2)
        with socket.socket() as thief, pytest.raises(OSError, match="in use"):
            thief.bind(("127.0.0.1", proof.master_port))
        # torch's store binds with SO_REUSEADDR.
        with socket.socket() as store:
            store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            store.bind(("127.0.0.1", proof.master_port))
            store.listen()
            socket.create_connection((proof.master_addr, proof.master_port), 2).close()


def test_a_port_that_is_taken_names_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        proof = prove(node("a"), master_port=port)
    (finding,) = judged(proof, node("a"))
    assert (proof.hold, proof.master_addr, finding.check) == (None, "", "master-port")
    assert f"port {port} is taken by pid " in finding.detail
    assert f"pid {os.getpid()}" in finding.detail
    assert f"leave out --master-port {port}" in finding.remedy


def test_an_address_of_the_list_that_the_head_does_not_have() -> None:
    proof = prove(node("a", addr="127.9.9.9", iface="lo"), node("b", addr="10.255.1.1"))
    assert proof.hold is None
    (bad,) = [one for one in judged(proof, node("a", addr="127.9.9.9", iface="lo"), node("b")) if one.status == "fail"]
    assert bad.node_rank == 1
    assert "no such address" in bad.detail


def test_every_probed_link_learns_the_python_of_our_programs() -> None:
    link = LocalLink(node("a", python="/no/such/python"))
    (answer,) = probe_nodes([link], Settings())
    facts = answer.facts
    assert link.pythons == (facts.control_python,)
    assert facts.python == ""
    assert facts.clock_offset_s is not None
    assert abs(facts.clock_offset_s) <= (facts.clock_error_s or 0) + 0.001


@pytest.mark.parametrize(
    ("line", "candidate", "detail"),
    [
        ({"iface": "ib0"}, "fd00::9", "ib0 has no IPv6 address"),
        ({"iface": "nosuch"}, "10.0.0.9", "nosuch has no IPv4 address"),
        ({"addr": "10.0.0.5"}, "fd00::9", "10.0.0.5 is of the other family"),
    ],
)
def test_a_node_without_an_address_to_come_from_is_not_asked(line: dict[str, Any], candidate: str, detail: str) -> None:
    sources, broken = find_sources(node("b", **line), FACTS, [candidate])
    assert candidate in broken
    assert (broken[candidate].step, broken[candidate].detail) == ("no such address", detail)
    assert ("v6" if ":" in candidate else "v4") not in sources


def test_a_node_comes_from_the_address_or_the_interface_that_its_line_names() -> None:
    assert find_sources(node("b", iface="eth0"), FACTS, ["10.0.0.9"]) == ({"v6": "fd00::1", "v4": "10.0.0.1"}, {})
    assert find_sources(node("b", addr="10.1.1.1"), FACTS, ["10.0.0.9"]) == ({"v4": "10.1.1.1"}, {})
    assert find_sources(node("b"), FACTS, ["10.0.0.9", "fd00::9"]) == ({}, {})


def test_every_address_of_the_loopback_is_its_own() -> None:
    assert FACTS.interface_of("127.3.4.5") == "lo"
    assert FACTS.interface_of("10.0.0.1") == "eth0"
    assert FACTS.interface_of("10.0.0.2") == ""


def test_on_a_long_way_one_message_tells_the_clock() -> None:
    link = LocalLink(node("a"))
    link.round_trip_s = 0.05
    (answer,) = probe_nodes([link], Settings())
    offset_s, error_s = answer.clock
    # It took no half round trip in truth.
    assert error_s == 0.05
    assert abs(offset_s - 0.025) < 0.02
    assert estimate_clock(100.0, 98.0, 0.5) == (2.25, 0.5)


class LateChannel:
    """A probe whose answer is there before the question for the time is."""

    def __init__(self, *headers: dict[str, Any]) -> None:
        self.headers = list(headers)
        self.sent = 0

    def send(self, order: Any) -> None:
        assert order == TELL_TIME
        self.sent += 1

    def read(self, timeout_s: float | None = None) -> Frame | None:
        del timeout_s
        return Frame({"clock": time.time() + 5} | self.headers.pop(0)) if self.headers else None

    def close(self) -> None:
        pass


def test_a_clock_is_asked_for_as_often_as_it_is_to_be_known_well() -> None:
    for close_s, rounds in ((0.0, preflight.CLOCK_ROUNDS), (10.0, 1)):
        channel = LateChannel({}, {"facts": {}}, *[{}] * preflight.CLOCK_ROUNDS)
        _ask_probe(channel, LocalLink(node("a")), close_s)
        assert channel.sent == rounds
    strict = Settings(checks={"clock": CheckRule(thresholds={"warn_s": 0.02})})
    assert preflight.clock_needed_s(Settings(), for_run=False) == 0.1
    assert preflight.clock_needed_s(strict, for_run=False) == pytest.approx(0.002)
    assert preflight.clock_needed_s(strict, for_run=True) == preflight.CLOSE_S


@pytest.mark.parametrize("headers", [({"facts": {}}, {}), ({}, {"facts": {}})])
def test_an_answer_that_is_quicker_than_the_time_is_no_time(headers: tuple[dict[str, Any], ...]) -> None:
    channel = LateChannel(*headers)
    # One round is enough, however busy this machine is.
    answer, (offset_s, error_s) = _ask_probe(channel, LocalLink(node("a")), close_s=10.0)
    assert answer["facts"] == {}
    assert channel.sent == 1
    assert abs(offset_s - 5) <= error_s + 0.001
