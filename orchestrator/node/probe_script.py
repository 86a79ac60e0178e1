"""The script as this node has it, where it is not pushed; where it is, the launch host has sent what it knows."""

from __future__ import annotations

import os

from orchestrator.node import tree_state

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    Facts = Dict[str, Any]

SOURCE_LIMIT = 1 << 18
QUOTES = "'\"\\\v\f\x1c\x1d\x1e\x1f"
"""What a shell's words may hold and split() does not know, or takes for a blank."""


def workdir_of(request: Facts) -> str:
    """Make the working directory absolute; a relative one lies below HOME."""
    return tree_state.choose_folder({**request, "workdir": str(request.get("workdir") or "~")})


def words_of(request: Facts) -> List[str]:
    """Give the words of the script: a path, or -m and a module; none where none is named."""
    text = str(request.get("script") or "")
    if text.isascii() and not any(mark in text for mark in QUOTES):
        return text.split()
    import shlex  # noqa: PLC0415 - dear, and few scripts have such a name

    return shlex.split(text)


def imports_of(request: Facts, workdir: str) -> Facts:
    """Give what the script imports: as the launch host has read it, or read here where the code is not pushed."""
    if request.get("imports") is not None:
        sent: Facts = request["imports"]
        return sent
    words = words_of(request)
    if not words or request.get("push", True):
        return {"needed": [], "perhaps": [], "sure": True, "beside": {}, "trouble": ""}
    from orchestrator.node import script_imports  # noqa: PLC0415 - dear, and only where the code is not pushed

    pythonpath = str((request.get("given_values") or {}).get("PYTHONPATH", os.environ.get("PYTHONPATH", "")))
    return script_imports.read_imports(workdir, words, pythonpath.split(os.pathsep))


def source_of(request: Facts, workdir: str) -> Optional[str]:
    """Give the text of the script; None where it cannot be known, or is too long to be looked at."""
    if request.get("source") is not None:
        return str(request["source"])
    words = words_of(request)
    if not words or words[0] == "-m" or request.get("push", True):
        return None
    try:
        with open(os.path.join(workdir, words[0]), encoding="utf-8") as file:
            text = file.read(SOURCE_LIMIT + 1)
    except (OSError, ValueError):
        return None
    return text if len(text) <= SOURCE_LIMIT else None


def probe_script(request: Facts) -> Facts:
    """Say what the script imports perhaps, and whether it is here where it is not pushed."""
    workdir = workdir_of(request)
    words = words_of(request)
    if not words:
        return {"project": {"script": ""}}
    imports = imports_of(request, workdir)
    project: Facts = {
        "script": str(request["script"]),
        "workdir": workdir,
        "perhaps": imports["perhaps"],
        "imports_sure": imports["sure"],
        "imports_beside": imports["beside"],
        "imports_trouble": imports["trouble"],
    }
    if not request.get("push", True):
        project["workdir_found"] = os.path.isdir(workdir)
        if words[0] != "-m":
            project["script_found"] = os.path.isfile(os.path.join(workdir, words[0]))
    return {"project": project}
