"""The helper library for training scripts: how it travels to a node, and who finds it there."""

from __future__ import annotations

import io
import json
import marshal
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node import library, start
from orchestrator.node.boot import unpack_modules
from orchestrator.transport.cargo import build_modules, read_library
from orchestrator.transport.program import first_bytes

PROJECT = Path(__file__).parents[2]
SHOW = """
import importlib.util, sys
spec = importlib.util.find_spec("orchestrator.distributed")
print(spec.origin if spec else None)
print(importlib.util.find_spec("orchestrator").origin)
"""


def read_bundle(program: str) -> dict[str, Any]:
    sizes, _, rest = first_bytes(program, "n", {"a": 1}).partition(b"\n")
    parts = [int(size) for size in sizes.split()[:4]]
    assert len(rest) == sum(parts)
    order, modules = rest[sum(parts[:2]) :][: parts[2]], rest[sum(parts[:3]) :]
    return {**json.loads(order), "modules": unpack_modules(modules)}


def find(folder: Path, *words: str, pythonpath: str | None = None) -> list[str]:
    """Ask a Python that has nothing installed, in the environment that an agent would get."""
    before = {} if pythonpath is None else {"PYTHONPATH": pythonpath}
    env = library.put_behind({**before, "HOME": "/"}, str(folder))
    done = subprocess.run([sys.executable, "-S", "-B", *words], env=env, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_only_a_start_brings_it_and_all_of_it() -> None:
    files = {path.stem for path in (PROJECT / "orchestrator" / "distributed").glob("*.py")}
    wanted = {f"orchestrator.distributed.{name}".removesuffix(".__init__") for name in files}
    assert wanted
    sent = read_bundle("start")["modules"]
    assert {name for name in sent if name.startswith("orchestrator.distributed")} == wanted
    assert sent["orchestrator.distributed"] == (PROJECT / "orchestrator/distributed/__init__.py").read_text()
    assert {"orchestrator.node.start", "orchestrator.node.library"} <= set(sent)
    assert not any("distributed" in name for name in read_bundle("probe")["modules"])
    assert read_bundle("start")["request"] == {"a": 1}


def test_it_comes_out_of_a_zip_too(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for path in [*PROJECT.glob("orchestrator/*.py"), *PROJECT.glob("orchestrator/*/*.py")]:
            file.write(path, path.relative_to(PROJECT))
    (tmp_path / "all.zip").write_bytes(packed.getvalue())
    line = "from orchestrator.transport.program import *; from orchestrator.transport.cargo import *; import orchestrator; print(orchestrator.__file__, *read_library(), *build_modules('start'))"
    told = subprocess.check_output(
        [sys.executable, "-S", "-c", line], env={"PYTHONPATH": str(tmp_path / "all.zip")}, text=True, cwd=tmp_path
    ).split()
    assert told[0].startswith(str(tmp_path / "all.zip"))
    assert told[1:] == [*read_library(), *build_modules("start")]


def test_a_run_folder_holds_it_without_the_package_above(tmp_path: Path) -> None:
    modules: dict[str, str | bytes] = {"orchestrator.node.rank_hook_site": "X = 1\n", **read_library()}
    request = {"files": {"a.yaml": "b: 1\n"}, "config": "c: 1\n", "supervisor": ["orchestrator.node.rank_hook_site"]}
    start.prepare_folder(str(tmp_path), request, modules)
    lies = {str(path.relative_to(tmp_path)) for path in (tmp_path / "library").rglob("*.py")}
    assert lies == {
        f"library/orchestrator/distributed/{path.name}" for path in PROJECT.glob("orchestrator/distributed/*.py")
    }
    place = tmp_path / "program/orchestrator/node"
    assert [path.name for path in place.iterdir()] == ["rank_hook_site.py"]
    assert set(marshal.loads((tmp_path / "program/modules").read_bytes())) == {"orchestrator.node.rank_hook_site"}
    assert (tmp_path / "a.yaml").read_text() == "b: 1\n"
    assert (tmp_path / "config.yaml").read_text() == "c: 1\n"
    assert find(tmp_path, "-c", SHOW) == [f"{tmp_path}/library/orchestrator/distributed/__init__.py", "None"]


def test_what_is_pushed_or_installed_wins_whatever_the_order(tmp_path: Path) -> None:
    library.install(str(tmp_path), read_library())
    own = tmp_path / "own" / "orchestrator"
    (own / "distributed").mkdir(parents=True)
    for folder in (own, own / "distributed"):
        (folder / "__init__.py").touch()
    place = f"{own}/distributed/__init__.py"
    assert find(tmp_path, "-c", SHOW, pythonpath=str(own.parent))[0] == place
    (own.parent / "show.py").write_text(SHOW)
    assert find(tmp_path, "own/show.py")[0] == place
    # Behind it, as what is installed lies.
    behind = f"import sys; sys.path.append({str(own.parent)!r})\n"
    assert find(tmp_path, "-c", behind + SHOW)[0] == place


@pytest.mark.parametrize(("before", "after"), [(None, "{}"), ("", "{}"), ("/a:/b", "/a:/b:{}"), ("src", "src:{}")])
def test_it_stands_at_the_end_and_no_empty_part_lets_the_current_folder_in(
    before: str | None, after: str, tmp_path: Path
) -> None:
    env = {} if before is None else {"PYTHONPATH": before}
    assert library.put_behind(env, str(tmp_path)) == env
    library.install(str(tmp_path), read_library())
    assert library.put_behind(env, str(tmp_path))["PYTHONPATH"] == after.format(tmp_path / "library")


def test_a_disk_that_does_not_take_it_is_told(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []

    class Wire:
        def send(self, header: dict[str, Any]) -> None:
            told.append(header)

    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "library").write_text("in the way")
    start.main({"run_folder": str(folder), "run_id": "r"}, Wire(), {**read_library()})  # type: ignore[arg-type]
    (word,) = told
    assert "the run folder cannot be used" in word["error"]
    assert os.fspath(folder / "library") in word["error"]
