"""The porter: one program that stays on a node and forks the others, and what travels to it."""

from __future__ import annotations

import errno
import marshal
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import NodeError
from orchestrator.node import asked, boot
from orchestrator.node import porter as node_porter
from orchestrator.transport import Channel, cargo, program
from orchestrator.transport.answers import read_frame
from orchestrator.transport.frames import FrameReader
from orchestrator.transport.local import LocalChannel
from orchestrator.transport.porter import PROGRAM, TELL_TIME, Porter, Programs
from orchestrator.values import Node

HERE = Node(host="here", name="here", where="test", local=True)


class Started:
    """Starts programs here, and counts them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.channels: list[LocalChannel] = []

    def __call__(self, name: str, request: Any) -> LocalChannel:
        self.names.append(name)
        self.channels.append(LocalChannel(HERE, name, request, (sys.executable,)))
        return self.channels[-1]


@pytest.fixture
def started() -> Started:
    return Started()


@pytest.fixture
def programs(started: Started) -> Iterator[Programs]:
    one = Programs("here", started)
    yield one
    one.close()
    for channel in started.channels:
        channel.close()


def echo(channel: Channel) -> Any:
    """What the echo says of the next order; of its request it says something first."""
    while (frame := channel.read(5)) is not None:
        if "request" not in frame.header:
            return frame.header["order"]
    return None


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_childless(pid: int) -> None:
    """Wait until all its programs are gone, zombies included."""
    until = time.monotonic() + 5
    while children_of(pid):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_programs_take_turns_in_one_python(programs: Programs, started: Started) -> None:
    first, second = programs.open("echo", {}), programs.open("echo", {})
    for number in range(3):
        second.send({"number": number, "to": "second"})
        first.send({"number": number, "to": "first"})
    for number in range(3):
        for channel, name in ((first, "first"), (second, "second")):
            assert echo(channel) == {"number": number, "to": name}
    assert started.names == [PROGRAM]
    first.close()
    second.close()


def test_a_program_whose_channel_is_closed_ends_and_is_nobodys_zombie(programs: Programs, started: Started) -> None:
    channel = programs.open("echo", {})
    channel.send({"a": 1})
    assert echo(channel) == {"a": 1}
    channel.close()
    wait_childless(started.channels[0]._process.pid)
    assert channel.read(1) is None


def test_a_program_that_is_killed_has_ended_and_the_others_go_on(programs: Programs, started: Started) -> None:
    one, other = programs.open("echo", {}), programs.open("echo", {})
    one.send({"a": 1})
    assert echo(one) == {"a": 1}
    os.kill(children_of(started.channels[0]._process.pid)[0], signal.SIGKILL)
    assert one.read(5) is None
    other.send({"b": 2})
    assert echo(other) == {"b": 2}


def test_a_porter_that_is_killed_ends_its_programs_and_the_next_one_is_new(
    programs: Programs, started: Started
) -> None:
    channel = programs.open("echo", {})
    channel.send({"a": 1})
    assert echo(channel) == {"a": 1}
    os.kill(started.channels[0]._process.pid, signal.SIGKILL)
    assert channel.read(5) is None
    again = programs.open("echo", {})
    again.send({"b": 2})
    assert echo(again) == {"b": 2}
    assert started.names == [PROGRAM, PROGRAM]


def test_threads_wait_for_their_own_programs(programs: Programs) -> None:
    heard: dict[int, list[int]] = {}

    def work(name: int) -> None:
        channel = programs.open("echo", {})
        heard[name] = []
        for number in range(20):
            channel.send({"number": number + 1000 * name})
            heard[name].append(echo(channel)["number"])
        channel.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == {name: [number + 1000 * name for number in range(20)] for name in range(6)}


def test_waiting_has_an_end(programs: Programs) -> None:
    channel = programs.open("echo", {})
    assert channel.read(5) is not None
    with pytest.raises(TimeoutError):
        channel.read(0.2)


def test_a_program_that_does_not_exist_is_told(programs: Programs) -> None:
    channel = programs.open("nothing_of_the_kind", {})
    frame = channel.read(5)
    assert frame is not None
    assert "nothing_of_the_kind" in frame.header["error"]
    assert channel.read(5) is None


def test_a_node_that_starts_no_further_process_says_so(programs: Programs, started: Started) -> None:
    first = programs.open("echo", {})
    assert first.read(5) is not None
    pid = started.channels[0]._process.pid
    # Root is bound by no limit of processes, so every fork fails for another reason: no memory may be had.
    resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    second = programs.open("echo", {})
    with pytest.raises(NodeError):
        read_frame(second, "here", 5)
    assert second.read(5) is None


def test_what_becomes_of_the_porter_has_the_channel_alone(started: Started) -> None:
    porter = Porter(started(PROGRAM, {}), "here")
    first = porter.open("echo", {})
    first.send({"a": 1})
    assert echo(first) == {"a": 1}
    first.close()
    wait_childless(started.channels[0]._process.pid)
    channel = porter.become("echo", {})
    channel.send({"b": 2})
    assert echo(channel) == {"b": 2}
    assert children_of(started.channels[0]._process.pid) == []


def test_the_end_of_an_earlier_program_is_no_word_of_what_the_porter_became(started: Started) -> None:
    porter = Porter(started(PROGRAM, {}), "here")
    first = porter.open("echo", {})
    first.send({"a": 1})
    assert echo(first) == {"a": 1}
    (child,) = children_of(started.channels[0]._process.pid)
    os.kill(child, signal.SIGKILL)
    wait_childless(started.channels[0]._process.pid)
    # Its end is on the way, and nobody has read it.
    first.close()
    channel = porter.become("echo", {})
    channel.send({"b": 2})
    assert echo(channel) == {"b": 2}


def test_an_order_that_comes_with_the_sources_is_not_left_lying(
    monkeypatch: pytest.MonkeyPatch, started: Started
) -> None:
    monkeypatch.setattr(program, "MAGIC", b"\0\0\r\n")
    channel = started("hold", {"port": 0, "names": [], "nonce": "n"})
    channel.send({"op": "release"})
    assert read_frame(channel, "here", 10).header["port"]
    assert read_frame(channel, "here", 10).header == {"released": True}


def test_another_python_gets_sources(monkeypatch: pytest.MonkeyPatch, programs: Programs, started: Started) -> None:
    monkeypatch.setattr(program, "MAGIC", b"\0\0\r\n")
    asked_for: list[int] = []

    def ask() -> bytes:
        asked_for.append(1)
        return program.source_bytes()

    monkeypatch.setattr("orchestrator.transport.local.source_bytes", ask)
    channel = programs.open("echo", {})
    channel.send({"a": 1})
    assert echo(channel) == {"a": 1}
    other = programs.open("runs", {})
    assert other.read(10) is not None
    assert asked_for == [1]
    assert started.names == [PROGRAM]


def test_everything_that_is_loaded_by_name_is_sent() -> None:
    for name in ("pump", "start"):
        assert set(asked.QUESTIONS) <= cargo.list_needed(name)
    assert {"serve", "supervisor", "boot", "rank_hook_site"} <= cargo.list_needed("start")
    assert {name.removeprefix(cargo.PACKAGE) for name in cargo.list_supervisors()} <= cargo.list_needed("start")


def test_no_place_of_this_machine_travels_with_the_code() -> None:
    for name in sorted(cargo.read_texts()):
        if name != "__init__":
            assert str(Path.cwd()).encode() not in cargo.read_code(name)
            assert os.fsencode(Path(cargo.__file__).parents[2]) not in cargo.read_code(name)


def test_modules_that_were_sent_are_not_sent_again() -> None:
    sent = cargo.list_needed("probe")
    more = boot.unpack_modules(cargo.pack_modules("reach", sent))
    assert {name.removeprefix(cargo.PACKAGE) for name in more} == cargo.list_needed("reach") - sent


def test_code_is_what_the_source_says() -> None:
    names: dict[str, Any] = {"__name__": "clock"}
    exec(marshal.loads(cargo.read_code("clock")), names)
    assert callable(names["now"])


def test_what_has_a_channel_alone_does_not_wait_for_the_porter(started: Started) -> None:
    let_come, coming = threading.Event(), threading.Event()

    def start(name: str, request: Any) -> LocalChannel:
        if name == PROGRAM:
            coming.set()
            assert let_come.wait(20)
        return started(name, request)

    one = Programs("here", start)
    preparing = threading.Thread(target=one.prepare)
    preparing.start()
    try:
        assert coming.wait(20)
        with closing(one.open("hold", {"port": None, "nonce": "n", "names": []})) as channel:
            assert read_frame(channel, "here", 20).header["port"]
            assert started.names == ["hold"]
            assert preparing.is_alive()
    finally:
        let_come.set()
        preparing.join(20)
        one.close()
        for other in started.channels:
            other.close()


def test_what_only_tries_a_way_takes_no_process_of_its_own(programs: Programs, started: Started) -> None:
    silent = programs.open("echo", {})
    silent.send({"a": 1})
    assert echo(silent) == {"a": 1}
    porter = started.channels[0]._process.pid
    before = children_of(porter)
    with socket.create_server(("127.0.0.1", 0)) as server:
        request = {"candidates": ["127.0.0.1"], "port": server.getsockname()[1], "nonce": "n", "limit_s": 5}
        channels = [programs.open("reach", request) for _ in range(3)]
        # It waits for our greeting, and keeps nobody waiting for that.
        visitors = [server.accept()[0] for _ in channels]
        silent.send({"b": 2})
        assert echo(silent) == {"b": 2}
        assert children_of(porter) == before
        channels.pop().close()
        for visitor in visitors:
            with visitor:
                visitor.sendall(b"AORTA n\n")
        for channel in channels:
            (result,) = read_frame(channel, "here", 5).header["results"]
            assert (result["ok"], result["local"]) == (True, "127.0.0.1")
            assert channel.read(5) is None
    silent.send({"c": 3})
    assert echo(silent) == {"c": 3}


def test_the_porter_tells_the_time_beside_what_a_program_says(programs: Programs, started: Started) -> None:
    busy, other = programs.open("echo", {}), programs.open("echo", {})
    assert busy.read(5) is not None
    before = time.time()
    busy.send(TELL_TIME)
    told = busy.read(5)
    assert told is not None
    assert list(told.header) == ["clock"]
    assert before <= told.header["clock"] <= time.time()
    busy.send({"a": 1})
    assert echo(busy) == {"a": 1}
    # Also when the program has ended; then it is over.
    assert other.read(5) is not None
    os.kill(children_of(started.channels[0]._process.pid)[1], signal.SIGKILL)
    assert other.read(5) is None
    other.send(TELL_TIME)
    told = other.read(5)
    assert told is not None
    assert list(told.header) == ["clock"]
    assert other.read(5) is None
    busy.send(TELL_TIME)
    busy.close()
    assert busy.read(5) is None


def test_a_fork_that_fails_is_told_in_the_place_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[dict[str, Any], bytes]] = []

    class FakeWire:
        early = b""

        def send(self, header: dict[str, Any], body: bytes = b"") -> None:
            sent.append((header, body))

    def fail() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fail)
    before = len(list(Path("/proc/self/fd").iterdir()))
    node_porter.Porter(FakeWire(), {}).open({"c": 7, "nonce": "n", "program": "echo"})  # type: ignore[arg-type]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    (number, said), (_, _) = sent
    assert (number, sent[1][0]) == ({"c": 7}, {"c": 7, "end": True})
    frames = FrameReader("n", "here")
    frames.feed(said)
    frame = frames.next()
    assert frame is not None
    assert frame.header["error"] == "no further process can be started here: Resource temporarily unavailable"
    assert "ulimit -u" in frame.header["remedy"]
