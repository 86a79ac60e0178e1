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


def make_package(folder: Path, first: str) -> None:
    """A package in PyTorch's place, as far as its import goes."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(f"from torch import _meta_registrations\n{first}\n")
    (folder / "torch" / "_meta_registrations.py").write_text("print('shapes came')\nSHAPE = 7\n")
    (folder / "some_run.py").write_text(
        "import inspect, sys, torch\ndef main():\n    print('main', torch._meta_registrations.SHAPE if '--ask' in sys.argv else '')\nif __name__ == '__main__':\n    main()\n"
    )


def run_package(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    typed = [sys.executable, agent_module.__file__, "some_run", "--node-rank", "1", *words]
    return subprocess.run(typed, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_the_shapes_of_tensors_come_once_they_are_asked_for(tmp_path: Path) -> None:
    make_package(tmp_path, "import inspect; inspect.getmodule(inspect.currentframe())")
    assert run_package(tmp_path).stdout.splitlines() == ["main "]
    assert run_package(tmp_path, "--ask").stdout.splitlines() == ["shapes came", "main 7"]
    asks = "assert _meta_registrations.SHAPE == 7 == _meta_registrations.SHAPE and not hasattr(_meta_registrations, 'other')"
    (tmp_path / "torch" / "__init__.py").write_text(f"from torch import _meta_registrations\n{asks}\n")
    ran = run_package(tmp_path, "--ask")
    assert (ran.stdout.splitlines(), ran.stderr) == (["shapes came", "main 7"], "")


def test_an_import_that_cannot_be_without_them_begins_again_as_with_m(tmp_path: Path) -> None:
    lacking = "if 'SHAPE' not in vars(_meta_registrations): raise RuntimeError('no shapes')"
    make_package(tmp_path, f"{lacking}\nimport os; print(os.environ.get('OPENBLAS_NUM_THREADS'))")
    ran = run_package(tmp_path)
    assert (ran.stdout.splitlines(), ran.stderr, ran.returncode) == (["shapes came", "None", "main "], "", 0)
    (tmp_path / "torch" / "__init__.py").write_text(
        "from torch import _meta_registrations\nraise RuntimeError('broken')\n"
    )
    ran = run_package(tmp_path)
    assert ran.stderr.endswith("RuntimeError: broken\n")
    assert ran.returncode == 1


def test_shapes_that_cannot_come_any_more_are_a_reason_to_begin_again(tmp_path: Path) -> None:
    make_package(tmp_path, "import torch.backend")
    (tmp_path / "torch" / "backend.py").write_text("from torch._meta_registrations import SHAPE\nHELD = 1\n")
    (tmp_path / "torch" / "_meta_registrations.py").write_text("SHAPE = 7\nfrom torch.backend import HELD\n")
    ran = run_package(tmp_path)
    assert (ran.stdout.splitlines(), ran.stderr, ran.returncode) == (["main "], "", 0)


@pytest.mark.parametrize("given", [None, "3"])
def test_openblas_starts_no_threads_while_torchrun_is_imported_and_ranks_see_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", given)
    ask = f"subprocess.run([{sys.executable!r}, '-c', 'import os; print(os.environ.get(\"OPENBLAS_NUM_THREADS\"))'])"
    (tmp_path / "some_run.py").write_text(f"import subprocess\n{ask}\ndef main():\n    {ask}\n")
    assert run_package(tmp_path).stdout.splitlines() == [given or "1", str(given)]


def test_pytorchs_own_torchrun_is_imported_without_them_and_they_can_still_be_had(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "some_run.py").write_text(
        "import sys, threading, torch.distributed.run\n"
        "def main():\n"
        "    print('torch._prims' in sys.modules)\n"
        "    torch._meta_registrations.register_meta\n"
        "    print('torch._prims' in sys.modules, tuple(torch.empty(2, 3, device='meta').matmul(torch.empty(3, 4, device='meta')).shape))\n"
    )
    ran = run_package(tmp_path)
    assert (ran.stdout.splitlines(), ran.stderr) == (["False", "True (2, 4)"], "")


def test_only_torchrun_is_run_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torchrun = ["/usr/bin/python3", "-m", "torch.distributed.run", "--nnodes", "2", "train.py"]
    assert agent.words_of({"argv": torchrun}) == torchrun, "the file is not there"
    (tmp_path / agent.MODULE).parent.mkdir(parents=True)
    (tmp_path / agent.MODULE).touch()
    assert agent.words_of({"argv": torchrun}) == [torchrun[0], str(tmp_path / agent.MODULE), *torchrun[2:]]
    command = ["/usr/bin/python3", "-m", "accelerate.commands.launch", "train.py"]
    assert agent.words_of({"argv": command}) == command
