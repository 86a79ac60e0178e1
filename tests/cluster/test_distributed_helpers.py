"""orchestrator.distributed between real ranks on one, two and three uneven nodes: what it gives, and what it says."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path

import pytest
from cluster import wait_for
from ranks import pick_port
from ranks_by_hand import start_ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

EVERYTHING = """
import json, os, sys
sys.modules["numpy"] = None  # a node may lack it
import torch
import orchestrator.distributed as d

with d.distributed(timeout=60) as me:
    world, rank = me.world_size, me.rank
    mine = torch.arange(4.0).reshape(2, 2).t() + rank  # not contiguous
    kept = mine.clone()
    total = sum(range(world))
    product = 1.0
    for other in range(world):
        product *= other + 3
    wanted = {"sum": 3 * world + total, "mean": 3 + total / world, "max": 2 + world, "min": 3, "product": product}
    for op, value in wanted.items():
        assert d.all_reduce(mine, op)[1, 1].item() == value, (op, d.all_reduce(mine, op))
    assert torch.equal(mine, kept)
    whole = torch.tensor([rank, 7])
    assert d.all_reduce(whole).tolist() == [total, 7 * world]
    first = torch.tensor([rank == 0, True])
    assert d.all_reduce(first).tolist() == [1, world]
    assert d.all_reduce(first, "max").tolist() == [True, True]
    assert d.all_reduce(first, "min").tolist() == [world == 1, True]
    for short in (torch.bfloat16, torch.float16):
        assert d.all_reduce(torch.full((3,), 40000.0, dtype=torch.float32).to(short), "mean").dtype == short
        assert d.all_reduce(torch.tensor([40000.0]).to(short), "mean").isfinite().all()
    assert [part.tolist() for part in d.all_gather(torch.tensor([rank, -rank]))] == [[r, -r] for r in range(world)]
    gathered = d.gather(torch.tensor(rank), dst=world - 1)
    assert (gathered is None) == (rank != world - 1)
    assert gathered is None or [one.item() for one in gathered] == list(range(world))
    assert d.broadcast(torch.tensor([rank]), src=world - 1).item() == world - 1
    for kind in (torch.int16, torch.bool, torch.bfloat16, torch.complex64):
        one = torch.tensor([[1, 0, rank]]).to(kind)
        assert [torch.equal(part, one) for part in d.all_gather(one)][rank] and d.broadcast(one).dtype == kind
    assert d.all_gather(torch.empty(0, 3))[-1].shape == (0, 3) and d.all_reduce(torch.tensor(2.0)).item() == 2 * world
    rows = torch.arange(float(2 * world)).reshape(2 * world, 1) * (rank + 1)
    share = d.reduce_scatter(rows)
    assert share.flatten().tolist() == [(2 * rank + k) * (total + world) for k in (0, 1)]
    assert d.reduce_scatter(rows, "mean").shape == (2, 1)
    assert d.all_gather_object({"rank": rank, "text": "x" * rank}) == [
        {"rank": r, "text": "x" * r} for r in range(world)
    ]
    assert d.gather_object(rank) == (list(range(world)) if rank == 0 else None)
    assert d.broadcast_object([rank, None], src=world - 1) == [world - 1, None]
    folder = os.environ["FOLDER"]
    with d.main_process_first():
        seen = os.listdir(folder)
        assert ("made" in seen) == (rank != 0), seen
        open(os.path.join(folder, "made"), "w").close()
    with d.node_main_first():
        mark = f"node_{me.node_rank}"
        assert (mark in os.listdir(folder)) == (me.local_rank != 0)
        open(os.path.join(folder, mark), "w").close()
    for _ in range(4):
        d.barrier()
    d.barrier(timeout=30)
    assert [d.stop_requested() for _ in range(3)] == [False] * 3
    loader = d.dataloader(list(range(23)), 2, seed=3)
    loader.set_epoch(1)
    batches = [batch.tolist() for batch in loader]
    loader.set_epoch(1)
    loader.set_start(1)
    assert [batch.tolist() for batch in loader] == batches[1:]
    loader.set_epoch(2)
    assert [batch.tolist() for batch in loader] != batches
    every = sum(d.all_gather_object([one for batch in batches for one in batch]), [])
    assert set(every) == set(range(23)) and len(every) == 23 + -23 % world
    assert d.is_main_process() == d.is_master_process() == (rank == 0)
    assert d.is_node_main() == (me.local_rank == 0)
    assert d.is_master_node() == (me.node_rank == 0)
    assert d.all_reduce_tensor(torch.ones(1)).item() == world
    assert len(d.gather_tensors(torch.ones(1))) == (world if rank == 0 else 0)
    assert d.setup() is me or d.setup() == me
    told = d.get_node_info()
    assert told == {k: getattr(me, k) for k in ("node_rank", "local_rank", "local_world_size", "world_size", "rank")}
    print(json.dumps([me.rank, me.node_rank, me.local_rank, me.local_world_size, me.node_count, len(me.hostnames)]))
"""


@pytest.mark.parametrize("nodes", [(1,), (1, 1), (2, 1, 1)], ids=lambda nodes: "+".join(map(str, nodes)))
def test_every_helper_on_nodes_of_unequal_size(nodes: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    ended = start_ranks(tmp_path / "run", nodes, EVERYTHING, FOLDER=str(tmp_path / "folder")).wait()
    assert [one.code for one in ended] == [0] * sum(nodes), [one.err for one in ended]
    places = [(node, local) for node, count in enumerate(nodes) for local in range(count)]
    assert [json.loads(one.out) for one in ended] == [
        [rank, node, local, nodes[node], len(nodes), len(nodes)] for rank, (node, local) in enumerate(places)
    ]


MISUSE = """
import os, time, torch
import orchestrator.distributed as d

def tell(call):
    begin = time.monotonic()
    try:
        print(call(), flush=True)
    except d.DistributedError as error:
        print(error, flush=True)
    assert time.monotonic() - begin < 20, "that was the group's timeout"

with d.distributed(timeout=60) as me:
    tell(lambda: d.all_gather(torch.ones(2 + me.rank)))
    tell(lambda: d.all_reduce(torch.ones(2), "max") if me.rank else d.gather(torch.ones(2)))
    tell(lambda: d.all_gather_object(me.rank or (lambda: 0)))
    tell(lambda: d.gather_object(me.rank or (lambda: 0), dst=1))
    tell(lambda: d.broadcast_object(lambda: 0))
    os.environ["AORTA_DISTRIBUTED_DEBUG"] = "1"
    d.all_reduce(torch.ones(2))
    tell(lambda: d.all_gather(torch.ones(2 + me.rank)))
    if me.rank == 0:
        d.gather(torch.ones(3))
    time.sleep(60)
"""


def test_calls_that_do_not_fit_together_are_told(tmp_path: Path) -> None:
    ranks = start_ranks(tmp_path, (1, 1), MISUSE, AORTA_DISTRIBUTED_DEBUG_TIMEOUT_S="2")
    assert ranks.processes[0].wait(60) == 1, ranks.text(0, "err")
    ranks.processes[1].kill()
    ended = ranks.wait()
    for rank, one in enumerate(ended):
        uneven, other, *objects, debugged = one.out.splitlines()
        for told in (uneven, debugged):
            assert f"rank {rank} calls all_gather(float32[{2 + rank}]) at script.py" in told
            assert "tensors of one shape" in told
        assert "gather(float32[2], dst=0) at script.py:15" in other
        assert "all_reduce(float32[2], max) at script.py:15" in other
        assert len(objects) == 3
        assert all(told.startswith("rank 0 gave an object that cannot be sent") for told in objects)
    told = ended[0].err.splitlines()[-1]
    assert "rank 0 called gather(float32[3], dst=0) at script.py:23 and waited 2 s: rank 1 did not come" in told
    assert "its last was all_gather(float32[3]) at script.py:21" in told
    assert "every rank has to call it" in told
    message = json.loads((tmp_path / "error_0.json").read_text())["message"]["message"]
    assert message.startswith("DistributedError: rank 0 called gather(")


LATE = """
import sys, time, torch
import orchestrator.distributed as d

with d.distributed(timeout=40) as me:
    if me.rank == 1:
        time.sleep(4)
        sys.exit(0)
    try:
        d.barrier(timeout=1)
    except d.DistributedError as error:
        print(error, flush=True)
    try:
        with d.main_process_first():
            if me.rank == 0:
                raise ValueError("no disk")
    except (ValueError, d.DistributedError) as error:
        print(error, flush=True)
    print(time.time(), flush=True)
    raise KeyError("the end")
"""


def test_a_barrier_names_who_did_not_come_and_a_failed_first_is_told(tmp_path: Path) -> None:
    ended = start_ranks(tmp_path, (1, 1, 1), LATE).wait()
    failed = min(float(ended[rank].out.splitlines()[-1]) for rank in (0, 2))
    assert time.time() - failed < 30, "an exit waited for somebody"
    assert [one.code for one in ended] == [1, 1, 1]
    for rank in (0, 2):
        barrier, first, _ = ended[rank].out.splitlines()
        assert f"rank 1 on {socket.gethostname()} did not come within 1 s" in barrier
        assert "no disk" in first
        error = json.loads((tmp_path / f"error_{rank}.json").read_text())
        assert error["message"]["message"] == "KeyError: 'the end'"
    assert "rank 0 went first at script.py:14 and failed: ValueError: no disk" in ended[2].out
    # It came when the others had given up: alone it does not pass.
    assert "lost the ranks' store" in ended[1].err or "gave up" in ended[1].err
    assert "DistributedError" in (tmp_path / "error_1.json").read_text(), "sys.exit(0), then an end that failed"


STOPPED = """
import multiprocessing, os, time, torch
import orchestrator.distributed as d

with d.distributed(timeout=60) as me:
    for step in range(100000):
        if d.stop_requested():
            break
        if step == 20:
            print("going", flush=True)
            # It ends with its parent, which sends it TERM: the handler of a rank must not be its own.
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,), daemon=True).start()
        time.sleep(0.002 * me.rank)
    print(step, flush=True)
"""


def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path: Path) -> None:
    ranks = start_ranks(tmp_path, (2, 1), STOPPED)
    wait_for(lambda: all("going" in ranks.text(rank) for rank in range(3)), 60, "all ranks go")
    ranks.processes[2].send_signal(signal.SIGTERM)
    ended = ranks.wait(30)
    assert [one.code for one in ended] == [0, 0, 0], [one.err for one in ended]
    assert len({one.out.splitlines()[-1] for one in ended}) == 1


STUCK = """
import atexit, os, threading, time, torch
import orchestrator.distributed as d
import orchestrator.distributed.exits as exits

exits.LIMIT_S = 2.0
atexit.register(time.sleep, 100)  # as a library does that waits for a peer
threading.Thread(target=time.sleep, args=(100,)).start()  # Python waits for it before all else
with d.distributed(timeout=60) as me:
    raise RuntimeError("broken")
"""


def test_an_exit_that_would_hang_ends_by_force(tmp_path: Path) -> None:
    ranks = start_ranks(tmp_path, (1,), STUCK)
    (ended,) = ranks.wait(60)
    assert ended.code == 1
    assert "RuntimeError: broken" in ended.err
    assert "Timeout (0:00:02)!" in ended.err


SLOW = """
import atexit, time
atexit.register(print, "flushed", flush=True)
atexit.register(time.sleep, 3)  # an upload, a flush to a slow disk
import orchestrator.distributed as d
import orchestrator.distributed.exits as exits

exits.LIMIT_S = 1.0
with d.distributed(timeout=60):
    d.barrier()
"""


def test_an_end_after_a_good_run_takes_the_time_that_it_takes(tmp_path: Path) -> None:
    (ended,) = start_ranks(tmp_path, (1,), SLOW).wait(60)
    assert (ended.code, ended.out) == (0, "flushed\n"), ended.err


AGAIN = """
import os, time, torch, torch.distributed
import orchestrator.distributed as d

torch.distributed.init_process_group("gloo")
assert d.is_main_process() == (torch.distributed.get_rank() == 0)
me = d.setup()  # takes it over
assert d.all_reduce(torch.ones(1)).item() == 2
print(me.node_rank, me.local_world_size, me.node_count, me.hostnames == (me.host, me.host))
d.cleanup()
assert not torch.distributed.is_initialized()
try:
    d.barrier()
except d.DistributedError as error:
    print(error)
for turn in range(3):
    os.environ.pop("LOCAL_RANK", None)
    me = d.setup(timeout=30)
    begin = time.monotonic()
    if me.rank == 1:
        time.sleep(1)
    with d.main_process_first():
        pass
    d.barrier()  # keys of an earlier group must not open it
    assert time.monotonic() - begin > 0.8
    assert d.all_gather_object((turn, d.stop_requested())) == [(turn, False)] * 2
    if turn == 0:
        torch.distributed.destroy_process_group()  # as people do who do not know cleanup
    else:
        d.cleanup()
print(me.local_rank)
"""


def test_groups_may_follow_each_other_also_those_that_the_script_made_itself(tmp_path: Path) -> None:
    port = pick_port()
    # As an agent holds it, longer than any group.
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    names = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0", "MASTER_PORT": str(port)}
    ended = start_ranks(tmp_path, (1, 1), AGAIN, **names).wait()
    del store
    assert [one.code for one in ended] == [0, 0], [one.err for one in ended]
    assert [one.out.splitlines()[0] for one in ended] == ["0 1 2 True", "1 1 2 True"]
    for one in ended:
        assert one.out.splitlines()[1] == (
            "there is no group yet, or no longer: call setup() first, or use distributed()"
        )
        assert one.out.splitlines()[2] == "0", "alone on its node, it needs no LOCAL_RANK to be the first"
