"""Tells a mistake in config or environment in one line, where a person and where the launcher looks for it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from workload.schema import ConfigError

EXIT_CODE = 2


@contextlib.contextmanager
def told_in_one_line(program: str) -> Iterator[None]:
    """Turn a ConfigError into one line on stderr, torch's error file and exit code 2."""
    try:
        yield
    except ConfigError as error:
        line = " ".join(str(error).split())
        sys.stderr.write(f"{program}: {line}\n")
        sys.stderr.flush()
        # As torch's @record does it, which leaves a SystemExit alone.
        get_error_handler().record_exception(error)
        sys.exit(EXIT_CODE)
