"""What a kill did, one line a node, and as JSON."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from orchestrator.output.wording import render_held, strip_controls
from orchestrator.values import Exit, Notified, StopReport


def render_kill(reports: Sequence[StopReport]) -> Text:
    """Render one line a node, with what survived below it."""
    return Text("\n").join(_render_report(report) for report in reports)


def render_notified(told: Sequence[Notified], number: int) -> Text:
    """Render which ranks of each node took a signal."""
    name = signal.Signals(number).name.removeprefix("SIG")
    return Text("\n").join(_render_notified(one, name) for one in told)


def _render_notified(one: Notified, name: str) -> Text:
    node = (f"{one.node}: ", "bold")
    if one.error:
        return Text.assemble(node, (f"could not be asked: {strip_controls(one.error)}", "red"))
    if not one.ranks:
        return Text.assemble(node, "no rank of this run was there")
    ranks = ", ".join(map(str, one.ranks))
    return Text.assemble(node, f"{name} sent to rank{'' if len(one.ranks) == 1 else 's'} {ranks}")


def kill_document(run_id: str, reports: Sequence[StopReport]) -> dict[str, Any]:
    """Build the JSON document of a kill."""
    return {
        "schema": 1,
        "run_id": run_id,
        "clean": is_clean(reports),
        "nodes": [
            {
                "node": report.node,
                "node_rank": report.node_rank,
                "found": report.found,
                "stopped": report.stopped,
                "killed": report.killed,
                "survivors": [{"pid": pid, "command": command} for pid, command in report.survivors],
                "gpus": None
                if report.gpus_held is None
                else [{"gpu": gpu, "held_mib": mib} for gpu, mib in report.gpus_held],
                "gpus_why": report.gpus_why,
                "error": report.error,
            }
            for report in reports
        ],
    }


def is_clean(reports: Sequence[StopReport]) -> bool:
    """Tell whether every node was asked and nothing is left on any."""
    return not any(report.survivors or report.gpus_held or report.error for report in reports)


def kill_exit(reports: Sequence[StopReport]) -> Exit:
    """Decide the exit code of a kill."""
    return Exit.DONE if is_clean(reports) else Exit.FAILED


def _render_report(report: StopReport) -> Text:
    name = (f"{report.node}: ", "bold")
    if report.error:
        return Text.assemble(name, (f"could not be asked, what is left there is not known: {report.error}", "red"))
    if not report.found and not report.survivors:
        return Text.assemble(name, "nothing of this run was there")
    killed = f" ({report.killed} killed)" if report.killed else ""
    done = f"{report.stopped} process{'' if report.stopped == 1 else 'es'} stopped{killed}, "
    if not report.survivors:
        return Text.assemble(name, done, ("none left", "green"), *_render_gpus(report))
    text = Text.assemble(name, done, (f"{len(report.survivors)} LEFT", "bold red"))
    for pid, command in report.survivors:
        text.append(f"\n  pid {pid}  {strip_controls(command)}")
    return text


def _render_gpus(report: StopReport) -> list[str | tuple[str, str]]:
    """Say what became of the GPUs' memory; nothing where the run used none."""
    if report.gpus_why:
        return [f"; GPU memory not checked: {strip_controls(report.gpus_why)}"]
    if report.gpus_held is None:
        return []
    if not report.gpus_held:
        return [", ", ("GPU memory as before", "green")]
    held = "".join(f"\n  {render_held(gpu, mib)}" for gpu, mib in report.gpus_held)
    return [(held, "bold red"), "\n  see nvidia-smi there: a driver that hangs keeps it until a reboot"]
