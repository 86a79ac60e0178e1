"""Look at the script on the launch host before anything is contacted."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.plan.torchrun import build_script

if TYPE_CHECKING:
    from orchestrator.settings import Settings


def check_script(settings: Settings) -> None:
    """Refuse a script that the push would not bring to the nodes, and a push that nobody means.

    Raises:
        UsageError: no script or module is given, the file is not in the project, or the project is a HOME or /.
        ConfigError: the script lies outside the project.
    """
    words = build_script(settings)
    if settings.push:
        _check_project(settings)
    if words[0] == "-m" or not settings.push:
        return
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
