"""What a rank did when it was told to stop: a rank that never complained is told by nothing else."""

from __future__ import annotations

from orchestrator.diagnosis.hang.stacks import parse_stack
from orchestrator.diagnosis.hang.words import Telling, tell
from orchestrator.diagnosis.live import Texts


def find_telling(texts: Texts, rank: int, node_rank: int) -> Telling | None:
    """Find what its node saw of a rank in the last moment; None where nobody looked, or the look tells nothing."""
    for look in reversed(texts.node_evidence(node_rank).get("looks") or ()):
        for one in look.get("ranks") or ():
            if one.get("rank") != rank:
                continue
            kernel = f"State: {one.get('state') or '?'}\nwchan={one.get('wchan') or ''}\n"
            stack = parse_stack(f"{kernel}{one.get('text') or ''}", rank, node_rank)
            telling = tell(stack) if stack is not None else None
            return telling if telling is not None and telling.kind != "unknown" else None
    return None
