"""What the nodes are asked before their facts are known, so that nobody waits for it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from orchestrator.facts import Facts
from orchestrator.facts.mesh import MeshFacts
from orchestrator.light_dataclass import dataclass
from orchestrator.phases.addresses import PortQuestion, Proof, ask_for_port, prove_addresses
from orchestrator.phases.foreseen import is_far
from orchestrator.phases.mesh import EarlyMesh, foresee_mesh, measure_mesh
from orchestrator.settings import Settings
from orchestrator.transport import Link
from orchestrator.transport.fanout import fan_out
from orchestrator.values import Node


@dataclass(frozen=True)
class Ahead:
    """What is asked early; nobody waits for an answer."""

    question: PortQuestion
    mesh: EarlyMesh | None

    def ask(self, node_rank: int, link: Link) -> None:
        """Let one node listen to the others and, if it is far, try its ways while it gathers its facts."""
        link.prepare()
        if is_far(link):
            self.question.early.ask(node_rank, link)
        if self.mesh is not None:
            self.mesh.ask(node_rank, link)


def ask_ahead(links: Sequence[Link], nodes: Sequence[Node], settings: Settings, undo: ExitStack) -> Ahead:
    """Ask the head for its port, and foresee where the nodes will find it and each other."""
    question = ask_for_port(links[0], settings)
    undo.callback(question.close)
    mesh = foresee_mesh(nodes) if settings.check else None
    if mesh is not None:
        undo.callback(mesh.close)
    return Ahead(question, mesh)


def prove_ways(
    links: Sequence[Link], nodes: Sequence[Node], facts: Sequence[Facts], settings: Settings, ahead: Ahead
) -> tuple[Proof, MeshFacts | None]:
    """Prove the way to the head, and meanwhile try those between all nodes where their addresses are what they seem.

    Raises:
        LinkLostError: a node does not answer.
    """
    early = ahead.mesh
    if early is None:
        return prove_addresses(links, nodes, facts, settings, ahead.question), None
    works: list[Callable[[], Proof | MeshFacts]] = [
        lambda: prove_addresses(links, nodes, facts, settings, ahead.question),
        lambda: measure_mesh(links, nodes, early.places, settings, early),
    ]
    proof, mesh = fan_out(lambda work: work(), works, len(works))
    assert isinstance(proof, Proof)
    assert isinstance(mesh, MeshFacts)
    return proof, mesh if early.is_of(proof.places) else None
