from __future__ import annotations

from dataclasses import replace

from test_stacks import frames_of

from orchestrator.diagnosis.hang.odd import find_odd
from orchestrator.diagnosis.hang.ras import parse_ras
from orchestrator.diagnosis.hang.stacks import Stack

TWO = """\
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         1         2         2   RUNNING  MISMATCH

Warnings
========

#0-0 (df12d8114f34a169) MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 7 -- GPU 0 managed by process 4487 on node 10.78.9.1
  Rank 1 has launched up to operation 3 -- GPU 0 (NVML 1) managed by process 4486 on node 10.78.9.2
"""
MANY = """\
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 3 -- GPU 0 managed by process 483 on node 172.16.64.210
  Rank 9 -- GPU 2 managed by process 484 on node 172.16.64.211
#1-0 (11) MISMATCH
  Communicator ranks have different Broadcast operation counts
  3 ranks have launched up to operation 2
  Rank 2 has not launched any operations -- GPU 5 managed by process 99 on node n
"""


def test_the_rank_that_has_launched_less_is_named() -> None:
    (behind,) = parse_ras(TWO)
    assert (behind.rank, behind.operation, behind.launched, behind.most) == (1, "AllReduce", 3, 7)
    assert (behind.pid, behind.node, behind.others) == (4486, "10.78.9.2", 1)


def test_several_and_several_communicators() -> None:
    assert [(one.rank, one.launched, one.most, one.others) for one in parse_ras(MANY)] == [
        (3, 6649, 6650, 26),
        (9, 6649, 6650, 26),
        (2, 0, 2, 3),
    ]
    assert parse_ras("") == ()
    assert parse_ras("RAS is not there") == ()


def test_it_counts_where_nothing_else_tells() -> None:
    stacks = [Stack(rank=rank, node_rank=rank, frames=frames_of("synchronize torch/cuda/__init__.py:1", "main train.py:9")) for rank in (0, 1)]  # fmt: skip
    odd = find_odd(stacks, [], parse_ras(TWO))
    assert odd is not None
    assert (odd.family, odd.ranks) == ("HANG", ()), "it waits as well: whoever asks for no result is ahead of it"
    assert odd.cause == (
        "all 2 ranks wait in cuda synchronize (train.py:9);"
        " 1 other rank has launched AllReduce up to number 7, rank 1 up to 3"
    )
    blind = [stacks[0], Stack(rank=1, node_rank=1, state="S", wchan="futex_do_wait")]
    odd = find_odd(blind, [], parse_ras(TWO))
    assert odd is not None
    assert (odd.ranks, odd.rule, odd.confidence) == ((1,), "NCCL RAS", "likely")
    odd = find_odd(blind, [], parse_ras(TWO.replace("operation 3", "operation 6")))
    assert odd is not None
    assert (odd.ranks, odd.confidence) == ((1,), "unknown"), "one launch is nothing"
    asleep = replace(stacks[1], frames=frames_of("fetch data.py:8", "main train.py:7"))
    odd = find_odd([stacks[0], asleep], [], parse_ras(TWO))
    assert odd is not None
    assert odd.rule == "stacks"
