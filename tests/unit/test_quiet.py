from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.transport import quiet


def test_the_marker_comes_right_before_the_command() -> None:
    words = quiet.build_words(["3", "ssh", "-p", "22", "-l", "me", "host", "rsync", "--server", "."], "M")
    assert words == ["ssh", "-p", "22", "-l", "me", "host", "echo M; exec", "rsync", "--server", "."]
    assert quiet.build_words(["1", "ssh", "host", "rsync"], "M") == ["ssh", "host", "echo M; exec", "rsync"]


@pytest.mark.parametrize("greeting", ["", "welcome", "echo is no marker\n"])
def test_rsync_copies_through_a_shell_that_greets(tmp_path: Path, greeting: str) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "a file").write_bytes(os.urandom(300_000))
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\nprintf '{greeting}'\nshift 3\nexec sh -c \"$*\"\n")
    ssh.chmod(0o755)
    shell = f"{sys.executable} -I -S {quiet.__file__} 1 {ssh}"
    for places in ([f"{tmp_path}/from/", f"u@h:{tmp_path}/to/"], [f"u@h:{tmp_path}/to/", f"{tmp_path}/back/"]):
        subprocess.run(["rsync", "-a", "--protect-args", "-e", shell, *places], check=True, timeout=30)
    assert (tmp_path / "back" / "a file").read_bytes() == (tmp_path / "from" / "a file").read_bytes()


def test_the_exit_code_of_ssh_comes_through(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexit 255\n")
    ssh.chmod(0o755)
    words = [sys.executable, "-I", "-S", quiet.__file__, "1", str(ssh), "host", "rsync"]
    assert subprocess.run(words, timeout=30).returncode == 255
