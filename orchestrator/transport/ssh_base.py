"""fabric and paramiko, loaded without what connecting has no use for: it would take as long again.

Whoever needs one of them takes it from here.
"""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.light_imports import left_out


def read_version(package: str) -> str:
    """Read a package's version off the name of the folder that pip leaves; empty where there is none."""
    for place in sys.path:
        for found in Path(place or ".").glob(f"{package}-*.dist-info"):
            return found.name.removesuffix(".dist-info").partition("-")[2]
    return ""


# For invoke's tests (with asyncio and ssl), its own config files, and the version in paramiko's greeting.
with left_out("unittest.mock", "invoke.vendor.yaml", "importlib.metadata", version=read_version):
    import fabric
    import paramiko

__all__ = ["fabric", "paramiko"]
