"""Level 1: real collectives over the nodes, each alone, all together, and pair by pair until the bad one is known."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.checks.pairs import find_causes
from orchestrator.facts.collectives import CollectivesFacts, WorldFacts
from orchestrator.phases.exercise import Crew, Exercise
from orchestrator.phases.ways import Ways
from orchestrator.phases.worlds import World, Worlds, troubles_of

SECOND_TRY = 3
"""A busy cluster gets more time, once it is known that no way is closed."""
TWO = 2


def run_collectives(crew: Crew, tell: Callable[[str], None]) -> CollectivesFacts:
    """Run everything of level 1; what fails is a value, and nothing is left on the nodes.

    Raises:
        AortaError: a node that cannot start the program at all.
    """
    with Exercise(crew, "collectives", {}) as exercise:
        return _run(Worlds(crew, exercise, tell))


def _run(worlds: Worlds) -> CollectivesFacts:
    worlds.tell("importing torch on every node")
    processes = worlds.prepare(worlds.nodes)
    addresses = tuple(place.address for place in worlds.crew.places)
    found = CollectivesFacts(device=worlds.device, processes=processes, addresses=addresses)
    if any(process.trouble for process in processes):
        return found
    found = found.model_copy(update={"alone": _measure_alone(worlds)})
    if len(worlds.nodes) < TWO:
        return found
    worlds.revive_stuck()
    worlds.tell("collectives over all nodes")
    world, transports = _measure_all(worlds)
    ways = Ways(worlds)
    if world.formed:
        return found.model_copy(update={"world": world, "transports": transports, "pairs": ways.within()})
    pairs = ways.alone([rank for rank, _ in find_causes(world.troubles)])
    largest = None
    if not any(pair.trouble for pair in pairs):
        worlds.tell("collectives over all nodes, with more time: every pair is well")
        worlds.revive_after_failure()
        again, transports = _measure_all(worlds, SECOND_TRY)
        world = again.model_copy(update={"at_first": world.troubles}) if again.formed else world
        largest = None if again.formed else _find_largest(worlds)
    if largest is not None:
        # The next one spoils it: by the number of all, or by its way to one that it has not met.
        pairs = ways.with_one(largest, pairs)
        largest = None if any(pair.trouble for pair in pairs) else largest
    update = {"world": world, "pairs": pairs, "transports": transports, "largest": largest}
    return found.model_copy(update=update)


def _measure_alone(worlds: Worlds) -> tuple[WorldFacts, ...]:
    """Let the processes of each node form a world, all nodes at the same time."""
    several = {rank: worlds.of_nodes([rank]) for rank in worlds.nodes if worlds.counts[rank] > 1}
    if not several:
        return ()
    worlds.tell("collectives on each node alone")
    limit_s = worlds.join_s(max(world.size for world in several.values()))
    troubles: dict[int, str] = dict(troubles_of(worlds.join(list(several.values()), limit_s)))
    formed: dict[int | None, World] = {rank: world for rank, world in several.items() if rank not in troubles}
    measured = worlds.measure(formed)[0] if formed else []
    broken = [
        WorldFacts(node_rank=rank, size=several[rank].size, troubles=((rank, trouble),))
        for rank, trouble in troubles.items()
    ]
    return tuple(sorted([*measured, *broken], key=lambda world: world.node_rank or 0))


def _measure_all(worlds: Worlds, patience: int = 1) -> tuple[WorldFacts, tuple[tuple[int, str], ...]]:
    everybody = worlds.of_nodes(worlds.nodes)
    joined = troubles_of(worlds.join([everybody], worlds.join_s(everybody.size, patience)))
    if joined:
        return WorldFacts(size=everybody.size, troubles=joined), ()
    (world,), reduced = worlds.measure({None: everybody})
    if world.troubles:
        return world.model_copy(update={"formed": False}), ()
    chosen = {said.node_rank: str(said.answer.get("transport", "")) for said in reduced if said.answer}
    return world, tuple((rank, name) for rank, name in sorted(chosen.items()) if name)


def _find_largest(worlds: Worlds) -> int | None:
    """Find how many nodes, from the first, form a world when all of them do not, although each pair does."""
    works, fails = 1, len(worlds.nodes)
    while fails - works > 1:
        middle = (works + fails) // 2
        worlds.tell(f"collectives over the first {middle} nodes")
        worlds.revive_after_failure()
        world = worlds.of_nodes(range(middle))
        if troubles_of(worlds.join([world], worlds.join_s(world.size))):
            fails = middle
        else:
            works = middle
    return works if works > 1 else None
