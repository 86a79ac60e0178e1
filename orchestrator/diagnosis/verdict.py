"""From the history of a run and the texts of its ranks to the one true verdict."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from orchestrator.diagnosis.explain import explain, explain_hang
from orchestrator.diagnosis.history import NOTHING_LEFT, History, StopCause
from orchestrator.diagnosis.live import Texts, build_odd
from orchestrator.values import Exit, FirstFailure, RunState, Verdict

HELD_REMEDY = "no process of the run is left, but a driver keeps its memory: see nvidia-smi there; a reboot frees it"


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
    kill = f"aorta-launch kill {history.plan.run_id}"
    if unasked and kill not in verdict.remedy:
        ask = f"{', '.join(unasked)} could not be asked; once it answers again: {kill}"
        verdict = replace(verdict, remedy=f"{verdict.remedy}\n{ask}".strip())
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
        return _stopped(history, cause, texts)
    if cause == "lost":
        return _lost(history, texts)
    if cause == "not joined":
        return _not_joined(history, texts)
    if cause == "hang":
        return _hung(history, texts)
    if cause is None and all(exit_.clean for exit_ in history.agent_exits.values()):
        bad = [exit_ for exit_ in history.exits.values() if not exit_.clean and exit_.code is not None]
        if not bad and len(history.agent_exits) == len(history.plan.nodes):
            return Verdict(
                state="succeeded", exit_code=int(Exit.DONE), cause="", family="OK", confidence="certain", rule="exits"
            )
    return _failed(history, texts)


def _failed(history: History, texts: Texts) -> Verdict:
    explained = explain(history, texts)
    word, first = explained.judgement, explained.first
    culprits = {*word.ranks, *([first.rank] if first and first.rank is not None else [])}
    # A rank that spoke with the node often breaks before its silence has lasted long enough.
    is_lost = word.cause_id == "rule.node_lost" and word.node_rank in history.lost
    return Verdict(
        state="lost" if is_lost else "failed",
        exit_code=int(Exit.NODE_LOST if is_lost else Exit.FAILED),
        cause=word.cause,
        family=word.family,
        cause_id=word.cause_id,
        rule=word.rule,
        reason=word.reason,
        confidence=word.confidence,
        ranks=word.ranks if len(word.ranks) > 1 else (),
        last_lines=word.last_lines,
        first_failure=first,
        stopped=_stopped_ranks(history, culprits),
        evidence=explained.evidence,
        remedy=word.remedy,
    )


def _stopped(history: History, stop_cause: StopCause, texts: Texts) -> Verdict:
    table: dict[str, tuple[RunState, Exit, str]] = {
        "interrupt": ("killed", Exit.INTERRUPTED, "stopped by Ctrl-C"),
        "terminate": ("killed", Exit.STOPPED, "stopped by SIGTERM"),
        "kill": ("killed", Exit.STOPPED, "stopped by aorta-launch kill"),
        "elsewhere": ("killed", Exit.STOPPED, f"stopped from elsewhere ({history.stop_detail})"),
        "time limit": ("timed out", Exit.TIME_LIMIT, "the time limit was reached"),
    }
    state, code, cause = table[stop_cause]
    hung, evidence = explain_hang(history, texts) if stop_cause == "time limit" else ("", ())
    stopped = Verdict(
        state=state,
        exit_code=int(code),
        cause=cause,
        family="TIME_LIMIT" if stop_cause == "time limit" else "SESSION",
        cause_id="rule.time_limit" if stop_cause == "time limit" else "",
        rule="stop",
        confidence="certain",
        reason=hung,
        evidence=evidence,
        stopped=_stopped_ranks(history),
    )
    if unasked := _unasked(history):
        return replace(
            stopped,
            state="lost",
            exit_code=int(Exit.FAILED),
            cause=f"{cause}; {', '.join(unasked)} could not be asked",
            remedy=f"aorta-launch kill {history.plan.run_id}",
        )
    return stopped


def _lost(history: History, texts: Texts) -> Verdict:
    node_rank = history.stop_node or 0
    node = history.plan.nodes[node_rank]
    why = history.lost.get(node_rank) or history.stop_detail or "no answer"
    return Verdict(
        state="lost",
        exit_code=int(Exit.NODE_LOST),
        cause=f"node {node.node.name} was lost: {why}",
        family="NODE_LOST",
        cause_id="rule.node_lost",
        rule="lost",
        confidence="certain",
        first_failure=FirstFailure(node=node.node.name, node_rank=node_rank, time=history.stop_time, error=why),
        stopped=tuple(rank for rank in _stopped_ranks(history) if rank not in node.ranks),
        evidence=texts.evidence(None, node_rank),
        remedy=f"once it answers again: aorta-launch kill {history.plan.run_id}"
        if _unasked(history)
        else "nothing of the run is left there: launch again",
    )


def _not_joined(history: History, texts: Texts) -> Verdict:
    names = history.missing_nodes()
    missing = [node for node in history.plan.nodes if node.node.name in names]
    first = missing[0] if missing else history.plan.nodes[0]
    return Verdict(
        state="failed",
        exit_code=int(Exit.FAILED),
        cause=history.stop_detail,
        family="RDZV",
        cause_id="rule.not_joined",
        rule="absence",
        confidence="certain",
        first_failure=FirstFailure(node=first.node.name, node_rank=first.node_rank, error=history.stop_detail),
        stopped=_stopped_ranks(history),
        evidence=texts.evidence(None, first.node_rank),
        remedy="aorta-launch check says whether the nodes reach each other",
    )


def _hung(history: History, texts: Texts) -> Verdict:
    odd = build_odd(history.hang)
    rank = odd.ranks[0] if odd and odd.ranks else None
    node = next((node for node in history.plan.nodes if rank in node.ranks), None)
    first = None
    if node is not None and rank is not None:
        first = FirstFailure(
            node=node.node.name,
            node_rank=node.node_rank,
            rank=rank,
            local_rank=rank - node.first_rank,
            time=(history.hang or {}).get("since"),
            traceback=odd.where if odd else "",
        )
    return Verdict(
        state="failed",
        exit_code=int(Exit.FAILED),
        cause=history.stop_detail,
        family=odd.family if odd else "HANG",
        cause_id="rule.mismatch" if odd and odd.family == "MISMATCH" else "rule.hang",
        rule=odd.rule if odd else "no progress",
        confidence=odd.confidence if odd else "unknown",
        ranks=odd.ranks if odd and len(odd.ranks) > 1 else (),
        first_failure=first,
        stopped=_stopped_ranks(history, {rank}),
        evidence=odd.evidence if odd else texts.evidence(None, 0),
        remedy="see its stack in diagnosis/: what it waits for is what everybody waits for"
        if rank is not None
        else "compare the stacks in diagnosis/; with launch.rank_hook or py-spy on the nodes they show lines of Python",
    )


def _stopped_ranks(history: History, culprits: Container[int | None] = ()) -> tuple[int, ...]:
    """The ranks that ran and did not end well, but for the culprits."""
    clean = {rank for rank, exit_ in history.exits.items() if exit_.clean}
    return tuple(sorted(rank for rank in history.seen if rank not in culprits and rank not in clean))
