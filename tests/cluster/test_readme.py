"""What README.md shows is what a user sees: its console blocks are run, and their output compared."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import Cluster

pytestmark = [pytest.mark.namespaces, pytest.mark.torch]
PROJECT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^<!-- tested(?P<when>[^\n]*?) -->\n```console\n\$ (?P<command>[^\n]+)\n(?P<shown>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
CRASH = """import os
import time

time.sleep(1)
if os.environ["RANK"] == "3":
    raise ValueError("batch 17 holds no tokens")
time.sleep(60)
"""
ANY = "…"


@pytest.fixture
def project(nodes3: Cluster, tmp_path: Path) -> Path:
    """A folder as the reader has it: the clone, a script of the reader's, a node list of two."""
    for name in ("scripts", "config"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "crash.py").write_text(CRASH)
    nodes3.write_list(tmp_path / "node_ip_list.txt", python=nodes3.python, nodes=(1, 2))
    return tmp_path


def words_of(command: str) -> list[str]:
    """The words of a command as the shell of the launch host starts it, both streams in one."""
    program = shlex.join([sys.executable, "-m", "orchestrator"])
    assert command.startswith("aorta-launch ")
    return ["sh", "-c", f"exec {program} {command.removeprefix('aorta-launch ')} 2>&1"]


@contextmanager
def run_going_on(cluster: Cluster, project: Path) -> Iterator[None]:
    args = ["--config", "config/two_nodes.yaml", "--set", "training.max_steps=100000"]
    launcher = cluster.start_launcher(args, cwd=project)
    launcher.wait_for_text("step 0 of", 60)
    yield
    assert launcher.wait(30).exit_code == 143


def plain(text: str, cluster: Cluster) -> list[str]:
    """Take out of an output what differs from run to run and from machine to machine."""
    for k, address in ((1, "10.0.0.11"), (2, "10.0.0.12")):
        text = text.replace(cluster.address(k), address)
    text = text.replace(cluster.python, "/opt/venv/bin/python3").replace(cluster.spec.home_on_node(1), "/root")
    text = re.sub(r"(?<=\d-)[a-z0-9]{4}\b", "ID", text)
    text = re.sub(r"\d+h \d+m|\d+m \d+s|[\d.]+s\b", "TIME", text)
    text = re.sub(r"[+-]?\d+(\.\d+)*(\+cpu)?", "N", text)
    lines = [re.sub(r" +", " ", line).strip() for line in text.splitlines()]
    # A PyTorch without NumPy says so in two lines.
    return [line for line in lines if "NumPy" not in line and "_conversion_method_template" not in line]


@pytest.mark.parametrize(
    "block", [pytest.param(found, id=found["command"]) for found in BLOCK.finditer((PROJECT / "README.md").read_text())]
)
def test_the_readme_shows_what_a_user_sees(block: re.Match[str], nodes3: Cluster, project: Path) -> None:
    if block["when"]:
        with run_going_on(nodes3, project):
            done = nodes3.run_on_launch_host(words_of(block["command"]), cwd=project)
    else:
        done = nodes3.run_on_launch_host(words_of(block["command"]), cwd=project, timeout_s=120)
    seen, shown = plain(done.stdout, nodes3), plain(block["shown"], nodes3)
    if ANY not in shown:
        # Talk and training output are two streams: between them there is no order.
        assert sorted(seen) == sorted(shown), done.stdout
        return
    cut = shown.index(ANY)
    after = shown[cut + 1 :]
    assert seen[:cut] == shown[:cut], done.stdout
    assert seen[-len(after) :] == after, done.stdout


def test_launch_check_and_kill_stand_on_the_first_screen() -> None:
    commands = [found["command"] for found in BLOCK.finditer((PROJECT / "README.md").read_text())]
    assert [command.split()[1] for command in commands] == ["--nodes", "check", "--nodes", "kill"]
