"""The one error of the library."""

from __future__ import annotations


class DistributedError(RuntimeError):
    """Something that this library found wrong, told with the rank, the place and what to do."""
