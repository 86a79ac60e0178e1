"""What each verb loads before it does anything: time that its user waits for each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "pydantic", "asyncio", "unittest", "ssl", "importlib.metadata", "markdown_it", "pygments")
"""No verb needs them."""
SSH = ("paramiko", "fabric", "invoke", "cryptography")
JUDGES = ("orchestrator.diagnosis.explain", "orchestrator.diagnosis.decider", "orchestrator.checks", "pathspec", "yaml")


DEAR = ("typing", "json", "re", "socket", "threading", "contextlib", "collections", "signal", "subprocess", "importlib")
"""Each costs a node a good part of a start of Python, for every check and every start."""


def loaded_by(code: str) -> set[str]:
    told = f"import sys\n{code}\nprint(*sys.modules, file=sys.__stdout__)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("code", "without"),
    [
        ("from orchestrator.cli import main; main(['--version'])", (*HEAVY, *SSH, *JUDGES, "rich")),
        ("from orchestrator.cli import main; main(['check', '--help'])", (*HEAVY, *SSH, *JUDGES)),
        ("import orchestrator.settings", (*HEAVY, *SSH, *JUDGES, "typer", "rich")),
        ("import orchestrator.status_actions", (*HEAVY, *SSH, *JUDGES, "rich.live")),
        (
            "import orchestrator.check_actions",
            (*HEAVY, *SSH, "orchestrator.diagnosis", "orchestrator.phases.run", "orchestrator.phases.push", "yaml"),
        ),
        ("import orchestrator.run_actions", (*HEAVY, *SSH, *JUDGES)),
        ("import orchestrator.phases.connect", (*HEAVY, *SSH, *JUDGES, "rich")),
        ("import orchestrator.transport.ssh_link", (*HEAVY, *JUDGES, "rich")),
        ("import orchestrator.facts, orchestrator.checks.catalogue", (*HEAVY, *SSH, "rich")),
    ],
)
def test_nothing_is_loaded_that_the_call_has_no_use_for(code: str, without: tuple[str, ...]) -> None:
    loaded = loaded_by(code)
    assert sorted(name for name in without if name in loaded) == []


@pytest.mark.parametrize("program", ["porter", "probe", "reach", "tree", "mesh", "hold", "start", "serve"])
def test_what_runs_on_every_node_loads_nothing_dear(program: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import orchestrator.node.{program}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert sorted(set(DEAR) & set(done.stdout.split())) == []
