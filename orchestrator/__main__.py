"""`python -m orchestrator` is aorta-launch, and so is the installed command."""

import sys


def main() -> int:
    """Run one call; Ctrl-C counts from the first moment, while the program is still being loaded."""
    try:
        from orchestrator.cli import main as run  # noqa: PLC0415 - loading takes long enough for a Ctrl-C

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
