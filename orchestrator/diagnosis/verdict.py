"""From the history of a run and the texts of its ranks to the one true verdict."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.diagnosis.events import AgentExit
from orchestrator.diagnosis.history import NOTHING_LEFT, History, StopCause
from orchestrator.diagnosis.tracebacks import Failure, parse_blame, parse_error_file, parse_failure
from orchestrator.values import Evidence, Exit, FirstFailure, RankExit, RunState, Verdict

HELD_REMEDY = "no process of the run is left, but a driver keeps its memory: see nvidia-smi there; a reboot frees it"
WINDOW_S = 5.0
"""A consequence can be told sooner than its cause: the cause's interpreter is still closing down."""


@dataclass(frozen=True)
class Texts:
    """What is known in words: readers of the last bytes, empty where there is nothing."""

    rank_err: Callable[[int], str]
    rank_error_file: Callable[[int], bytes]
    agent_err: Callable[[int], str]
    evidence: Callable[[int | None, int], tuple[Evidence, ...]]
    """(rank, node rank) -> the files that show it."""


def build_verdict(history: History, texts: Texts, ended: float) -> Verdict:
    """Say how the run ended, with the exit code that follows from it."""
    survivors = tuple(
        (history.plan.nodes[node_rank].node.name, int(process["pid"]), str(process["command"]))
        for node_rank, final in sorted(history.finals.items())
        for process in final.get("survivors", [])
    )
    held = tuple(
        (history.plan.nodes[node_rank].node.name, int(gpu["gpu"]), int(gpu["held_mib"]))
        for node_rank, final in sorted(history.finals.items())
        for gpu in final.get("gpus") or ()
    )
    unchecked = tuple(
        (history.plan.nodes[node_rank].node.name, str(final["gpus_why"]))
        for node_rank, final in sorted(history.finals.items())
        if final.get("gpus_why")
    )
    unasked = _unasked(history)
    verdict = replace(
        _judge(history, texts),
        duration_s=max(0.0, ended - history.started),
        survivors=survivors,
        unasked=unasked,
        gpus_held=held,
        gpus_unchecked=unchecked,
    )
    if unasked and not verdict.remedy:
        kill = f"aorta-launch kill {history.plan.run_id}"
        verdict = replace(verdict, remedy=f"{', '.join(unasked)} could not be asked; once it answers again: {kill}")
    if (survivors or held) and verdict.state in ("killed", "timed out"):
        # It is only stopped when nothing is left.
        verdict = replace(verdict, state="failed", cause=f"{verdict.cause}; not all of it has ended")
    if survivors and verdict.exit_code != Exit.NODE_LOST:
        return replace(
            verdict,
            exit_code=int(Exit.FAILED),
            remedy=verdict.remedy or "processes outlived KILL: a driver or a file system hangs; look at those nodes",
        )
    if held and verdict.exit_code != Exit.NODE_LOST:
        return replace(verdict, exit_code=int(Exit.FAILED), remedy=verdict.remedy or HELD_REMEDY)
    return verdict


def _unasked(history: History) -> tuple[str, ...]:
    # Nothing outlives a boot.
    unknown = sorted(node_rank for node_rank, why in history.lost.items() if why not in NOTHING_LEFT)
    return tuple(history.plan.nodes[node_rank].node.name for node_rank in unknown)


def _judge(history: History, texts: Texts) -> Verdict:
    cause = history.stop_cause
    killed = any(final.get("reason") == "kill" for final in history.finals.values())
    if cause == "lost" and killed and history.lost and set(history.lost.values()) <= NOTHING_LEFT:
        cause = "kill"  # which of the two is told first is chance
    if cause in ("interrupt", "terminate", "kill", "elsewhere", "time limit"):
        return _stopped(history, cause)
    if cause == "lost":
        return _lost(history)
    if history.stop_cause == "not joined":
        return _not_joined(history, texts)
    if history.stop_cause is None and all(exit_.clean for exit_ in history.agent_exits.values()):
        bad = [exit_ for exit_ in history.exits.values() if not exit_.clean and exit_.code is not None]
        if not bad and len(history.agent_exits) == len(history.plan.nodes):
            return Verdict(state="succeeded", exit_code=int(Exit.DONE), cause="")
    first = find_first_failure(history, texts)
    rank = first.rank if first else None
    node_rank = first.node_rank if first else (history.stop_node or 0)
    return Verdict(
        state="failed",
        exit_code=int(Exit.FAILED),
        cause=_cause(first, history),
        first_failure=first,
        stopped=_stopped_ranks(history, rank),
        evidence=texts.evidence(rank, node_rank),
        remedy="",
    )


def _stopped(history: History, stop_cause: StopCause) -> Verdict:
    table: dict[str, tuple[RunState, Exit, str]] = {
        "interrupt": ("killed", Exit.INTERRUPTED, "stopped by Ctrl-C"),
        "terminate": ("killed", Exit.STOPPED, "stopped by SIGTERM"),
        "kill": ("killed", Exit.STOPPED, "stopped by aorta-launch kill"),
        "elsewhere": ("killed", Exit.STOPPED, f"stopped from elsewhere ({history.stop_detail})"),
        "time limit": ("timed out", Exit.TIME_LIMIT, "the time limit was reached"),
    }
    state, code, cause = table[stop_cause]
    if unasked := _unasked(history):
        names = ", ".join(unasked)
        return Verdict(
            state="lost",
            exit_code=int(Exit.FAILED),
            cause=f"{cause}; {names} could not be asked",
            stopped=_stopped_ranks(history, None),
            remedy=f"aorta-launch kill {history.plan.run_id}",
        )
    return Verdict(state=state, exit_code=int(code), cause=cause, stopped=_stopped_ranks(history, None))


def _lost(history: History) -> Verdict:
    node_rank = history.stop_node or 0
    node = history.plan.nodes[node_rank]
    why = history.lost.get(node_rank) or history.stop_detail or "no answer"
    return Verdict(
        state="lost",
        exit_code=int(Exit.NODE_LOST),
        cause=f"node {node.node.name} was lost: {why}",
        first_failure=FirstFailure(node=node.node.name, node_rank=node_rank, time=history.stop_time, error=why),
        stopped=tuple(rank for rank in _stopped_ranks(history, None) if rank not in node.ranks),
        remedy=f"once it answers again: aorta-launch kill {history.plan.run_id}"
        if _unasked(history)
        else "nothing of the run is left there: launch again",
    )


def _not_joined(history: History, texts: Texts) -> Verdict:
    missing = [node for node in history.plan.nodes if any(rank not in history.seen for rank in node.ranks)]
    first = missing[0] if missing else history.plan.nodes[0]
    return Verdict(
        state="failed",
        exit_code=int(Exit.FAILED),
        cause=history.stop_detail,
        first_failure=FirstFailure(node=first.node.name, node_rank=first.node_rank, error=history.stop_detail),
        stopped=_stopped_ranks(history, None),
        evidence=texts.evidence(None, first.node_rank),
        remedy="aorta-launch check says whether the nodes reach each other",
    )


def _stopped_ranks(history: History, culprit: int | None) -> tuple[int, ...]:
    """The ranks that ran and did not end well, but for the culprit."""
    clean = {rank for rank, exit_ in history.exits.items() if exit_.clean}
    return tuple(sorted(rank for rank in history.seen if rank != culprit and rank not in clean))


def _cause(first: FirstFailure | None, history: History) -> str:
    if first is None:
        return history.stop_detail or "unknown"
    if first.error:
        return first.error
    if first.signal:
        return f"killed by {first.signal}"
    if first.exit_code is not None:
        return f"exit code {first.exit_code}"
    return history.stop_detail or "unknown"


def find_first_failure(history: History, texts: Texts) -> FirstFailure | None:
    """Find the failure that the others follow from: the earliest that does not speak of a peer that went away."""
    before, after = _candidates(history)
    told = {exit_.rank: _words(exit_.rank, texts) for exit_ in before}
    for exit_ in before:
        failure = told[exit_.rank]
        if failure is None or not failure.consequence or exit_.signal is not None:
            return _from_rank(exit_, failure, history)
    for exit_ in after:
        failure = _words(exit_.rank, texts)
        if failure is not None and not failure.consequence:
            return _from_rank(exit_, failure, history)
    if before:
        return _from_rank(before[0], told[before[0].rank], history)
    return _from_agents(history, texts)


def _candidates(history: History) -> tuple[list[RankExit], list[RankExit]]:
    exits = sorted((exit_ for exit_ in history.exits.values() if not exit_.clean), key=lambda exit_: exit_.time)
    known = [exit_ for exit_ in exits if exit_.code is not None or exit_.signal is not None]
    before = [exit_ for exit_ in known if not exit_.after_stop]
    before = [exit_ for exit_ in before if exit_.time <= before[0].time + WINDOW_S]
    limit = (history.stop_time or 0.0) + WINDOW_S
    after = [exit_ for exit_ in known if exit_.after_stop and exit_.code is not None and exit_.time <= limit]
    return before, after


def _words(rank: int, texts: Texts) -> Failure | None:
    told = parse_error_file(texts.rank_error_file(rank))
    if told is not None:
        return told
    return parse_failure(texts.rank_err(rank))


def _from_rank(exit_: RankExit, failure: Failure | None, history: History) -> FirstFailure:
    # A rank that was killed did not say why: its last line is about something else.
    said = failure if exit_.signal is None else None
    error = said.error if said else ""
    if exit_.disk_full and not error:
        error = "the disk is full that takes its output (~/.aorta)"
    return FirstFailure(
        node=history.plan.nodes[exit_.node_rank].node.name,
        node_rank=exit_.node_rank,
        rank=exit_.rank,
        local_rank=exit_.local_rank,
        time=exit_.time,
        exit_code=exit_.code,
        signal=signal_name(exit_.signal),
        error=error,
        traceback=said.where if said else "",
    )


def _from_agents(history: History, texts: Texts) -> FirstFailure | None:
    """No rank's own end is known: take the earliest agent's word, as far as it goes."""
    bad = sorted(
        (exit_ for exit_ in history.agent_exits.values() if not exit_.clean and not exit_.after_stop),
        key=lambda exit_: exit_.time,
    )
    if not bad:
        return _from_stop(history)
    exit_ = bad[0]
    node = history.plan.nodes[exit_.node_rank]
    text = texts.agent_err(exit_.node_rank)
    blame = parse_blame(text)
    if blame is not None and blame.rank in node.ranks:
        told = RankExit(
            node_rank=exit_.node_rank,
            rank=blame.rank,
            local_rank=blame.local_rank,
            time=exit_.time,
            code=blame.code,
            signal=blame.signal,
        )
        return _from_rank(told, _words(blame.rank, texts), history)
    return _agent_itself(exit_, node.node.name, text)


def _agent_itself(exit_: AgentExit, name: str, text: str) -> FirstFailure:
    failure = parse_failure(text)
    error = exit_.error or (failure.error if failure and exit_.signal is None else "")
    if exit_.signal is not None:
        error = f"the agent was killed by {signal_name(exit_.signal)}"
    return FirstFailure(
        node=name,
        node_rank=exit_.node_rank,
        time=exit_.time,
        exit_code=exit_.code,
        signal=signal_name(exit_.signal),
        error=error,
        traceback=failure.where if failure else "",
    )


def _from_stop(history: History) -> FirstFailure | None:
    if history.stop_node is None:
        return None
    name = history.plan.nodes[history.stop_node].node.name
    return FirstFailure(node=name, node_rank=history.stop_node, time=history.stop_time, error=history.stop_detail)


def signal_name(number: int | None) -> str | None:
    """Name a signal as people do."""
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
