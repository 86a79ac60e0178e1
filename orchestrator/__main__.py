"""`python -m orchestrator` is aorta-launch, and so is the installed command."""

import atexit
import gc
import os
import signal
import sys
import threading

KEPT = 200_000
"""So many new objects before Python looks for garbage: while it loads us there is none, and looking took a tenth of the time."""


def main() -> int:
    """Run one call and end; Ctrl-C counts from the first moment, while the program is still being loaded."""
    gc.set_threshold(KEPT, 20, 20)
    try:
        from orchestrator.cli import main as run  # noqa: PLC0415 - loading takes long enough for a Ctrl-C

        code = run()
        end(code)
    except KeyboardInterrupt:
        return 130
    return code


def end(code: int) -> None:
    """End as Python does, without taking down module by module what is gone with the process: that takes a twentieth of a second.

    Comes back where an output takes no more: Python has its own words for that.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # All is said; one more Ctrl-C ends what is left of us, and not with the traceback of a library's last callback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading._shutdown()  # type: ignore[attr-defined] # noqa: SLF001 - waits for threads, as Python does first
    atexit._run_exitfuncs()  # noqa: SLF001 - what os._exit leaves out
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
