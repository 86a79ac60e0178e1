"""Answers its request and then every order with itself: shows that a link carries bytes both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.node.wire import Wire


def main(request: dict[str, Any], wire: Wire, modules: dict[str, str]) -> None:
    """Echo until the launch host closes its end."""
    del modules
    wire.send({"request": request})
    while (order := wire.read_order()) is not None:
        wire.send({"order": order})
