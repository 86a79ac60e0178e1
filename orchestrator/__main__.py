"""`python -m orchestrator` is aorta-launch, and so is the installed command."""

import gc
import sys

KEPT = 200_000
"""So many new objects before Python looks for garbage: while it loads us there is none, and looking took a tenth of the time."""


def main() -> int:
    """Run one call; Ctrl-C counts from the first moment, while the program is still being loaded."""
    gc.set_threshold(KEPT, 20, 20)
    try:
        from orchestrator.cli import main as run  # noqa: PLC0415 - loading takes long enough for a Ctrl-C

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
