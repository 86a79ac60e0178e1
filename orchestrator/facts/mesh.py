"""How every node reaches every other one."""

from __future__ import annotations

from orchestrator.facts.group import FactGroup


class Way(FactGroup):
    """The way from one node to another, on ports of those that the kernel picks from."""

    source: int
    target: int
    ok: bool = False
    step: str = ""
    """Where it ended: timeout, refused, no route, stalled, ..."""
    detail: str = ""
    rtt_ms: float | None = None
    rate_mbs: float | None = None
    """Of a short payload there and back, 10^6 bytes a second."""
    seen: str = ""
    """The address that the target sees."""
    back: str = ""
    """The address from which the target's kernel would speak to that one by itself."""
    back_interface: str = ""
    udp: str = ""
    """ok, or silent: not even small datagrams come back."""
    full_bytes: int | None = None
    """The largest packet of the source's interface."""
    passes_bytes: int | None = None
    """The largest that passes without being fragmented."""


class MeshFacts(FactGroup):
    """All ways between the nodes."""

    skipped: str = ""
    """Why nothing was tried."""
    ways: tuple[Way, ...] = ()
