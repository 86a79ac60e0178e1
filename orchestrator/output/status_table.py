"""How a run stands, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from orchestrator.output.table import align_cells
from orchestrator.output.verdict_text import render_verdict, verdict_document
from orchestrator.output.wording import count, render_duration, strip_controls
from orchestrator.run_status import NodeStatus, RunStatus
from orchestrator.values import NodePlan

STYLES = {
    "running": "green",
    "succeeded": "green",
    "starting": "yellow",
    "stopping": "yellow",
    "prepared": "yellow",
    "stopped": "yellow",
    "killed": "yellow",
    "suspect": "yellow",
    "nothing here": "yellow",
}
"""Any other word tells of trouble."""
MIB_OF_GIB = 1024
MOST_GAPS = 3


def render_status(status: RunStatus, *, width: int | None = None, every_rank: bool = False) -> Text:
    """Render the run's own lines and one line a node; a width cuts what does not fit on a line."""
    lines = _render_head(status)
    if status.nodes:
        rows = _render_nodes(status, every_rank=every_rank)
        for row in rows:
            row.truncate(width or row.cell_len, overflow="ellipsis")
        lines += [Text(), *rows]
    if status.verdict is not None and status.plan is not None:
        lines += [Text(), render_verdict(status.verdict, status.plan, status.experiment)]
    return Text("\n").join(lines)


def status_document(status: RunStatus) -> dict[str, Any]:
    """Build the JSON document of a status."""
    plans = _plans(status)
    return {
        "schema": 1,
        "run_id": status.run_id,
        "state": status.state,
        "live": status.live,
        "age_s": None if status.age_s is None else round(status.age_s, 3),
        "experiment": status.experiment,
        "controller": None if status.controller is None else _controller_document(status.controller),
        "note": status.note or None,
        "gaps": {name: [list(gap) for gap in found] for name, found in status.gaps.items()},
        "nodes": [
            {
                **node.report,
                "node_rank": node.node_rank,
                "node": node.node,
                "contact": node.contact,
                "error": node.error,
                "absent": node.absent,
                "planned_ranks": list(plans[node.node_rank].ranks) if node.node_rank in plans else None,
            }
            for node in status.nodes
        ],
        "verdict": None if status.verdict is None else verdict_document(status.verdict)["verdict"],
    }


def _controller_document(controller: Mapping[str, Any]) -> dict[str, Any]:
    return {"pid": controller.get("pid"), "mode": controller.get("mode")}


def _plans(status: RunStatus) -> dict[int, NodePlan]:
    return {node.node_rank: node for node in status.plan.nodes} if status.plan is not None else {}


def _render_head(status: RunStatus) -> list[Text]:
    age = "" if status.age_s is None else f"  {render_duration(status.age_s)}"
    head = Text.assemble((status.run_id, "bold"), "  ", (status.state, _style(status.state)), age)
    lines = [head]
    if status.live:
        lines.append(_render_controller(status))
    if status.note:
        lines.append(Text(f"note: {strip_controls(status.note)}"))
    lines += [Text(_render_gaps(name, gaps)) for name, gaps in sorted(status.gaps.items())]
    if status.verdict is None:
        lines.append(Text(f"experiment {status.experiment}", "dim"))
    return lines


def _render_gaps(name: str, gaps: Sequence[tuple[int, int]]) -> str:
    size = count(sum(end - start for start, end in gaps), "byte")
    places = ", ".join(f"{start}-{end - 1}" for start, end in gaps[:MOST_GAPS])
    more = f" and {len(gaps) - MOST_GAPS} more" if len(gaps) > MOST_GAPS else ""
    return f"{name}: {size} ({places}{more}) were dropped on the node before they could be fetched"


def _render_controller(status: RunStatus) -> Text:
    controller = status.controller
    if controller is None:
        return Text(f"no controller: aorta-launch attach {status.run_id}", "yellow")
    if controller.get("mode") == "silent":
        hint = f"is it suspended (kill -CONT)? Once it is gone, aorta-launch attach {status.run_id} replaces it"
        return Text.assemble((f"its controller, {controller.get('who')}, does not answer", "red"), f" · {hint}")
    return Text(f"controller pid {controller.get('pid')}, in the {controller.get('mode')}", "dim")


def _render_nodes(status: RunStatus, *, every_rank: bool) -> list[Text]:
    plans = _plans(status)
    heads = ["node", "state", "ranks", "agent", "heartbeat", "GPUs", "step", "last line"]
    rows = [[Text(name, "bold") for name in heads]]
    owners: list[NodeStatus | None] = [None]
    for node in status.nodes:
        rows.append(_build_row(node, plans.get(node.node_rank)))
        owners.append(node)
    if not any(row[5].plain for row in rows[1:]):
        rows = [[*row[:5], *row[6:]] for row in rows]
    lines = []
    for line, owner in zip(align_cells(rows), owners, strict=True):
        lines.append(line)
        if owner is not None and every_rank:
            lines += _render_ranks(owner)
            if owner.report.get("gpus_why"):
                lines.append(Text(f"    GPUs: {strip_controls(owner.report['gpus_why'])}", "dim"))
    return lines


def _build_row(node: NodeStatus, plan: NodePlan | None) -> list[Text]:
    report = node.report
    ranks = report.get("ranks", [])
    heartbeat = report.get("heartbeat_age_s")
    told = [rank for rank in ranks if rank["last_line"]]
    last = Text(strip_controls(told[0]["last_line"]) if told else "")
    if node.error or (not told and report.get("reason")):
        last = Text(strip_controls(node.error or report["reason"]), "" if not node.error else "red")
    return [
        Text(f"{node.node_rank} {node.node}"),
        Text(node.word, _style(node.word)),
        Text(_fold_ranks(ranks, plan)),
        Text(str(report.get("agent") or "")),
        Text("" if heartbeat is None or node.ended else f"{heartbeat:.0f}s ago"),
        Text(render_gpus(report.get("gpus"), report.get("gpus_why", ""))),
        Text(_fold_numbers([rank["step"] for rank in ranks if rank["step"] is not None])),
        last,
    ]


def _style(word: str) -> str:
    return STYLES.get(word, "red")


def _fold_ranks(ranks: Sequence[Mapping[str, Any]], plan: NodePlan | None) -> str:
    text = _fold_numbers(list(plan.ranks) if plan is not None else [rank["rank"] for rank in ranks])
    exited = sum(rank["state"] == "exited" for rank in ranks)
    return f"{text} ({exited} exited)" if exited else text


def _fold_numbers(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}-{high}"


def render_gpus(gpus: Sequence[Mapping[str, Any]] | None, why: str = "") -> str:
    """Render the use of a node's GPUs: how busy they are on average, and the memory of the fullest."""
    if gpus is None:
        return "no answer" if "no answer" in why else ""
    if not gpus:
        return ""
    parts = [count(len(gpus), "GPU")]
    busy = [gpu["util_percent"] for gpu in gpus if gpu["util_percent"] is not None]
    if busy:
        parts.append(f"{round(sum(busy) / len(busy))} %")
    sized = [gpu for gpu in gpus if gpu["used_mib"] is not None and gpu["total_mib"]]
    if sized:
        fullest = max(sized, key=lambda gpu: float(gpu["used_mib"]) / float(gpu["total_mib"]))
        used, total = fullest["used_mib"] / MIB_OF_GIB, fullest["total_mib"] / MIB_OF_GIB
        parts.append(f"{used:.0f}/{total:.0f} GiB")
    return " ".join(parts)


def _render_ranks(node: NodeStatus) -> list[Text]:
    rows = []
    for rank in node.report.get("ranks", []):
        ending = rank["state"]
        if rank["signal"] is not None:
            ending = f"signal {rank['signal']}"
        elif rank["code"] is not None:
            ending = f"exit code {rank['code']}"
        step = "" if rank["step"] is None else str(rank["step"])
        bad = ending not in ("running", "exit code 0")
        rows.append(
            [
                Text(f"    rank {rank['rank']}"),
                Text(f"pid {rank['pid']}"),
                Text(ending, "red" if bad else ""),
                Text(step),
                Text(strip_controls(rank["last_line"])),
            ]
        )
    return align_cells(rows) if rows else []
