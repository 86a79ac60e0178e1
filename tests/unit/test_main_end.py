"""The command ends at once, and nothing that Python would have done first is left out."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LATE = """
import atexit, sys, threading, time
from orchestrator.__main__ import end

def late():
    time.sleep(0.3)
    print("a thread")

class Left:
    def __del__(self):
        print("taken down")

left = Left()
atexit.register(print, "at exit")
threading.Thread(target=late).start()
print("said", end=" ")
end(7)
"""
FULL = """
import sys
from orchestrator.__main__ import end
print("does not fit")
end(0)
"""

SLOW = """
import atexit, time
from orchestrator.__main__ import end
def wait():
    print("last callback", flush=True)
    time.sleep(1.0)
atexit.register(wait)
end(130)
"""


def run(code: str, line: str = 'exec "$0" -c "$1"') -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", line, sys.executable, code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )


def test_threads_and_what_was_registered_come_first_and_modules_are_not_taken_down() -> None:
    done = run(LATE)
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == "said a thread\nat exit\n"


def test_an_output_that_takes_no_more_is_told_as_python_tells_it() -> None:
    done = run(FULL, 'exec "$0" -c "$1" >/dev/full')
    assert done.returncode != 0
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize(("ignored", "code"), [(False, -signal.SIGINT), (True, 130)])
def test_one_more_ctrl_c_at_the_end_says_nothing(ignored: bool, code: int) -> None:  # noqa: FBT001 - a parameter of the test
    line = ["env", "--ignore-signal=INT" if ignored else "--default-signal=INT", sys.executable, "-c", SLOW]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as ending:
        assert ending.stdout is not None
        assert ending.stdout.readline() == "last callback\n"
        ending.send_signal(signal.SIGINT)
        said, complaints = ending.communicate(timeout=60)
    assert (ending.returncode, said, complaints) == (code, "", "")


def test_the_command_gives_its_code_and_all_that_it_says() -> None:
    command = [sys.executable, "-m", "orchestrator"]
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("aorta-launch ")
    wrong = subprocess.run([*command, "chek"], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "did you mean check" in wrong.stderr
