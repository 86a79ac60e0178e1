"""Clusters for tests: `nodes3` for those that leave no trace, `fresh_cluster` for those that break something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, start_cluster, wait_for, why_no_namespaces
from ways import breakable, broken_cluster, way

__all__ = ["breakable", "broken_cluster", "way"]

HERE = Path(__file__).parent
FreshCluster = Callable[..., Cluster]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        item.add_marker(pytest.mark.cluster)
        if item.get_closest_marker("namespaces") and (reason := why_no_namespaces()):
            item.add_marker(pytest.mark.skip(reason=reason))


def wait_settled(cluster: Cluster) -> None:
    # sshd puts itself into the background: what it was started by is there for a moment more.
    wait_for(lambda: not any(cluster.process_tables().values()), 10, "the nodes have settled")


@pytest.fixture(scope="session")
def session_nodes() -> Iterator[Cluster]:
    with start_cluster(3) as cluster:
        wait_settled(cluster)
        yield cluster


@pytest.fixture
def nodes3(session_nodes: Cluster) -> Iterator[Cluster]:
    """Three nodes that many tests use; a test that leaves a process on them fails."""
    before = session_nodes.process_tables()
    yield session_nodes
    session_nodes.wait_process_tables(before, 10)


@pytest.fixture
def fresh_cluster() -> Iterator[FreshCluster]:
    """Nodes of the test's own: `fresh_cluster(3, gpus=8)`; see `cluster.start_cluster` for the words."""
    with ExitStack() as stack:

        def start(nodes: int, **options: Any) -> Cluster:
            cluster = stack.enter_context(start_cluster(nodes, **options))
            wait_settled(cluster)
            return cluster

        yield start
