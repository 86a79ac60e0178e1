"""Builds the lines that install Python packages for the interpreter of a node, whatever kind of environment it has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from orchestrator.checks.remedies import install, on_node
from orchestrator.facts import Facts
from orchestrator.values import Node

PACKAGE_OF: Mapping[str, str] = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "distutils": "setuptools",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "git": "gitpython",
    "google": "protobuf",
    "hydra": "hydra-core",
    "jwt": "pyjwt",
    "magic": "python-magic",
    "open_clip": "open-clip-torch",
    "pkg_resources": "setuptools",
    "ruamel": "ruamel.yaml",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""Packages that are not called as their modules are."""

BUILDS = re.compile(r"\+(cpu|cu\d+|rocm[\d.]+)$")
"""What the index of PyTorch calls its builds."""
INDEX = "https://download.pytorch.org/whl"


def package_of(module: str) -> str:
    """Name the package that brings a module."""
    return PACKAGE_OF.get(module, module.replace("_", "-").lower())


def package_key(name: str) -> str:
    """Spell a package as the facts do."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pip_line(node: Node, facts: Facts, requirements: Sequence[str]) -> str:
    """Build the line that installs packages on a node from the launch host."""
    builds = dict.fromkeys(match[1] for match in map(BUILDS.search, requirements) if match)
    words = [f"--extra-index-url {INDEX}/{build}" for build in builds]
    return _install(node, facts, [*words, *map(shlex.quote, requirements)])


def torch_line(node: Node, facts: Facts, version: str = "") -> str:
    """Build the line that installs a torch of a given version, from the index that has its build."""
    release, _, build = version.partition("+")
    words = [f"torch=={release}" if release else "torch"]
    words += [f"--index-url {INDEX}/{build}"] if build.startswith(("cpu", "cu", "rocm")) else []
    return _install(node, facts, words)


def _install(node: Node, facts: Facts, words: Sequence[str]) -> str:
    python, project = shlex.quote(facts.python), facts.project
    # The system's own Python takes packages only into the user's folder, and only when told so.
    told = ["--user", "--break-system-packages"] if project.managed else []
    line = " ".join([python, "-m pip install", *told, *words])
    if project.packages is None or "pip" in project.packages:
        return on_node(node, line)
    if project.environment == "system":
        return on_node(node, f"{install(facts, 'python3-pip')} && {line}", terminal=True)
    return on_node(node, f"{python} -m ensurepip && {line}")
