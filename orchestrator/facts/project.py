"""What the script needs: modules, packages, paths, trackers, the code itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from orchestrator.facts.group import FactGroup


class TorchPlace(FactGroup):
    """One folder in which the interpreter would find torch, in its own order."""

    folder: str
    version: str = ""
    """What version.py says; empty where only metadata is left."""
    metadata: tuple[str, ...] = ()
    """Versions by the installed metadata; two after an upgrade that broke off."""
    own: bool = True
    """It belongs to the environment; False for the user's own packages and what PYTHONPATH names."""


class PathState(FactGroup):
    """What stands at a path that the run requires."""

    path: str
    place: str
    kind: str
    """file, folder, special, absent or unknown."""
    readable: bool = False
    size: int | None = None
    entries: int | None = None
    trouble: str = ""


class Disk(FactGroup):
    """The file system below a folder."""

    path: str
    mount: str = ""
    kind: str = ""
    source: str = ""
    """Empty for a disk of the node's own."""
    key: str = ""
    """Equal on two nodes for the very same folder."""


class Stranger(FactGroup):
    """A rank of a torchrun that we did not start."""

    pid: int
    rank: str = ""
    command: str = ""


class ProjectFacts(FactGroup):
    """What the script needs: modules, packages, paths, trackers, the code itself."""

    script: str | None = None
    """As it was named, "-m module" too; empty when none was."""
    workdir: str = ""
    """Where the code lies or will lie: of projects with one name each has a folder of its own."""
    workdir_found: bool | None = None
    """Only looked for where nothing is pushed, as is the script."""
    script_found: bool | None = None
    syntax: str | None = None
    """What the run's interpreter cannot read in it; empty when it can read all."""
    modules: Mapping[str, bool] | None = None
    """What it imports at its start, and whether that interpreter finds it."""
    perhaps: tuple[str, ...] = ()
    """What it imports later, or only under a condition."""
    imports_sure: bool = True
    """False: it changes sys.path itself."""
    imports_beside: Mapping[str, str] = field(default_factory=dict)
    """Modules of the project that no path leads to, and the folder that holds them."""
    imports_trouble: str = ""
    packages: Mapping[str, str] | None = None
    environment: str = ""
    """conda, venv or system."""
    managed: bool | None = None
    """The system forbids pip to install here."""
    torch_places: tuple[TorchPlace, ...] = ()
    given: tuple[str, ...] = ()
    """Names of the variables that the run gets from the launch host."""
    session: Mapping[str, str] | None = None
    proxies: Mapping[str, str] | None = None
    logins: Mapping[str, str] | None = None
    """By what this user is logged in, by the module that speaks to the service."""
    paths: tuple[PathState, ...] | None = None
    home_disk: Disk | None = None
    code_disk: Disk | None = None
    code_hash: str = ""
    code_count: int | None = None
    code_files: Mapping[str, str] | None = None
    strangers: tuple[Stranger, ...] | None = None
    uid: int | None = None
    distribution: str = ""
    glibc: str = ""
