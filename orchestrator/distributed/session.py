"""The group around a block: joined before it, left after it, and a failure in it recorded where others look for it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from orchestrator.distributed import exits, group
from orchestrator.distributed.backends import Timeout
from orchestrator.distributed.place import NodeInfo


@contextlib.contextmanager
def distributed(
    backend: str | None = None, timeout: Timeout = None, *, single_process: bool = False
) -> Iterator[NodeInfo]:
    """Join the group for a block, as setup does, and leave it, as cleanup does.

    A failure in the block is written into the error file of torchrun ($TORCHELASTIC_ERROR_FILE), as its `record` would;
    the others are not waited for, and the end of the process cannot hang on them. sys.exit(0) is an end as good as the
    block's own: every rank has to come to it.

    Raises:
        DistributedError: as setup and cleanup.
    """
    with _recording():
        info = group.setup(backend, timeout, single_process=single_process)
        try:
            yield info
        except SystemExit as left:
            if left.code in (None, 0):
                group.cleanup()
            raise
        group.cleanup()


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception):
            record_failure(error)
        if not isinstance(error, SystemExit) or error.code not in (None, 0):
            exits.hurry()
        group.forget()
        raise


def record_failure(error: BaseException) -> None:
    """Write a failure where torchrun and the launcher look for it; without torchrun nothing happens."""
    try:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler  # noqa: PLC0415 - costs 50 ms

        get_error_handler().record_exception(error)
    except Exception as problem:  # noqa: BLE001 - the failure itself is what matters
        sys.stderr.write(f"the error file could not be written: {problem}\n")
