"""Checks of what the script needs on every node: itself, its modules, the same code."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence

from orchestrator.checks.check import Check
from orchestrator.checks.packages import shorten
from orchestrator.checks.pip import package_key, package_of, pip_line
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, fail, ok, skip, unknown, warn
from orchestrator.facts import Facts
from orchestrator.settings import Settings
from orchestrator.values import Node

Nodes = Sequence[Node]
AllFacts = Sequence[Facts]
NO_SCRIPT = "no script is named"
COMMAND_CHARS = 60


def check_script(node: Node, facts: Facts, settings: Settings) -> Seen:
    """The script is where it will be looked for, and the run's interpreter can read it."""
    del settings
    project = facts.project
    if project.script is None:
        return unknown(facts.why_unknown("project.script") or "the node did not say")
    if not project.script:
        return skip(NO_SCRIPT)
    if project.workdir_found is False or project.script_found is False:
        what = f"no {project.script} in the working directory" if project.workdir_found else "no working directory"
        return fail(what, "push the code: leave --no-push out; or name the folder that has it with --workdir")
    if project.syntax:
        newer = f"or name a newer Python for {node.name}: python=/path in the node list"
        return fail(
            f"Python {facts.python_version} cannot read it: {project.syntax}", f"correct {project.script}, {newer}"
        )
    return ok(f"{project.script}, {'in the working directory' if project.script_found else 'from the project'}")


def compare_imports(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """Every module that the script imports at its start is there for the run's interpreter."""
    del settings
    return [_judge_imports(node, fact, facts) for node, fact in zip(nodes, facts, strict=True)]


def _judge_imports(node: Node, fact: Facts, facts: AllFacts) -> Seen:
    project = fact.project
    if project.script == "":
        return skip(NO_SCRIPT)
    if not fact.python and not fact.why_unknown("python"):
        return skip("no interpreter")
    if project.script is None or project.modules is None or project.imports_trouble:
        why = fact.why_unknown("python") or fact.why_unknown("project.script") or project.imports_trouble
        return unknown(why or "the interpreter did not say")
    # Torch has a check of its own, and the library for training scripts comes with the run.
    missing = [name for name, found in project.modules.items() if not found and name not in ("torch", "orchestrator")]
    if not missing:
        return ok(f"{len(project.modules)} modules of {project.script}")
    return _judge_missing(node, fact, facts, missing)


def _judge_missing(node: Node, fact: Facts, facts: AllFacts, missing: Sequence[str]) -> Seen:
    project = fact.project
    strange = [name for name in missing if name not in project.imports_beside]
    if not strange:
        # The nodes may have a path to it that only leads somewhere when the code is there.
        folders = os.pathsep.join(dict.fromkeys(project.imports_beside[name] for name in missing))
        return warn(
            f"{shorten(missing)} of the project is not where {project.script} looks", f"--env PYTHONPATH={folders}"
        )
    detail = f"no {shorten(strange)} in {fact.python}"
    remedy = _how_to_get(node, fact, facts, strange)
    if not project.imports_sure:
        return warn(f"{detail}, unless it is where {project.script} adds to sys.path", remedy)
    return fail(detail, remedy)


def _how_to_get(node: Node, fact: Facts, facts: AllFacts, missing: Sequence[str]) -> str:
    packages = [name for name in missing if name not in sys.stdlib_module_names or package_of(name) != name]
    if not packages:
        return f"{shorten(missing)} is of another Python than {fact.python_version}: python=/path of {node.name} in the node list"
    pins = dict.fromkeys(_pin(package_of(name), facts) for name in packages)
    return pip_line(node, fact, list(pins))


def _pin(package: str, facts: AllFacts) -> str:
    """Ask for the version that the other nodes have."""
    versions = Counter((fact.project.packages or {}).get(package_key(package)) for fact in facts)
    versions.pop(None, None)
    return f"{package}=={versions.most_common(1)[0][0]}" if versions else package


def compare_code(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """Where nothing is pushed, the code in the working directory is the same on every node."""
    hashes = Counter(fact.project.code_hash for fact in facts if fact.project.code_hash)
    usual = hashes.most_common(1)[0][0] if hashes else ""
    model = next((rank for rank, fact in enumerate(facts) if fact.project.code_hash == usual), 0)
    seen: list[Seen] = []
    for node, fact in zip(nodes, facts, strict=True):
        if settings.push:
            seen.append(skip("the code is pushed and compared then"))
        elif fact.project.script == "":
            seen.append(skip(NO_SCRIPT))
        elif not fact.project.code_hash:
            seen.append(unknown(fact.why_unknown("project.code") or "there is no working directory"))
        elif fact.project.code_hash == usual:
            seen.append(ok(f"{fact.project.code_count} files of code, hash {usual[:8]}"))
        else:
            there = nodes[model].name if hashes[usual] == 1 else f"{hashes[usual]} of {len(nodes)} nodes"
            files = shorten(_differing(fact, facts[model])) or "more files than are named"
            push = "push the code: leave --no-push out"
            seen.append(fail(f"the code differs from {there}: {files}", f"{push}; or bring {node.name} up to date"))
    return seen


def _differing(one: Facts, other: Facts) -> list[str]:
    mine, theirs = one.project.code_files or {}, other.project.code_files or {}
    if not mine or not theirs:
        return []
    return sorted(path for path in {*mine, *theirs} if mine.get(path) != theirs.get(path))


def check_other_runs(node: Node, facts: Facts, settings: Settings) -> Seen:
    """No other torchrun of this user runs on the node."""
    del settings
    strangers = facts.project.strangers
    if strangers is None:
        return unknown(facts.why_unknown("leftovers") or "the node did not say")
    if not strangers:
        return ok("none")
    told = shorten([f"pid {one.pid} {shorten_command(one.command)} (rank {one.rank})" for one in strangers])
    pids = " ".join(str(one.pid) for one in strangers)
    return warn(f"another torchrun's ranks: {told}", on_node(node, f"kill {pids}"))


def shorten_command(command: str) -> str:
    """Give the first words of a command."""
    return command if len(command) <= COMMAND_CHARS else command[:COMMAND_CHARS] + "\N{HORIZONTAL ELLIPSIS}"


CHECKS = (
    Check(
        name="other-runs",
        looks_at="ranks of this user that another torchrun has started",
        why="two runs share cores, memory and GPUs, or an earlier one was never stopped",
        warns="there are some; what aorta-launch left is told by leftovers",
        each=check_other_runs,
    ),
    Check(
        name="script",
        looks_at="the script, and whether the run's interpreter can read it",
        why="every rank would end at once",
        fails="with --no-push it is not there; it has a syntax error for the Python of a node",
        each=check_script,
    ),
    Check(
        name="script-imports",
        looks_at="the modules that the script imports at its start, also through the project's own modules",
        why="one node without a module ends all others minutes later",
        fails="the run's interpreter does not find one",
        warns="the same, where the script changes sys.path itself or the module is the project's own",
        across=compare_imports,
    ),
    Check(
        name="code-equal",
        looks_at="a hash of the code in the working directory, where nothing is pushed",
        why="the ranks would run different programs",
        fails="a node's code differs from most",
        across=compare_code,
    ),
)
