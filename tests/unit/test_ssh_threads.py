from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from orchestrator.transport.ssh import FabricConnection, Session


@pytest.fixture
def eager_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
def test_connections_that_are_built_at_the_same_time_leave_what_they_share_as_it_is() -> None:
    errors: list[str] = []
    session = Session()
    before = dict(session.config)
    built: list[FabricConnection] = []

    def build() -> None:
        for number in range(20):
            kwargs = {"timeout": number}
            try:
                built.append(
                    FabricConnection("node", user=f"u{number}", port=22, config=session.config, connect_kwargs=kwargs)
                )
            except AttributeError as error:
                errors.append(str(error))

    threads = [threading.Thread(target=build) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert dict(session.config) == before
    # Each has its own all the same.
    assert {(one.host, one.user, one.connect_kwargs["timeout"]) for one in built} == {
        ("node", f"u{number}", number) for number in range(20)
    }
