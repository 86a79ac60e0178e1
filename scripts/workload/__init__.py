"""The parts of the training script; they need PyTorch alone.

The library orchestrator.distributed stands on PYTHONPATH where the launcher started this, or is installed; else it is
taken from the project that these files lie in.
"""

import importlib.util
import sys
from pathlib import Path


def _is_found() -> bool:
    try:
        return importlib.util.find_spec("orchestrator.distributed") is not None
    except ImportError:
        return False


if not _is_found():
    sys.path.append(str(Path(__file__).resolve().parents[2]))
