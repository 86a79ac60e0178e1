"""Builds the readers of a run, one a node, for whoever follows it: from its start on, or from where another process left it."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from typing import TYPE_CHECKING

from orchestrator.phases.connect import connect
from orchestrator.phases.contact import Contact
from orchestrator.phases.logstore import LogStore, Show
from orchestrator.phases.reader import NodeReader

if TYPE_CHECKING:
    from orchestrator.diagnosis.events import Event
    from orchestrator.plan.paths import ExperimentPaths
    from orchestrator.settings import Settings
    from orchestrator.transport import Channel, Link
    from orchestrator.values import NodePlan, Plan


def build_readers(
    plan: Plan,
    settings: Settings,
    paths: ExperimentPaths,
    show: Show,
    events: queue.SimpleQueue[Event],
    *,
    links: Mapping[int, Link],
    clock_offsets: Mapping[int, float],
    channels: Mapping[int, Channel] | None = None,
) -> list[NodeReader]:
    """Build one reader a node, with the files that it writes; all by node rank.

    A node without a channel is asked for one, a node without a link is dialled.
    """

    def reopen(node: NodePlan) -> Link:
        link = connect([node.node], settings)[0]
        if (known := links.get(node.node_rank)) is not None:
            link.pythons = known.pythons
        return link

    contact = Contact(range(len(plan.nodes)))
    return [
        NodeReader(
            plan=plan,
            node=node,
            link=links.get(node.node_rank),
            channel=(channels or {}).get(node.node_rank),
            store=LogStore(node, paths, show),
            events=events,
            reopen=reopen,
            lost_after_s=settings.lost_after_s,
            clock_offset_s=clock_offsets.get(node.node_rank, 0.0),
            contact=contact,
        )
        for node in plan.nodes
    ]
