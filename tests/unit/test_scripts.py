"""The shell scripts of contributors, run in a copy of the project with stand-ins for python, id and apt-get."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SHELL_SCRIPTS = ["scripts/setup", "scripts/check", "scripts/test", "scripts/demo", "scripts/bench", ".ci/run"]
NEEDED = ["bash", "sh", "env", "readlink", "dirname", "cat", "sha256sum", "mkdir", "cp", "rm", "chmod", "tr", "grep"]
PYTHON = """#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in
*version_info*) [ -z "$TOO_OLD" ] ;;
*find_spec*torch) [ -e "$0.torch" ] ;;
*"import pip"*) ;;
*"-m venv"*)
    for venv; do :; done
    mkdir -p "$venv/bin" && cp "$0" "$venv/bin/python"
    ;;
*"--no-index"*) [ -n "$WHEEL" ] ;;
*"pip install"*"torch=="*) : >"$0.torch" ;;
*"pip install"*"[examples]") [ -z "$NO_NETWORK" ] ;;
*"importlib.metadata"*) echo torch==2.13.0+cpu ;;
--version) echo Python 3.11.0 ;;
esac
"""


class Copy:
    """A copy of the project, and a PATH with nothing but what is put into it."""

    def __init__(self, root: Path) -> None:
        self.project, self.bin, self.calls_file = root / "a project", root / "bin", root / "calls"
        (self.project / "scripts").mkdir(parents=True)
        shutil.copy(PROJECT / "scripts" / "setup", self.project / "scripts")
        shutil.copy(PROJECT / "pyproject.toml", self.project)
        self.bin.mkdir()
        for name in NEEDED:
            (self.bin / name).symlink_to(str(shutil.which(name)))
        for name in ("sshd", "ssh", "rsync", "ip", "iptables"):
            self.add(name, "#!/bin/sh\n")
        self.add("python3", PYTHON)
        self.add("id", "#!/bin/sh\necho 1000\n")

    def add(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def setup(self, *, examples: bool = False, **env: str) -> subprocess.CompletedProcess[str]:
        self.calls_file.write_text("")
        script = self.project / "scripts" / "setup"
        with_examples = ["-c", '. "$1"; setup_project; setup_examples', "sh"] if examples else []
        return subprocess.run(
            [self.bin / "bash", *with_examples, script],
            env={"PATH": str(self.bin), "CALLS": str(self.calls_file), **env},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=30,
        )

    @property
    def installs(self) -> list[str]:
        return [line for line in self.calls_file.read_text().splitlines() if "pip install" in line]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


@pytest.mark.parametrize("name", SHELL_SCRIPTS)
def test_a_script_is_executable_and_well_formed(name: str) -> None:
    path = PROJECT / name
    assert path.stat().st_mode & 0o111
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_setup_makes_the_environment_once(copy: Copy) -> None:
    done = copy.setup()
    assert done.returncode == 0, done.stderr
    assert len(copy.installs) == 3
    assert copy.installs[0].endswith(f"-e {copy.project}[dev]")
    again = copy.setup()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert copy.installs == []


def test_setup_installs_again_when_the_dependencies_change(copy: Copy) -> None:
    copy.setup()
    with (copy.project / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert copy.setup().returncode == 0
    (install,) = copy.installs  # PyTorch is there already
    assert "[dev]" in install


def test_torch_comes_from_a_wheel_at_hand_or_from_the_cpu_index(copy: Copy) -> None:
    copy.setup()
    assert "--index-url https://download.pytorch.org/whl/cpu torch==" in copy.installs[-1]
    shutil.rmtree(copy.project / ".venv")
    copy.setup(WHEEL="yes")
    at_hand, rest = copy.installs[-2:]
    assert "--no-index --no-deps torch==" in at_hand
    assert "--index-url" not in rest


def test_what_examples_need_is_installed_once_and_leaves_torch_alone(copy: Copy) -> None:
    assert copy.setup().returncode == 0
    done = copy.setup(examples=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "setup: the packages of examples/\n"
    (install,) = copy.installs
    constraints = copy.project / ".venv" / ".torch-kept"
    assert install.endswith(f"-c {constraints} -e {copy.project}[examples]")
    assert constraints.read_text() == "torch==2.13.0+cpu\n"
    again = copy.setup(examples=True)
    assert (again.returncode, again.stderr, copy.installs) == (0, "", [])
    with (copy.project / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert copy.setup(examples=True).returncode == 0
    assert "[examples]" in copy.installs[-1]


def test_without_a_network_the_packages_of_examples_are_told_and_tried_again_later(copy: Copy) -> None:
    done = copy.setup(examples=True, NO_NETWORK="yes")
    assert done.returncode == 1
    assert "the packages of examples/ did not install, see above; without --all no test needs them" in done.stderr
    assert copy.setup(examples=True).returncode == 0
    assert "[examples]" in copy.installs[-1]


def test_a_torch_that_python_has_already_is_used(copy: Copy) -> None:
    (copy.bin / "python3.torch").touch()
    assert copy.setup().returncode == 0
    assert "--system-site-packages" in copy.calls_file.read_text()


def test_no_python_is_told_with_what_to_install(copy: Copy) -> None:
    done = copy.setup(TOO_OLD="yes")
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed" in done.stderr
    assert "apt-get install python3 python3-venv" in done.stderr
    assert "PYTHON=python2 is no Python" in copy.setup(PYTHON="python2").stderr


def test_a_plain_user_is_told_which_packages_are_missing(copy: Copy) -> None:
    (copy.bin / "rsync").unlink()
    (copy.bin / "ip").unlink()  # of use to root alone
    done = copy.setup()
    assert done.returncode == 1
    assert done.stderr.strip() == "setup: missing: rsync; ask root for: apt-get install rsync"
    assert copy.installs == []


def test_root_gets_the_missing_packages(copy: Copy) -> None:
    (copy.bin / "rsync").unlink()
    copy.add("id", "#!/bin/sh\necho 0\n")
    copy.add("apt-get", '#!/bin/sh\necho "apt-get $*" >>"$CALLS"\n')
    done = copy.setup()
    assert done.returncode == 0, done.stderr
    assert "setup: apt-get install rsync\n" in done.stderr
    calls = copy.calls_file.read_text()
    assert "apt-get update" in calls
    assert "--no-install-recommends rsync\n" in calls
