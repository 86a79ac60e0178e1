"""`python -m orchestrator` is aorta-launch."""

import sys

from orchestrator.cli import main

sys.exit(main())
