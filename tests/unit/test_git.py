"""What is kept about the code's place in git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.phases.git import GitState, read_git, read_repository


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("lr = 1\n")
    (tmp_path / "blob.bin").write_bytes(bytes(range(256)))
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_a_clean_tree(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert read_git(repository) == GitState(commit=commit, branch="main", dirty=False, diff=b"")


def test_the_diff_brings_a_clean_clone_to_the_state_that_ran(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    (repository / "train.py").write_text("lr = 2\n")
    (repository / "blob.bin").write_bytes(b"\x00\xff" * 300)
    (repository / "staged.py").write_bytes(b"caf\xe9\n")
    git(repository, "add", "staged.py")
    (repository / "new.py").write_text("x")
    state = read_git(repository)
    assert state.dirty
    assert state.diff is not None
    assert b"# untracked: new.py\n" in state.diff
    subprocess.run(["git", "-C", clone, "apply"], input=state.diff, check=True)
    for name in ("train.py", "blob.bin", "staged.py"):
        assert (clone / name).read_bytes() == (repository / name).read_bytes()


def test_an_untracked_file_alone_makes_it_dirty(repository: Path) -> None:
    (repository / "new.py").write_text("x")
    assert read_git(repository).dirty


def test_a_detached_head_has_no_branch(repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    state = read_git(repository)
    assert (state.branch, state.commit is None) == (None, False)


def test_before_the_first_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("x\n")
    git(tmp_path, "add", "a.py")
    state = read_git(tmp_path)
    assert (state.commit, state.branch, state.dirty) == (None, "main", True)
    assert b"+x" in (state.diff or b"")


def test_no_repository_and_no_git(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_git(Path("/proc")) == GitState()
    monkeypatch.setenv("PATH", "/nowhere")
    assert read_git(repository) == GitState()
    assert read_repository(repository).top == tmp_path


def test_git_dir_of_a_hook_is_not_believed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert read_git(repository).branch == "main"


def test_a_huge_diff_is_cut(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.phases.git.DIFF_LIMIT_BYTES", 100)
    (repository / "train.py").write_text("x\n" * 1000)
    diff = read_git(repository).diff
    assert diff is not None
    assert b"# cut off here" in diff
    assert len(diff) < 200
