from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import NodeListError, UsageError
from orchestrator.nodelist import parse_node_list, read_node_list, select_nodes
from orchestrator.noderanges import expand_range, fold_names, split_names

if TYPE_CHECKING:
    from orchestrator.values import Node

EXAMPLE = Path(__file__).parents[2] / "node_ip_list.txt.example"


def names(text: str) -> list[str]:
    return [node.name for node in parse_node_list(text, "list")]


def one(line: str) -> Node:
    (node,) = parse_node_list(line, "list")
    return node


def test_order_is_node_rank_and_noise_is_skipped() -> None:
    text = "\ufeff# ours\r\n\r\n10.0.0.2\t# head\r\n  10.0.0.1\r\n#10.0.0.3\r\nnode-7.rack"
    assert names(text) == ["10.0.0.2", "10.0.0.1", "node-7.rack"]
    assert [node.where for node in parse_node_list(text, "f.txt")] == ["f.txt:3", "f.txt:4", "f.txt:6"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("me@10.0.0.1:2222", ("me", "10.0.0.1", 2222)),
        ("[::1]:22", (None, "::1", 22)),
        ("[fd00::1]", (None, "fd00::1", None)),
        ("fd00::1", (None, "fd00::1", None)),
        ("me@[fe80::1%eth0]:22", ("me", "fe80::1%eth0", 22)),
        ("me@corp.org@gate", ("me@corp.org", "gate", None)),
        ("host user=you port=23", ("you", "host", 23)),
    ],
)
def test_addresses(line: str, expected: tuple[str | None, str, int | None]) -> None:
    node = one(line)
    assert (node.user, node.host, node.port) == expected


def test_every_key() -> None:
    node = one(
        'h key=~/.ssh/k jump=a@b:3 addr=10.1.0.1 iface=ib0 slots=4 gpus=0,2-3 python=/v/bin/python local=no env.X="a b#c" '
        "env.Y= # end"
    )
    assert (node.key, node.jump, node.addr, node.iface) == ("~/.ssh/k", "a@b:3", "10.1.0.1", "ib0")
    assert (node.slots, node.gpus, node.python, node.local) == (4, ("0", "2", "3"), "/v/bin/python", False)
    assert node.env == (("X", "a b#c"), ("Y", ""))


def test_gpu_uuids_and_quotes() -> None:
    node = one('h gpus=GPU-5f2a1c3d-0001,MIG-aaaa1111 env.Q=\'$(x) "y"\' env.B="\\"\\\\"')
    assert node.gpus == ("GPU-5f2a1c3d-0001", "MIG-aaaa1111")
    assert dict(node.env) == {"Q": '$(x) "y"', "B": '"\\'}


def test_deepspeed_and_mpi_files_read_as_they_are() -> None:
    nodes = parse_node_list(
        "worker-1 slots=8\nworker-2 slots=4 max_slots=8\nworker-3 slots=2 max-slots=2\n", "hostfile"
    )
    assert [(node.name, node.slots) for node in nodes] == [("worker-1", 8), ("worker-2", 4), ("worker-3", 2)]


def test_ranges_give_every_node_the_words_of_the_line() -> None:
    nodes = parse_node_list("me@node[08-10].rack:2200 slots=2\nn[1,3-5]\n", "list")
    assert [node.name for node in nodes] == [f"node{n}.rack" for n in ("08", "09", "10")] + ["n1", "n3", "n4", "n5"]
    assert {(node.user, node.port, node.slots) for node in nodes[:3]} == {("me", 2200, 2)}
    assert names("rack[1-2]n[1-2]") == ["rack1n1", "rack1n2", "rack2n1", "rack2n2"]


def test_one_host_with_several_ports_is_named_apart() -> None:
    assert names("127.0.0.1:2201\n127.0.0.1:2202\nother\n::1\n[::1]:23") == [
        "127.0.0.1:2201",
        "127.0.0.1:2202",
        "other",
        "[::1]:22",
        "[::1]:23",
    ]


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "list", "no node"),
        ("# only\n\n", "list", "no node"),
        ("a\nb\na", "list:3", "here and in line 1"),
        ("a\nA:22", "list:2", "here and in line 1"),
        ("::1\n[0:0::1]:22", "list:2", "here and in line 1"),
        ("n[1,1]", "list:1", "twice in this line"),
        ("a\nb slot=3", "list:2", "did you mean slots"),
        ("a envX=1", "list:1", "unknown key envX"),
        ("a b", "list:1", "'b' is not key=value"),
        ("a,b", "list:1", "several nodes in one line"),
        ("a slots=1 slots=2", "list:1", "slots is given twice"),
        ("a:0", "list:1", "'0' is no port"),
        ("a:65536", "list:1", "is no port"),
        ("a:", "list:1", "'' is no port"),
        ("a:22 port=22", "list:1", "the port stands in"),
        ("me@a user=you", "list:1", "the user stands in"),
        ("@a", "list:1", "no user before"),
        ("me@", "list:1", "no host"),
        ("a slots=0", "list:1", "number of slots"),
        ("a slots=eight", "list:1", "number of slots"),
        ("a addr=head", "list:1", "not a numeric address"),
        ("n[1-2] addr=10.0.0.1", "list:1", "the range names several"),
        ("a gpus=", "list:1", "no list of GPUs"),
        ("a gpus=0,x", "list:1", "no list of GPUs"),
        ("a gpus=3-1", "list:1", "no list of GPUs"),
        ("a gpus=0,0", "list:1", "names one GPU twice"),
        ("a python=bin/python", "list:1", "not an absolute path"),
        ("a local=maybe", "list:1", "neither yes nor no"),
        ("a key=", "list:1", "no usable value"),
        ("a jump=-oProxyCommand=x", "list:1", "no usable value"),
        ("a iface=eth0/1", "list:1", "no interface"),
        ("a env.1X=1", "list:1", "cannot name a variable"),
        ('a env.X="1', "list:1", "quote without its partner"),
        ("10.0.0.256", "list:1", "not an IPv4 address"),
        ("10.0.0", "list:1", "not an IPv4 address"),
        ("::zz", "list:1", "neither host:port nor an IPv6"),
        ("-oProxyCommand=x", "list:1", "not a host name"),
        ("a$(b)", "list:1", "not a host name"),
        ("n[1-", "list:1", "bracket without its partner"),
        ("n[a-b]", "list:1", "is no range"),
        ("n[5-1]", "list:1", "runs backwards"),
        ("n[1-99999]", "list:1", "more than 4096"),
        ("n[1-99][1-99]", "list:1", "more than 4096"),
    ],
)
def test_bad_lines_say_where_what_and_what_to_do(text: str, place: str, words: str) -> None:
    with pytest.raises(NodeListError) as caught:
        parse_node_list(text, "list")
    assert caught.value.where == place
    assert words in caught.value.what
    assert caught.value.remedy
    assert caught.value.exit_code == 2


def test_files_that_are_no_list(tmp_path: Path) -> None:
    with pytest.raises(NodeListError, match="no such file") as caught:
        read_node_list(tmp_path / "nodes.txt")
    assert "node_ip_list.txt.example" in caught.value.remedy
    with pytest.raises(NodeListError, match="a folder"):
        read_node_list(tmp_path)
    junk = tmp_path / "junk"
    for content, words in ((b"a\n\xff\xfe\x00", "not UTF-8"), (b"a\n\0b", "binary")):
        junk.write_bytes(content)
        with pytest.raises(NodeListError, match=words) as caught:
            read_node_list(junk)
        assert caught.value.where == f"{junk}:2"


def test_the_example_and_each_line_it_explains_are_good() -> None:
    assert [node.name for node in read_node_list(EXAMPLE)] == ["10.0.0.11", "10.0.0.12"]
    shown = [line[4:].split("  ")[0] for line in EXAMPLE.read_text().splitlines() if line.startswith("#   ")]
    assert len(shown) >= 7
    for line in shown:
        parse_node_list(line, "example")


NODES = parse_node_list("n01\nn02\nn03\nn04\nbig:22\nbig:23", "list")


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        ((), (), "n01 n02 n03 n04 big:22 big:23"),
        (("n[03-04]", "n01"), (), "n01 n03 n04"),
        (("0", "2-3"), (), "n01 n03 n04"),
        ((), ("big",), "n01 n02 n03 n04"),
        (("0-4",), ("n[02-03]", "big:22"), "n01 n04"),
    ],
)
def test_select_nodes(include: tuple[str, ...], exclude: tuple[str, ...], expected: str) -> None:
    assert " ".join(node.name for node in select_nodes(NODES, include, exclude)) == expected


@pytest.mark.parametrize(
    ("include", "exclude", "words"),
    [
        (("n1",), (), "no node n1 in the list, did you mean n01"),
        (("7",), (), "no node rank 7"),
        (("3-2",), (), "no node rank 3-2"),
        (("n[1",), (), "bracket"),
        ((), ("0-5",), "none of the 6 nodes"),
    ],
)
def test_select_nodes_refuses(include: tuple[str, ...], exclude: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        select_nodes(NODES, include, exclude)
    assert words in caught.value.what


@settings(max_examples=50)
@given(
    st.from_regex(r"[a-z]{1,4}-?", fullmatch=True),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 4)), min_size=1, max_size=12),
    st.sampled_from(["", ".rack", "-ib.lan"]),
)
def test_folded_names_expand_to_themselves(prefix: str, numbers: list[tuple[int, int]], suffix: str) -> None:
    given_names = {f"{prefix}{number:0{width}d}{suffix}" for number, width in numbers}
    folded = fold_names(tuple(sorted(given_names)))
    back = [name for part in split_names(folded) for name in expand_range(part)]
    assert set(back) == given_names
    assert len(back) == len(given_names)


def test_fold_leaves_addresses_alone() -> None:
    assert (
        fold_names(("10.0.0.1", "10.0.0.2", "n1", "n2", "fd00::1", "h:22")) == "10.0.0.1,10.0.0.2,n[1-2],fd00::1,h:22"
    )
