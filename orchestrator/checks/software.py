"""Checks of the software on one node."""

from __future__ import annotations

import shlex

from orchestrator.checks.check import Check
from orchestrator.checks.pip import torch_line
from orchestrator.checks.remedies import install, on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.facts import Facts
from orchestrator.settings import Settings
from orchestrator.values import Node

OLDEST_PYTHON = (3, 9)


def check_python(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The interpreter of the run was found and is new enough."""
    if facts.why_unknown("python"):
        return unknown(
            facts.why_unknown("python"), f"name it: launch.python, or python= of {node.name} in the node list"
        )
    if not facts.python:
        return fail(facts.python_trouble or "no python3 was found", _name_python(node, facts, settings))
    seen = f"{facts.python_version} {facts.python} ({facts.python_origin})"
    if version_tuple(facts.python_version)[:2] < OLDEST_PYTHON:
        return fail(f"{seen} is older than 3.9", f"name a newer one: python=/path of {node.name} in the node list")
    return ok(seen)


def _name_python(node: Node, facts: Facts, settings: Settings) -> str:
    if facts.python_origin == "node list python=":
        return f"correct python={node.python} of {node.name} in the node list{f' ({node.where})' if node.where else ''}"
    if facts.python_origin == "launch.python":
        return f"correct launch.python ({settings.python}), or give {node.name} its own python= in the node list"
    if settings.conda_env:
        return on_node(node, f"conda create -y -n {shlex.quote(settings.conda_env)} python=3.12")
    return on_node(node, install(facts, "python3"), terminal=True)


def version_tuple(text: str) -> tuple[int, ...]:
    """Turn the leading figures of a version into numbers."""
    return tuple(int(part) for part in text.partition("+")[0].split(".") if part.isdigit())


def check_torch(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Torch is installed for that interpreter."""
    del settings
    if not facts.python:
        return skip("no interpreter")
    if facts.torch_version is None:
        command = torch_line(node, facts)
        other = f"or name the interpreter that has it: python=/path of {node.name} in the node list"
        return fail(f"no torch in {facts.python} ({facts.python_origin})", f"{command}; {other}")
    return ok(f"torch {facts.torch_version}")


def check_torch_bytecode(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Torch's byte code is there or can be written, so that not every process compiles it anew."""
    del settings
    if facts.torch_version is None:
        return skip("no torch")
    if facts.torch_bytecode is None:
        return unknown("the interpreter did not say")
    if facts.torch_bytecode:
        return ok("compiled, or compiled at the first import")
    folder = shlex.quote(facts.torch_folder)
    return warn(
        "torch is not compiled and its folder is read-only: every process takes about 4 s longer to start",
        on_node(node, f"sudo {shlex.quote(facts.python)} -m compileall -q {folder}", terminal=True),
    )


def check_rsync(node: Node, facts: Facts, settings: Settings) -> Seen:
    """Rsync is there to take the code."""
    if not settings.push:
        return skip("nothing is pushed")
    if facts.rsync:
        return ok(facts.rsync)
    return fail("rsync is not on the PATH", on_node(node, install(facts, "rsync"), terminal=True))


CHECKS = (
    Check(
        name="python",
        headline=True,
        looks_at="the interpreter that runs the script",
        why="the agent would not start",
        fails="none is found, or it is older than 3.9",
        each=check_python,
    ),
    Check(
        name="torch",
        headline=True,
        looks_at="torch in that interpreter, by its metadata",
        why="torchrun is a part of torch",
        fails="it is not installed",
        each=check_torch,
    ),
    Check(
        name="torch-bytecode",
        looks_at="compiled modules of torch",
        why="every process compiles torch anew, about 4 s of a core each",
        warns="they are missing and cannot be written",
        each=check_torch_bytecode,
    ),
    Check(
        name="rsync",
        looks_at="rsync on the PATH",
        why="the code could not be pushed",
        fails="it is missing and code is to be pushed",
        each=check_rsync,
    ),
)
