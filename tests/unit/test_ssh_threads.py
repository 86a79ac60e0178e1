from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import fabric
import pytest

from orchestrator.transport.ssh import _fabric_config


@pytest.fixture
def eager_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
def test_connections_that_are_built_at_the_same_time_do_not_share_a_configuration() -> None:
    errors: list[str] = []

    def build() -> None:
        for _ in range(20):
            try:
                fabric.Connection("node", user="u", port=22, config=_fabric_config())
            except AttributeError as error:
                errors.append(str(error))

    threads = [threading.Thread(target=build) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
