"""The command ends at once, and nothing that Python would have done first is left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_the_command_gives_its_code_and_all_that_it_says() -> None:
    command = [sys.executable, "-m", "orchestrator"]
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("aorta-launch ")
    wrong = subprocess.run([*command, "chek"], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "did you mean check" in wrong.stderr
