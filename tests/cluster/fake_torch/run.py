"""`python -m torch.distributed.run` without torch: starts, watches and ends ranks as torchrun with a static rendezvous does.

What it copies on purpose: it tells no other node of a failure, its own exit code is 1 whatever a rank's was, a failed
rank's siblings get 30 s whatever --shutdown-timeout says, and when it is killed itself its ranks run on. It knows
--shutdown-timeout and --signals-to-handle. FAKE_TORCH_BARRIER_S makes an agent whose ranks are through wait for the
other agents, deaf to signals, as torchrun does for 300 s.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import sys
import time

from .ranks import Ended, Rank, Signals, find_ended, say, start_ranks, stop_ranks
from .rendezvous import RendezvousError, Store, host_store, join_store
from .words import parse_words, rendezvous_timeout_s

SIBLING_GRACE_S = 30.0


def main() -> int:
    """Run the ranks of one node to their end."""
    words = parse_words()
    try:
        store = open_store(words)
    except RendezvousError as error:
        sys.stderr.write(f'Traceback (most recent call last):\n  File "{__file__}", line 1, in <module>\n{error}\n')
        return 1
    signals = Signals()
    signals.watch(words.signals_to_handle)
    try:
        return watch_ranks(words, store, signals, start_ranks(words, store.place))
    finally:
        store.close()


def open_store(words: argparse.Namespace) -> Store:
    """Meet the other nodes."""
    timeout_s = rendezvous_timeout_s(words.rdzv_conf)
    if words.node_rank == 0:
        return host_store(words.master_port, words.rdzv_id, words.nnodes, words.nproc_per_node, timeout_s)
    address, port = words.master_addr, words.master_port
    return join_store(address, port, words.rdzv_id, words.node_rank, words.nproc_per_node, timeout_s)


def watch_ranks(words: argparse.Namespace, store: Store, signals: Signals, ranks: list[Rank]) -> int:
    """Wait for a signal, for a failure or for the good end of all ranks."""
    while True:
        if signals.received:
            say("W", f"Received {signals.received[0]} death signal, shutting down workers")
            stop_ranks(ranks, signals.received[0], words.shutdown_timeout, signals)
            sys.stderr.write(f"SignalException: Process {os.getpid()} got signal: {signals.received[0]}\n")
            return 1
        if failed := find_ended(ranks, []):
            stop_ranks(ranks, signal.SIGTERM, SIBLING_GRACE_S, signals)
            report_failure(words, failed + find_ended(ranks, failed))
            return 1
        if all(rank.process.poll() == 0 for rank in ranks):
            store.wait_for_others(float(os.environ.get("FAKE_TORCH_BARRIER_S", "0")))
            return 0
        time.sleep(words.monitor_interval)


def report_failure(words: argparse.Namespace, ended: list[Ended]) -> None:
    """Copy the first failure's error file and print the block that closes a failed torchrun."""
    first = ended[0]
    say(
        "E",
        f"failed (exitcode: {first.code}) local_rank: {first.rank.local_rank} (pid: {first.rank.process.pid}) of binary: {sys.executable}",
    )
    copy_error(first)
    title = f"{words.script} FAILED"
    thick, thin = "=" * 60, "-" * 60
    lines = ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", thick, title, thin, "Failures:"]
    for number, other in enumerate(ended[1:], 1):
        lines += failure_lines(number, other)
    if len(ended) == 1:
        lines.append("  <NO_OTHER_FAILURES>")
    lines += [thin, "Root Cause (first observed failure):", *failure_lines(0, first), thick]
    sys.stderr.write("Traceback (most recent call last):\n" + "\n".join(lines) + "\n")


def failure_lines(number: int, ended: Ended) -> list[str]:
    """One entry of the block."""
    rank, code = ended.rank, ended.code
    pid = rank.process.pid
    name = f" ({signal.Signals(-code).name})" if code < 0 else ""
    told = rank.error_file.exists()
    trace = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    if code < 0:
        trace = f"Signal {-code} ({signal.Signals(-code).name}) received by PID {pid}"
    if told:
        trace = read_message(rank.error_file)
    return [
        f"[{number}]:",
        f"  time      : {time.strftime('%Y-%m-%d_%H:%M:%S', time.localtime(ended.time))}",
        f"  host      : {socket.gethostname()}",
        f"  rank      : {rank.rank} (local_rank: {rank.local_rank})",
        f"  exitcode  : {code} (pid: {pid}){name}",
        f"  error_file: {rank.error_file if told else '<N/A>'}",
        f"  traceback : {trace}",
    ]


def read_message(path: pathlib.Path) -> str:
    """What a rank wrote about its own end."""
    try:
        message = json.loads(path.read_text())["message"]
    except (OSError, ValueError, KeyError):
        return path.read_text()
    return str(message["extraInfo"]["py_callstack"] if isinstance(message, dict) else message)


def copy_error(first: Ended) -> None:
    """Copy the first failure's error file to the agent's own place, with the rank's status in it."""
    target = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not target or not first.rank.error_file.exists():
        return
    try:
        content = json.loads(first.rank.error_file.read_text())
        if isinstance(content.get("message"), dict):
            content["message"]["errorCode"] = first.code
        pathlib.Path(target).write_text(json.dumps(content))
    except ValueError:
        shutil.copy(first.rank.error_file, target)


if __name__ == "__main__":
    sys.exit(main())
