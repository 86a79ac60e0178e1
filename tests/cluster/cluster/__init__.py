"""N pretend machines on this one, each with a real sshd, for tests and for trying the launcher by hand."""

from __future__ import annotations

from .launcher import Completed, Launcher
from .machines import Cluster, open_cluster, start_cluster, start_guard
from .processes import Process
from .programs import ClusterError, NeedsNamespaces, wait_for
from .real_gpus import ask_smi, find_smi
from .sampler import Leak, PsSampler
from .spec import why_no_namespaces

__all__ = [
    "Cluster",
    "ClusterError",
    "Completed",
    "Launcher",
    "Leak",
    "NeedsNamespaces",
    "Process",
    "PsSampler",
    "ask_smi",
    "find_smi",
    "open_cluster",
    "start_cluster",
    "start_guard",
    "wait_for",
    "why_no_namespaces",
]
