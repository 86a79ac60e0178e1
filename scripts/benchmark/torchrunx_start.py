"""Starts a script through torchrunx, which takes functions, one rank a node. Words: NODE,NODE,... SCRIPT [WORD...]."""

from __future__ import annotations

import sys


def run_script(words: list[str]) -> None:
    """Run the script in a rank."""
    import runpy  # noqa: PLC0415 - runs in the rank, where this file is not
    import sys as rank_sys  # noqa: PLC0415

    rank_sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    import torchrunx  # type: ignore[import-not-found]  # is in the environment of the benchmark's tools alone

    launcher = torchrunx.Launcher(hostnames=sys.argv[1].split(","), workers_per_host=1, backend=None)
    launcher.run(run_script, sys.argv[2:])
