"""The commands of docs/training.md are run, in the page's order, in one project of the reader's."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from cluster import Cluster
from test_readme import BLOCK, PROJECT, words_of

pytestmark = [pytest.mark.namespaces, pytest.mark.torch]
PAGE = PROJECT / "docs" / "training.md"
OVERLAP = "scripts/overlap experiments/"


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text()


def test_every_command_of_the_page_is_one_that_is_run(text: str) -> None:
    tested = {found["command"] for found in BLOCK.finditer(text)}
    shown = set(re.findall(r"^(?:\$ |    )((?:aorta-launch|scripts/|torchrun|python)\S* [^\n]+)$", text, re.MULTILINE))
    assert tested
    assert {command for command in shown if not command.startswith(OVERLAP)} == tested


@pytest.mark.long
@pytest.mark.timeout(400)
def test_what_the_page_tells_to_run_ends_well(nodes3: Cluster, tmp_path: Path, text: str) -> None:
    for name in ("scripts", "config"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    nodes3.write_list(tmp_path / "node_ip_list.txt", python=nodes3.python, nodes=(1, 2))
    for found in BLOCK.finditer(text):
        done = nodes3.run_on_launch_host(words_of(found["command"]), cwd=tmp_path, timeout_s=120)
        assert done.exit_code == 0, (found["command"], done)
        assert "Traceback" not in done.stdout
    runs = sorted((tmp_path / "experiments").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    second = next(run for run in runs if "max_steps: 30" in (run / "config.yaml").read_text())
    first_line = next((second / "outputs").rglob("rank_00_metrics.jsonl")).read_text().splitlines()[0]
    assert '"step": 20' in first_line, first_line
    words = [str(PROJECT / "scripts" / "overlap"), str(runs[-1])]
    done = nodes3.run_on_launch_host(words, cwd=tmp_path)
    assert done.exit_code == 0, done
    assert "rank" in done.stdout
