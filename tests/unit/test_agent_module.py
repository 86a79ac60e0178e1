"""What stands in the place of `python -m torch.distributed.run`: the same words, folder, output and exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.node import agent, agent_module

BODY = """
import atexit, gc, os, sys, threading, time
atexit.register(lambda: print("exit functions were run"))
here = sys.path[0]
def serve():
    time.sleep(1.5)
    print("others were served")
def main():
    if "--serve" in sys.argv:
        threading.Thread(target=serve).start()
    print(gc.isenabled(), here == os.getcwd(), sys.argv)
{ending}
"""


def run(folder: Path, ending: str, *words: str) -> subprocess.CompletedProcess[str]:
    lines = "\n".join("    " + line for line in ending.splitlines())
    (folder / "some_run.py").write_text(BODY.format(ending=lines))
    typed = [sys.executable, agent_module.__file__, "some_run", *words]
    return subprocess.run(typed, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_it_is_run_as_with_m(tmp_path: Path) -> None:
    given = ["--node-rank", "1", "--", "train.py", "--", "x y"]
    ran = run(tmp_path, "return None", *given)
    words = [str(tmp_path / "some_run.py"), *given]
    assert ran.stdout.splitlines() == [f"True True {words}", "exit functions were run"]
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_head_takes_its_time_at_a_good_end(tmp_path: Path) -> None:
    for rank, ending, told in (("0", "return 0", True), ("0", "return 1", False), ("1", "return 0", False)):
        ran = run(tmp_path, ending, "--nnodes", "2", "--node-rank", rank, "--serve")
        assert ("others were served" in ran.stdout) is told


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("return 3", 3, ""),
        ("sys.exit(4)", 4, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('no such script')", 1, "no such script\n"),
        ("os.kill(os.getpid(), 15)", -15, ""),
    ],
)
def test_its_end_is_what_python_would_make_of_it(tmp_path: Path, ending: str, code: int, said: str) -> None:
    ran = run(tmp_path, ending)
    assert (ran.returncode, ran.stderr) == (code, said)


def test_an_exception_is_told_as_python_tells_it(tmp_path: Path) -> None:
    ran = run(tmp_path, "raise LookupError('nobody came')")
    assert ran.returncode == 1
    assert ran.stderr.startswith("Traceback (most recent call last):\n")
    assert ran.stderr.endswith("LookupError: nobody came\n")
    assert "exit functions were run" in ran.stdout


def test_only_torchrun_is_run_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torchrun = ["/usr/bin/python3", "-m", "torch.distributed.run", "--nnodes", "2", "train.py"]
    assert agent.words_of({"argv": torchrun}) == torchrun, "the file is not there"
    (tmp_path / agent.MODULE).parent.mkdir(parents=True)
    (tmp_path / agent.MODULE).touch()
    assert agent.words_of({"argv": torchrun}) == [torchrun[0], str(tmp_path / agent.MODULE), *torchrun[2:]]
    command = ["/usr/bin/python3", "-m", "accelerate.commands.launch", "train.py"]
    assert agent.words_of({"argv": command}) == command
