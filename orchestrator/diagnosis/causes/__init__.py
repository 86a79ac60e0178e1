"""The catalogue of causes: what the words, exits and kernels of a run that ended badly mean, and what to do.

Adding one = one entry in the module of its topic + one file tests/data/causes/<id>.txt with the lines as they are really
printed. docs/failures.md is made from both; tests find an expression that is slow, too greedy or has no example.
Several entries on one line: the highest priority counts. On several lines: causes before hints before victims, then
priority. Priorities 1 to 9 belong to exceptions of which no more is known.
"""

from __future__ import annotations

from orchestrator.diagnosis.cause import Cause
from orchestrator.diagnosis.causes.python import PYTHON

CAUSES: tuple[Cause, ...] = (*PYTHON,)

__all__ = ["CAUSES"]
