"""Look at the script on the launch host before anything is contacted."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import AortaError, UsageError
from orchestrator.node.probe_script import SOURCE_LIMIT
from orchestrator.node.script_imports import read_imports
from orchestrator.plan.command import check_agent, find_script
from orchestrator.plan.environment import build_defaults
from orchestrator.plan.torchrun import build_script, place_script

if TYPE_CHECKING:
    from orchestrator.settings import Settings
    from orchestrator.values import EnvValue, Node

SAID = (
    *("PYTHONPATH", "PYTHONNOUSERSITE", "PATH", "TMPDIR"),
    *("WANDB_MODE", "WANDB_BASE_URL", "WANDB_CONFIG_DIR", "NETRC"),
)
"""Variables whose values decide what a node has; of all others it is told the names."""


def check_script(settings: Settings) -> None:
    """Refuse a script that the push would not bring to the nodes, and a push that nobody means.

    Raises:
        UsageError: no script or module is given, the file is not in the project, or the project is a HOME or /.
        ConfigError: the script lies outside the project.
    """
    check_agent(settings)
    words = find_script(settings) if settings.agent == "command" else build_script(settings)
    if settings.push:
        _check_project(settings)
    if not words or words[0] == "-m" or not settings.push:
        return
    if settings.agent == "command" and not Path(words[0]).is_absolute():
        place_script(words[0], str(settings.project))
    path = Path(settings.project) / words[0]
    if path.is_file():
        return
    what = "is a directory, not a script" if path.is_dir() else "there is no such script"
    raise UsageError(f"{what} in the project {Path(settings.project).resolve()}", words[0], _remedy(path))


def _check_project(settings: Settings) -> None:
    # Private keys and all there is would go to every node, only because of the folder that one happened to be in.
    project = Path(settings.project).resolve()
    is_home = project == Path.home().resolve() and settings.origins.get("project", "default") == "default"
    if is_home or project == Path("/"):
        raise UsageError(
            f"{'HOME' if is_home else 'the root folder'} is no project to push",
            str(project),
            "start in the project's own folder, name it in launch.project, or use --no-push",
        )


def _remedy(path: Path) -> str:
    if not path.parent.is_dir():
        return "the path of a script is relative to the project (launch.project)"
    names = [entry.name for entry in path.parent.iterdir() if entry.suffix == ".py"]
    near = get_close_matches(path.name, names, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return "the path of a script is relative to the project (launch.project)"


def ask_of_script(settings: Settings, env: Sequence[EnvValue]) -> dict[str, Any]:
    """Build what every node is asked of the script and of what it needs; nothing is refused here."""
    request: dict[str, Any] = {
        "script": "",
        "push": settings.push,
        "require_paths": list(settings.require_paths),
        "given": sorted({value.name for value in (*env, *build_defaults(1, 1, "eth0"))}),
        "given_values": {value.name: value.value for value in env if value.name in SAID},
    }
    words = _find_words(settings)
    if not words:
        return request
    request["script"] = shlex.join(words)
    if settings.push:
        pythonpath = str(request["given_values"].get("PYTHONPATH", ""))
        request["imports"] = read_imports(str(settings.project), words, pythonpath.split(os.pathsep))
        request["source"] = _read_source(Path(settings.project) / words[0]) if words[0] != "-m" else None
    return request


def _find_words(settings: Settings) -> tuple[str, ...]:
    if settings.agent == "command":
        return find_script(settings)
    if not settings.script and not settings.module:
        return ()
    try:
        return build_script(settings)
    except AortaError:
        return ()


def ask_of_node(request: Mapping[str, Any], node: Node) -> dict[str, Any]:
    """Lay what one node's line says over it."""
    said = {name: value for name, value in node.env if name in SAID}
    return {
        **request,
        "given": sorted({*request["given"], *(name for name, _ in node.env)}),
        "given_values": {**request["given_values"], **said},
    }


def _read_source(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return text if len(text) <= SOURCE_LIMIT else None
