"""What travels and what does not: the one matcher, alone, against git, and on a real tree."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import PushError
from orchestrator.phases.tree import Tree, read_tree
from orchestrator.plan.ignore import IgnoreRules, Layer, literal_pattern
from orchestrator.settings import Settings

PARTS = st.sampled_from(["a", "b", "build", "x.pt", "y.py", "a b", "#c"])
PATHS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
LINES = st.lists(
    st.sampled_from(
        ["a", "/a", "a/", "!a", "b/**", "**/b", "*.pt", "!x.pt", "/build/", "!/build/", "a/*", "!a/b", "\\#c", "# c", "",
         "a b", "?", "[ab]", "a/**/b", "!*.py", "*"]
    ),
    max_size=6,
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is remembered of a project lies in a HOME of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


def make(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def read(root: Path, **values: Any) -> Tree:
    return read_tree(Settings(**{"project": root, "experiments_dir": root / "experiments", **values}))


def names(root: Path, **values: Any) -> set[str]:
    return {entry.path for entry in read(root, **values).manifest.entries}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(top=LINES, nested=LINES, paths=st.sets(PATHS, min_size=1, max_size=8))
@example(top=["b/**", "!a"], nested=[], paths={"b/a", "b/b"})
@example(top=["*", "!a"], nested=[], paths={"a/a", "a/b"})
@example(top=["*", "!a/"], nested=["!b"], paths={"a/a", "a/b"})
def test_git_agrees_about_every_file(
    tmp_path_factory: pytest.TempPathFactory, top: list[str], nested: list[str], paths: set[str]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    subprocess.run(["git", "init", "-q", root], check=True)
    files = [path for path in sorted(paths) if not any(other.startswith(path + "/") for other in paths)]
    make(root, *files)
    (root / ".gitignore").write_text("\n".join(top))
    if (root / "a").is_dir():
        (root / "a/.gitignore").write_text("\n".join(nested))
    listed = subprocess.run(
        ["git", "-C", root, "ls-files", "-z", "--others", "--exclude-standard"], check=True, capture_output=True
    ).stdout
    ours = {entry.path for entry in read(root).manifest.entries if entry.kind != "dir"}
    assert ours == set(listed.decode().split("\0")) - {""}


def test_what_is_built_in_stays_here(tmp_path: Path) -> None:
    make(
        tmp_path, "train.py", ".git/HEAD", ".venv/x", "sub/__pycache__/m.pyc", "checkpoints/1.pt", "last.ckpt",
        "wandb/run", "experiments/old/run.json", "lib/experiments/code.py", "my-env/pyvenv.cfg", "my-env/lib/x.py",
        "conda/conda-meta/history", ".aorta-nonce-1234", "node_modules/x.js", "model.pt",
    )  # fmt: skip
    tree = read(tmp_path)
    assert {entry.path for entry in tree.manifest.entries} == {"train.py", "lib/experiments/code.py", "model.pt", "sub"}
    assert tree.environments == ("conda", "my-env")


def test_our_own_file_brings_back_what_the_others_leave_out(tmp_path: Path) -> None:
    make(tmp_path, "wandb/settings", "data/vocab.bin", "data/raw.bin", "my-env/pyvenv.cfg", ".aorta-code/marker.json")
    (tmp_path / "data/.gitignore").write_text("*.bin\n.gitignore\n")
    (tmp_path / ".aortaignore").write_text("!wandb/\n!data/vocab.bin\n!my-env/\n!.aorta-code\n.aortaignore\n")
    assert names(tmp_path) == {"wandb/settings", "data/vocab.bin", "my-env/pyvenv.cfg"}


def test_a_setting_has_the_last_word(tmp_path: Path) -> None:
    make(tmp_path, "keep.txt", "drop.txt")
    (tmp_path / ".aortaignore").write_text("!drop.txt\n.aortaignore")
    assert names(tmp_path, ignore=("drop.*",)) == {"keep.txt"}


def test_a_project_below_a_repository_follows_the_rules_above_it(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("/sub/project/secret.txt\n*.log\n")
    (tmp_path / ".git/info/exclude").write_text("mine.txt\n")
    make(tmp_path / "sub/project", "secret.txt", "deep/secret.txt", "a.log", "mine.txt", "train.py")
    assert names(tmp_path / "sub/project") == {"deep/secret.txt", "train.py"}


def test_a_byte_order_mark_is_no_part_of_the_first_pattern(tmp_path: Path) -> None:
    make(tmp_path, "a.txt", "b.txt")
    (tmp_path / ".gitignore").write_bytes(b"\xef\xbb\xbfa.txt\r\n.gitignore\r\n")
    assert names(tmp_path) == {"b.txt"}


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "secret.txt")

    def refuse(path: bytes) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("orchestrator.node.tree_seen.open_file", refuse)
    with pytest.raises(PushError, match="Permission denied") as caught:
        read(tmp_path)
    assert caught.value.where == str(tmp_path / "secret.txt")
    assert ".aortaignore" in caught.value.remedy


def test_a_project_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PushError, match="no folder"):
        read(tmp_path / "nowhere")


def test_the_deciding_line_is_known() -> None:
    rules = IgnoreRules([Layer("git", "sub/.gitignore", ("# why", "*.bin", "!ok.bin"), folder="sub")])
    decision = rules.decide("sub/x.bin", is_folder=False)
    assert decision is not None
    assert (decision.ignored, decision.pattern, decision.source) == (True, "*.bin", "sub/.gitignore")
    kept = rules.decide("sub/ok.bin", is_folder=False)
    assert kept is not None
    assert not kept.ignored
    assert rules.decide("x.bin", is_folder=False) is None
    assert rules.is_ignored("sub/venv/ok.bin")


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="/\0\n\r"), min_size=1).filter(
        lambda t: t not in {".", ".."}
    )
)
def test_a_literal_pattern_matches_its_folder_alone(name: str) -> None:
    rules = IgnoreRules([Layer("setting", "test", (literal_pattern(name),))])
    assert rules.is_ignored(name, is_folder=True)
    assert rules.is_ignored(f"{name}/below")
    assert not rules.is_ignored(f"upper/{name}x", is_folder=True)
