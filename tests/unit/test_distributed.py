from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

import orchestrator.distributed as lib  # noqa: E402 - needs torch
from orchestrator.distributed import stop  # noqa: E402
from orchestrator.distributed.backends import TIMEOUT, read_timeout  # noqa: E402
from orchestrator.distributed.place import Start, Word, build_info, check_backends, number_nodes  # noqa: E402
from orchestrator.distributed.turns import turn  # noqa: E402

WHOLE = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variables of a rank, no group before or after, the signals as they were."""
    for name in (*WHOLE, "GROUP_RANK", "GROUP_WORLD_SIZE", "AORTA_NODE_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("orchestrator.distributed.exits._watched", True)
    before = {number: signal.getsignal(number) for number in stop.SIGNALS}
    yield
    lib.cleanup()
    stop._before.clear()
    stop._heard_s.clear()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_process_that_is_no_rank_is_told_how_to_become_one() -> None:
    with pytest.raises(lib.DistributedError, match=r"RANK, WORLD_SIZE.*torchrun.*single_process=True"):
        lib.setup()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"MASTER_ADDR": "", "WORLD_SIZE": ""}, "WORLD_SIZE, MASTER_ADDR are not set"),
        ({"RANK": "one"}, "RANK is 'one', not a number"),
        ({"MASTER_PORT": "-1"}, "MASTER_PORT is '-1', not a number"),
        ({"RANK": "2"}, "RANK is 2 and WORLD_SIZE 2"),
    ],
)
def test_wrong_variables_are_named(changes: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (WHOLE | changes).items():
        monkeypatch.setenv(name, value)
    # Asked for or not: what was started as a rank is never silently a world of one.
    with pytest.raises(lib.DistributedError, match=words):
        lib.setup(single_process=True)


def test_a_backend_that_is_not_to_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name, words in (
        ("mpi", "has no mpi: build PyTorch with MPI"),
        ("glo", "'glo' is not known: nccl, gloo or mpi"),
        ("rccl", 'RCCL on ROCm is called "nccl"'),
    ):
        with pytest.raises(lib.DistributedError, match=re.escape(words)):
            lib.setup(name, single_process=True)
    with pytest.raises(lib.DistributedError, match="nccl"):
        lib.setup("nccl", single_process=True)


def test_a_local_rank_without_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    for name, value in (WHOLE | {"LOCAL_RANK": "2"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(lib.DistributedError, match=r"local rank 2 on .* has no GPU: this node shows 2"):
        lib.setup()


def test_nothing_is_done_without_a_group() -> None:
    for ask in (lib.node_info, lib.is_main_process, lib.is_node_main, lib.barrier, lib.stop_requested):
        with pytest.raises(lib.DistributedError, match=r"call setup\(\) first"):
            ask()
    assert lib.get_node_info() == {"node_rank": 0, "local_rank": 0, "local_world_size": 1, "world_size": 1, "rank": 0}
    assert lib.is_master_process()
    assert lib.is_master_node()
    one = torch.ones(2)
    assert lib.all_reduce_tensor(one) is one
    assert lib.gather_tensors(one)[0] is one


def test_a_world_of_one_answers_to_everything() -> None:
    me = lib.setup(single_process=True)
    assert (me.rank, me.world_size, me.node_count, me.local_world_size, me.backend) == (0, 1, 1, 1, "")
    mine = torch.tensor([[1.0, 2.0]])
    for op in ("sum", "mean", "max", "min", "product"):
        given = lib.all_reduce(mine, op)
        assert torch.equal(given, mine)
        assert given.data_ptr() != mine.data_ptr()
    assert torch.equal(lib.reduce_scatter(mine), mine)
    assert torch.equal(lib.broadcast(mine), mine)
    assert [torch.equal(part, mine) for part in lib.all_gather(mine)] == [True]
    assert lib.gather(mine) is not None
    assert lib.all_gather_object("a") == lib.gather_object("a") == ["a"]
    assert lib.broadcast_object("a") == "a"
    lib.barrier()
    with lib.main_process_first(), lib.node_main_first():
        pass
    assert lib.setup(single_process=True) is me
    with pytest.raises(lib.DistributedError, match="a world of one without a group"):
        lib.setup("gloo")


def test_words_that_mean_nothing_are_refused_with_the_nearest() -> None:
    lib.setup(single_process=True)
    with pytest.raises(lib.DistributedError, match="'avg' is not known: there are sum, mean"):
        lib.all_reduce(torch.ones(1), "avg")
    with pytest.raises(lib.DistributedError, match="did you mean product"):
        lib.all_reduce(torch.ones(1), "prod")
    with pytest.raises(lib.DistributedError, match=r"mean of torch\.int64"):
        lib.all_reduce(torch.ones(1, dtype=torch.int64), "mean")
    with pytest.raises(lib.DistributedError, match=r"dst=1 is no rank: there are 1, from 0 to 0"):
        lib.gather(torch.ones(1), dst=1)
    with pytest.raises(lib.DistributedError, match="src=-1 is no rank"):
        lib.broadcast(torch.ones(1), src=-1)
    with pytest.raises(lib.DistributedError, match="rows that 1 ranks can share"):
        lib.reduce_scatter(torch.tensor(1.0))
    with pytest.raises(lib.DistributedError, match="is empty"):
        lib.sampler([])
    with pytest.raises(lib.DistributedError, match="has no length"):
        lib.dataloader(iter([1]), 1)
    for short in (0, -1.0, float("nan"), timedelta(0)):
        with pytest.raises(lib.DistributedError, match="leaves no time"):
            read_timeout(short)
    odd: list[Any] = ["30", True, [1]]
    for wrong in odd:
        with pytest.raises(lib.DistributedError, match="in seconds or as a timedelta"):
            read_timeout(wrong)
    assert read_timeout(float("inf")) == timedelta(days=366)
    assert read_timeout(1.5) == timedelta(seconds=1.5)
    assert read_timeout(None) == TIMEOUT


def test_what_is_no_plain_tensor_or_rank_is_refused() -> None:
    lib.setup(single_process=True)
    one = torch.ones(2)
    for call in (lib.all_reduce, lib.all_gather, lib.gather, lib.broadcast, lib.reduce_scatter):
        with pytest.raises(lib.DistributedError, match="a tensor is needed, not float"):
            call(3.0)  # type: ignore[arg-type]
        with pytest.raises(lib.DistributedError, match=r"layout torch\.sparse_coo"):
            call(one.to_sparse())
    with pytest.raises(lib.DistributedError, match=r"combine torch\.int16"):
        lib.all_reduce(one.to(torch.int16))
    with pytest.raises(lib.DistributedError, match="complex numbers have no max"):
        lib.all_reduce(one.to(torch.complex64), "max")
    for wrong in ("0", 0.0, True):
        with pytest.raises(lib.DistributedError, match="give a whole number"):
            lib.gather(one, dst=wrong)  # type: ignore[arg-type]
    turned = torch.tensor([1 + 2j]).conj()
    assert [torch.equal(part, turned) for part in lib.all_gather(turned)] == [True]
    assert torch.equal(lib.broadcast(torch.tensor(True)), torch.tensor(True))


def test_a_signal_that_comes_twice_at_once_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", ended.append)
    lib.setup(single_process=True)
    lib.stop_requested()
    for _ in range(2):
        stop._hear(signal.SIGUSR1, None)
    assert lib.stop_requested()
    assert not ended, "a scheduler and its agent both pass a stop on"
    monkeypatch.setattr(stop, "AGAIN_S", 0.0)
    stop._hear(signal.SIGUSR1, None)
    assert ended == [signal.SIGUSR1], "who sends it again later means it"
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_only_the_main_thread_can_begin_to_listen() -> None:
    lib.setup(single_process=True)
    told: list[str] = []

    def ask() -> None:
        try:
            lib.stop_requested()
        except lib.DistributedError as error:
            told.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert told
    assert "main thread" in told[0]


def test_who_listened_before_hears_every_signal_too() -> None:
    lib.setup(single_process=True)
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    assert not lib.stop_requested()
    signal.raise_signal(signal.SIGTERM)
    assert lib.stop_requested()
    assert heard == [signal.SIGTERM], "who listened before hears it too"
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM] * 2


def test_a_failure_leaves_no_group_and_passes_on() -> None:
    with pytest.raises(ZeroDivisionError), lib.distributed(single_process=True):
        _ = 1 / 0
    with pytest.raises(lib.DistributedError):
        lib.node_info()
    with pytest.raises(SystemExit) as left, lib.distributed(single_process=True):
        raise SystemExit(3)
    assert left.value.code == 3
    with lib.distributed(single_process=True) as me:
        assert me.rank == 0


def test_ranks_that_would_take_other_backends_are_told_before_they_wait_for_each_other() -> None:
    check_backends([Word("a", 0, 0, "", "nccl"), Word("b", 1, 0, "", "nccl")])
    with pytest.raises(lib.DistributedError, match=r"rank 0 on a takes nccl, rank 2 on b takes gloo.*sees no GPU"):
        check_backends([Word("a", 0, 0, "", "nccl"), Word("a", 0, 1, "", "nccl"), Word("b", 1, 0, "", "gloo")])


def test_a_child_and_a_second_thread_have_no_turn() -> None:
    me = os.getpid()
    with turn("all_reduce", me), turn("barrier", me):  # one within another, of one thread
        told: list[BaseException] = []

        def other() -> None:
            try:
                with turn("gather", me):
                    pass
            except lib.DistributedError as error:
                told.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert "gather was called while another thread of this rank is in barrier" in str(told[0])
    with pytest.raises(lib.DistributedError, match="in a child process of the rank"), turn("barrier", me + 1):
        pass


def test_nodes_are_numbered_as_told_else_by_host() -> None:
    told = [Word("a", 0, 0), Word("a", 0, 1), Word("a", 1, 0)]
    assert number_nodes(told) == [0, 0, 1], "cloned machines have one name"
    assert number_nodes([Word("a", 4, 0), Word("a", 7, 0)]) == [0, 1], "hostnames has no gaps"
    assert number_nodes([Word("a", None, None, "1"), Word("a", None, None, "2")]) == [0, 1], "cloned, but booted apart"
    bare = [Word("b", None, None), Word("a", None, None), Word("b", None, None)]
    assert number_nodes(bare) == [0, 1, 0]
    start = Start(rank=2, world_size=3, local_rank=None, node_rank=None)
    info = build_info(start, bare, torch.device("cpu"), "gloo")
    assert (info.local_rank, info.local_world_size, info.node_count, info.hostnames) == (1, 2, 2, ("b", "a"))
