"""The catalogue of causes: what the words, exits and kernels of a run that ended badly mean, and what to do.

Adding one = one entry in the module of its topic + one file tests/data/causes/<id>.txt with the lines as they are really
printed. docs/failures.md is made from both; tests find an expression that is slow, too greedy or has no example.
Several entries on one line: the highest priority counts. On several lines: causes before hints before victims, then
priority. Priorities 1 to 9 belong to exceptions of which no more is known. In a title or remedy, a part in square
brackets falls away where one of its groups found nothing; a group may have twins in other expressions: what, what2.
"""

from __future__ import annotations

from orchestrator.diagnosis.cause import Cause
from orchestrator.diagnosis.causes.access import ACCESS
from orchestrator.diagnosis.causes.checkpoint import CHECKPOINT
from orchestrator.diagnosis.causes.codes import CODES
from orchestrator.diagnosis.causes.compile import COMPILE
from orchestrator.diagnosis.causes.crash import CRASH
from orchestrator.diagnosis.causes.data import DATA
from orchestrator.diagnosis.causes.disk import DISK, KERNEL_DISK
from orchestrator.diagnosis.causes.environment import ENVIRONMENT
from orchestrator.diagnosis.causes.exits import EXITS
from orchestrator.diagnosis.causes.fabric import FABRIC
from orchestrator.diagnosis.causes.gloo import GLOO
from orchestrator.diagnosis.causes.gpu import GPU
from orchestrator.diagnosis.causes.gpu_environment import GPU_ENVIRONMENT
from orchestrator.diagnosis.causes.kernel import KERNEL
from orchestrator.diagnosis.causes.memory import MEMORY
from orchestrator.diagnosis.causes.nccl import NCCL
from orchestrator.diagnosis.causes.python import PYTHON
from orchestrator.diagnosis.causes.rendezvous import RENDEZVOUS
from orchestrator.diagnosis.causes.rules import RULES
from orchestrator.diagnosis.causes.ssh import SSH
from orchestrator.diagnosis.causes.training import TRAINING
from orchestrator.diagnosis.causes.xid import XID

CAUSES: tuple[Cause, ...] = (
    *PYTHON,
    *CRASH,
    *TRAINING,
    *DATA,
    *CHECKPOINT,
    *COMPILE,
    *ENVIRONMENT,
    *GPU_ENVIRONMENT,
    *GPU,
    *XID,
    *MEMORY,
    *KERNEL,
    *DISK,
    *KERNEL_DISK,
    *NCCL,
    *FABRIC,
    *GLOO,
    *RENDEZVOUS,
    *ACCESS,
    *SSH,
    *EXITS,
    *CODES,
    *RULES,
)

__all__ = ["CAUSES"]
