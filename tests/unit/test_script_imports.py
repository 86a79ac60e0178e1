"""What a script imports is read without running it, on the launch host and on the nodes alike."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.script_imports import read_imports
from orchestrator.phases.script import ask_of_node, ask_of_script
from orchestrator.settings import Settings
from orchestrator.values import EnvValue, Node

SCRIPT = """
from __future__ import annotations
import os, numpy.linalg as la
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import only_for_types
else:
    import not_for_types
try:
    import maybe
except ImportError:
    maybe = None
try:
    import needed_inside
finally:
    pass
with open(os.devnull) as _:
    import in_with
class Holder:
    import in_class
def later():
    import in_function
if os.name == "posix":
    import on_condition
import importlib.util
"""


def settings_of(**values: Any) -> Settings:
    return Settings(**values)


def write(root: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_what_happens_at_the_start_is_told_from_what_may_happen_later(tmp_path: Path) -> None:
    write(tmp_path, train=SCRIPT)
    found = read_imports(str(tmp_path), ["train.py"])
    needed = {
        "__future__",
        "os",
        "numpy",
        "typing",
        "not_for_types",
        "needed_inside",
        "in_with",
        "in_class",
        "importlib",
    }
    assert set(found["needed"]) == needed
    assert found["perhaps"] == ["in_function", "maybe", "on_condition"]
    assert (found["sure"], found["trouble"]) == (True, "")


def test_the_projects_own_modules_are_followed_and_not_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "sub", train="import models.net\nfrom tools import reader\nimport plain\nimport wandb\n")
    write(
        tmp_path / "sub", models__net="from . import layers\nfrom .deep import block\n", models__layers="import einops"
    )
    write(tmp_path / "sub", models__deep__block="from ...models.layers import x\nimport timm\n", plain="import train\n")
    (tmp_path / "sub" / "models" / "__init__.py").write_text("import scipy\n")
    (tmp_path / "sub" / "models" / "deep" / "__init__.py").touch()
    write(tmp_path / "sub", tools__reader="def f():\n    import lazy\n")
    # What wandb leaves in the folder is no module.
    (tmp_path / "sub" / "wandb" / "run-1").mkdir(parents=True)
    found = read_imports(str(tmp_path), ["sub/train.py"])
    assert found["needed"] == ["einops", "scipy", "timm", "wandb"]
    assert found["perhaps"] == ["lazy"]


def test_a_module_is_run_from_the_project_with_its_package_and_main(tmp_path: Path) -> None:
    write(tmp_path, package__main="import inner_need", package____main__="")
    (tmp_path / "package").mkdir(exist_ok=True)
    (tmp_path / "package" / "__init__.py").write_text("import package_need\n")
    (tmp_path / "package" / "__main__.py").write_text("import main_need\n")
    assert read_imports(str(tmp_path), ["-m", "package"])["needed"] == ["main_need", "package_need"]
    assert read_imports(str(tmp_path), ["-m", "package.main"])["needed"] == ["inner_need", "package_need"]
    assert read_imports(str(tmp_path), ["-m", "lightning.run"])["needed"] == ["lightning"]


def test_folders_of_pythonpath_hold_modules_of_the_project(tmp_path: Path) -> None:
    write(tmp_path, train="import library\n")
    write(tmp_path / "src", library="import attr\n")
    assert read_imports(str(tmp_path), ["train.py"])["needed"] == ["library"]
    assert read_imports(str(tmp_path), ["train.py"], ["src"])["needed"] == ["attr"]


def test_modules_of_the_project_to_which_no_path_leads_are_told_with_their_folder(tmp_path: Path) -> None:
    write(tmp_path, scripts__train="import package, library, torch\n", package__a="", src__library="")
    found = read_imports(str(tmp_path), ["scripts/train.py"])
    assert found["needed"] == ["library", "package", "torch"]
    assert found["beside"] == {"package": ".", "library": "src"}


def test_a_script_that_changes_where_python_looks_is_not_taken_at_its_word(tmp_path: Path) -> None:
    write(tmp_path / "scripts", train="import sys\nsys.path.insert(0, '..')\nimport library, absent\n")
    write(tmp_path / "lib", library="")
    found = read_imports(str(tmp_path), ["scripts/train.py"])
    assert found["needed"] == ["absent", "sys"]
    assert found["sure"] is False


@pytest.mark.parametrize(
    ("text", "trouble"), [("def f(:\n", "line 1: "), (None, "No such file"), ("x = '\0'", "null bytes")]
)
def test_a_script_that_cannot_be_read_is_said(tmp_path: Path, text: str | None, trouble: str) -> None:
    if text is not None:
        write(tmp_path, train=text)
    found = read_imports(str(tmp_path), ["train.py"])
    assert trouble in found["trouble"]
    assert found["needed"] == []


def test_modules_in_a_circle_come_to_an_end(tmp_path: Path) -> None:
    write(tmp_path, train="import a\n", a="import b\n", b="import a, train, json\n")
    assert read_imports(str(tmp_path), ["train.py"])["needed"] == ["json"]


def test_nodes_are_told_names_of_variables_and_only_the_values_that_decide_what_they_have(tmp_path: Path) -> None:
    write(tmp_path, train="import torch\n")
    settings = settings_of(project=tmp_path, script="train.py", require_paths=("~/x",))
    env = [
        EnvValue(name="WANDB_API_KEY", value="sesame", origin="--env"),
        EnvValue(name="WANDB_MODE", value="offline", origin=""),
    ]
    request = ask_of_script(settings, env)
    assert request["imports"]["needed"] == ["torch"]
    assert request["source"] == "import torch\n"
    assert (request["script"], request["push"], request["require_paths"]) == ("train.py", True, ["~/x"])
    assert {"WANDB_API_KEY", "WANDB_MODE", "OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME"} <= set(request["given"])
    assert request["given_values"] == {"WANDB_MODE": "offline"}
    assert "sesame" not in str(request)
    node = Node(name="a", host="a", env=(("PYTHONPATH", "lib"), ("LD_PRELOAD", "x")))
    of_node = ask_of_node(request, node)
    assert of_node["given_values"] == {"WANDB_MODE": "offline", "PYTHONPATH": "lib"}
    assert "LD_PRELOAD" in of_node["given"]


def test_without_a_push_or_a_script_the_launch_host_reads_nothing(tmp_path: Path) -> None:
    there = ask_of_script(settings_of(project=tmp_path, script="/data/train.py", push=False), ())
    assert there["script"] == "/data/train.py"
    assert "imports" not in there
    assert ask_of_script(settings_of(project=tmp_path), ())["script"] == ""
    # What the push would refuse is told by the launch, not by the question.
    assert ask_of_script(settings_of(project=tmp_path, script="/elsewhere/train.py"), ())["script"] == ""


def test_this_projects_own_script(tmp_path: Path) -> None:
    del tmp_path
    found = read_imports(str(Path(__file__).parents[2]), ["scripts/train.py"])
    assert "torch" in found["needed"]
    assert "workload" not in found["needed"]
    assert set(found["needed"]) <= sys.stdlib_module_names | {"torch"}
