"""Running aorta-launch as a user of the launch host would, with a HOME that is the test's own."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .programs import ClusterError, find_program, wait_for
from .spec import Spec

COVER_HOME = r"""
set -e
cover=$1 home=$2 hosts=$3 stage=$4 kept=$5
shift 5
mount --bind "$hosts" /etc/hosts
mount -t tmpfs tmpfs "$stage"
for path in $kept; do
  mkdir -p "$stage$path"
  mount --bind "$path" "$stage$path"
done
mount --bind "$cover" "$home"
for path in $kept; do
  mkdir -p "$path"
  mount --bind "$stage$path" "$path"
done
exec "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A launcher that has ended."""

    exit_code: int
    stdout: str
    stderr: str
    seconds: float

    def __str__(self) -> str:
        """Everything that a failed assertion should show."""
        return f"exit code {self.exit_code} after {self.seconds:.1f} s\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


def launcher_words(args: Sequence[str]) -> list[str]:
    """The launcher by the Python that runs the tests."""
    return [sys.executable, "-m", "orchestrator", *args]


def on_launch_host(spec: Spec, words: Sequence[str], cwd: Path) -> list[str]:
    """Wrap a command so that the launch host's HOME and host names are the cluster's.

    OpenSSH looks into the user's HOME as the password file has it, whatever $HOME says, so $HOME alone would let a
    test read and write the real known_hosts.
    """
    # A parent that ignores SIGINT, as a shell's background job does, must not make Ctrl-C untestable.
    words = ["env", "--default-signal=INT", *words]
    if not spec.namespaces:
        return words
    # What the launcher itself needs may lie below the HOME that is covered.
    needed = {Path(spec.project), Path(spec.prefix), Path(spec.base_prefix), cwd}
    kept = sorted(str(path) for path in needed if path.is_relative_to(spec.home) and path != Path(spec.home))
    stage = spec.root / "stage"
    stage.mkdir(exist_ok=True)
    unshare = [find_program("unshare"), "-m", "--propagation", "private", "sh", "-c", COVER_HOME, "sh"]
    return [
        *unshare,
        str(spec.launch_home),
        spec.home,
        str(spec.root / "etc_hosts"),
        str(stage),
        " ".join(kept),
        *words,
    ]


def launch_environ(spec: Spec, changes: Mapping[str, str | None] | None) -> dict[str, str]:
    """The environment of a user on the launch host; None in the changes takes a variable out."""
    dropped = ("AORTA_", "SSH_", "NCCL_", "GLOO_", "TORCH", "PET_", "PYTEST_", "XDG_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    environ |= {"HOME": str(spec.launch_home), "PYTHONPATH": spec.project, "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}
    # All nodes share the kernel log of this machine, and in it stands what earlier tests, and others, ran out of.
    environ["AORTA_LAUNCH_CHECKS_SKIP"] = "kernel-log"
    if not spec.namespaces:
        environ |= loopback_environ(spec)
    for name, value in (changes or {}).items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
    return environ


def loopback_environ(spec: Spec) -> dict[str, str]:
    """What stands in for a covered HOME on plain loopback: an ssh with the cluster's known hosts and nothing else."""
    folder = spec.root / "bin"
    folder.mkdir(exist_ok=True)
    config = folder / "ssh_config"
    config.write_text(f"UserKnownHostsFile {spec.known_hosts}\nGlobalKnownHostsFile /dev/null\nIdentityAgent none\n")
    ssh = folder / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {find_program("ssh")} -F {config} "$@"\n')
    ssh.chmod(0o755)
    # All nodes are one machine there, which is no news.
    return {"PATH": f"{folder}:{os.environ['PATH']}", "AORTA_LAUNCH_CHECKS_SKIP": "kernel-log,same-machine"}


class Launcher:
    """A launcher that runs; its output goes to files, so that nothing blocks when nobody reads."""

    def __init__(
        self, spec: Spec, words: Sequence[str], cwd: Path, env: Mapping[str, str | None] | None = None
    ) -> None:
        folder = spec.root / "launchers" / f"{time.monotonic_ns()}"
        folder.mkdir(parents=True)
        self._words = words
        self._out, self._err = folder / "stdout", folder / "stderr"
        self._begin = time.monotonic()
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                on_launch_host(spec, words, cwd),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=cwd,
                env=launch_environ(spec, env),
                start_new_session=True,
            )

    @property
    def stdout(self) -> str:
        """What it has written so far."""
        return self._out.read_bytes().decode(errors="replace")

    @property
    def stderr(self) -> str:
        """What it has said so far."""
        return self._err.read_bytes().decode(errors="replace")

    @property
    def running(self) -> bool:
        """It has not ended."""
        return self.process.poll() is None

    def wait_for_text(self, text: str, deadline_s: float) -> None:
        """Wait until a text stands in its output; fail at once when it ends without."""
        wait_for(
            lambda: text in self.stdout or text in self.stderr or not self.running,
            deadline_s,
            lambda: f"{text!r} from the launcher\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}",
        )
        if text not in self.stdout and text not in self.stderr:
            raise AssertionError(f"the launcher ended without {text!r}: {self.wait(1)}")

    def press_ctrl_c(self) -> None:
        """Interrupt it as a terminal does: the signal goes to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def send_signal(self, number: int) -> None:
        """Send it a signal, to it alone."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float) -> Completed:
        """Wait for its end; one that does not come in time is killed and told."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            said = f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
            raise AssertionError(f"still running after {timeout_s:g} s: {shlex.join(self._words)}\n{said}") from None
        seconds = time.monotonic() - self._begin
        return Completed(
            exit_code=self.process.returncode, stdout=self.stdout, stderr=self.stderr, seconds=round(seconds, 3)
        )

    def kill(self) -> None:
        """End it and what it has started in its process group."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            self.process.wait()


def write_node_list(
    spec: Spec, path: Path, extra: Mapping[int, str] | None, python: str | None, nodes: Sequence[int]
) -> Path:
    """Write a node list with these nodes in this order."""
    lines = []
    for k in nodes:
        if k not in spec.numbers:
            raise ClusterError(f"there is no node {k} in this cluster of {spec.nodes}")
        address = spec.address(k) if spec.namespaces else f"{spec.address(k)}:{spec.ssh_port}"
        words = [address, f"user={spec.user}", f"key={spec.identity}"]
        if python:
            words.append(f"python={python}")
        lines.append(" ".join([*words, (extra or {}).get(k, "")]).strip())
    path.write_text("\n".join(lines) + "\n")
    return path
