"""Pieces that many expressions of the catalogue share."""

from __future__ import annotations

RAISED = r"^\s{0,4}(?:\[[\w ]{1,20}\]:? ?)?(?:[A-Za-z_]\w{0,80}\.){0,9}"
"""Where an exception is told: at the start of its line, with or without a rank prefix, the indent of torchrun's list and a module."""

SAID = RAISED + r"\w{0,60}(?:Error|Exception): .{0,300}?"
"""An exception that is raised and says …; the same words in a warning end nothing."""
