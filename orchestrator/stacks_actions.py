"""Shows what the ranks of a run are doing; looks, and changes nothing."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.output.console import build_talk
from orchestrator.output.stacks_text import render_stacks, stacks_document
from orchestrator.phases.known_runs import choose_run, reach_settings, read_known_runs
from orchestrator.phases.record import write_json
from orchestrator.phases.stacks import look_at_run, write_stacks
from orchestrator.plan.paths import ExperimentPaths
from orchestrator.values import Exit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.diagnosis.hang.stacks_node import NodeLook
    from orchestrator.settings import Settings


def show_stacks(settings: Settings, run: str | None, *, save: bool, native: bool) -> int:
    """Ask every node, show what the ranks do, and keep it where that is asked for."""
    talk = build_talk(settings, os.environ, stdout=sys.stdout, stderr=sys.stderr)
    known = choose_run(read_known_runs(Path.home()), run, "stacks")
    with talk.waiting(f"asking {known.run_id}", [node.name for node in known.nodes]):
        nodes = look_at_run(known, reach_settings(settings, known), native=native)
    talk.show(render_stacks(known.run_id, nodes, every_frame=native or talk.verbosity > 0))
    if settings.json_output:
        talk.document(stacks_document(known.run_id, nodes))
    if save:
        talk.say(f"kept in {save_stacks(ExperimentPaths(Path(known.experiment)), known.run_id, nodes)}")
    return int(Exit.FAILED if any(node.error for node in nodes) else Exit.DONE)


def save_stacks(paths: ExperimentPaths, run_id: str, nodes: Sequence[NodeLook]) -> Path:
    """Keep one file a rank, and all of them folded.

    Raises:
        UsageError: the experiment directory is gone or full.
    """
    folder = paths.diagnosis / f"stacks_{datetime.now().astimezone():%Y%m%d_%H%M%S}"
    try:
        if not paths.root.is_dir():
            raise FileNotFoundError(2, "No such file or directory", str(paths.root))
        write_stacks(folder, nodes)
        (folder / "stacks.txt").write_text(f"{render_stacks(run_id, nodes).plain}\n", "utf-8", "backslashreplace")
        write_json(folder / "stacks.json", stacks_document(run_id, nodes))
    except OSError as error:
        raise UsageError(
            what=f"the stacks cannot be kept: {error.strerror}",
            where=str(error.filename or folder),
            remedy="free space there; without --save they are shown alone",
        ) from error
    return folder
