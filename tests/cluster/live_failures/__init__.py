"""Failures that are made for real on real nodes, as data: what happens, how, and the verdict that is right."""

from __future__ import annotations

from .collectives import COLLECTIVES
from .host import HOST
from .own_errors import OWN_ERRORS
from .places import PLACES
from .play import parametrize, play
from .row import Live
from .stage import Stage
from .torch_ways import TORCH_WAYS

__all__ = ["COLLECTIVES", "HOST", "OWN_ERRORS", "PLACES", "TORCH_WAYS", "Live", "Stage", "parametrize", "play"]
