"""The benchmark of scripts/bench: aorta-launch and what people use instead, side by side on the same nodes."""

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
# The pretend machines of the tests are the nodes of the benchmark too.
if str(PROJECT / "tests" / "cluster") not in sys.path:
    sys.path.insert(0, str(PROJECT / "tests" / "cluster"))
