"""scripts/bench installs what is missing, or fails; with stand-ins for python, id and apt-get."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from test_scripts import PROJECT, PYTHON, Copy

NO_TOOLS = PYTHON.replace("--version) echo", '*deepspeed*) [ -z "$NO_NETWORK" ] ;;\n--version) echo')


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    made = Copy(tmp_path)
    shutil.copy(PROJECT / "scripts" / "bench", made.project / "scripts")
    made.add("python3", NO_TOOLS)
    for name in ("clush", "pdsh"):
        made.add(name, "#!/bin/sh\n")
    assert made.setup().returncode == 0
    return made


def bench(copy: Copy, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    copy.calls_file.write_text("")
    return subprocess.run(
        [copy.bin / "bash", copy.project / "scripts" / "bench", *words],
        env={"PATH": str(copy.bin), "CALLS": str(copy.calls_file), **env},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_the_tools_are_installed_once(copy: Copy) -> None:
    done = bench(copy, "check", "--nodes", "2")
    assert done.returncode == 0, done.stderr
    assert "torchrunx==" in copy.installs[-1]
    assert "--no-build-isolation deepspeed==" in copy.installs[-1]
    assert copy.calls_file.read_text().endswith("-m benchmark check --nodes 2\n")
    again = bench(copy)
    assert (again.returncode, again.stderr, copy.installs) == (0, "", [])


def test_nothing_is_installed_where_nothing_is_measured(copy: Copy) -> None:
    for words in (["--help"], ["--page"]):
        assert bench(copy, *words).returncode == 0
        assert copy.installs == []


def test_a_tool_that_is_missing_is_installed_or_fails_the_benchmark(copy: Copy) -> None:
    (copy.bin / "pdsh").unlink()
    done = bench(copy)
    assert done.returncode == 1
    assert "missing: pdsh; ask root for: apt-get install pdsh" in done.stderr
    copy.add("id", "#!/bin/sh\necho 0\n")
    copy.add("apt-get", '#!/bin/sh\necho "apt-get $*" >>"$CALLS"\n')
    assert bench(copy).returncode == 0
    assert "--no-install-recommends pdsh\n" in copy.calls_file.read_text()


def test_without_a_network_nothing_is_measured_and_the_next_call_tries_again(copy: Copy) -> None:
    done = bench(copy, NO_NETWORK="yes")
    assert done.returncode == 1
    assert "the tools to measure against did not install, see above" in done.stderr
    assert "-m benchmark" not in copy.calls_file.read_text()
    assert bench(copy).returncode == 0
