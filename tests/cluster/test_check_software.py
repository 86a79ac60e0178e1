"""What `check` finds in the software of real nodes and in what a script needs there; remedies are typed as printed."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from asking import check, try_remedy
from cluster import Cluster, wait_for
from conftest import FreshCluster
from scenes import Scene
from test_preflight import started

pytestmark = pytest.mark.namespaces

SCRIPT = """
import json
import torch.version
import needed_thing
import wandb
import helpers.inner

print("rank", json.dumps("is well"))
"""


def write_module(site: Path, name: str, version: str) -> None:
    """Install a module as pip would leave it."""
    (site / f"{name}.py").write_text(f"__version__ = {version!r}\n")
    metadata = site / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def write_wheel(folder: Path, name: str, version: str) -> None:
    """Build a package as an index would hold it."""
    parts = {
        f"{name}.py": f"__version__ = {version!r}\n",
        f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{name}-{version}.dist-info/RECORD"
    folder.mkdir()
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in parts.items():
            wheel.writestr(path, text)
        wheel.writestr(record, "".join(f"{path},,\n" for path in (*parts, record)))


def give_python(cluster: Cluster, k: int) -> Path:
    """Give a node an environment of its own with the stand-in torch, and what the script imports."""
    root = cluster.home(k) / "env"
    shutil.copytree(Path(cluster.fake_python).parents[1], root, symlinks=True)
    (site,) = root.glob("lib/*/site-packages")
    for name in ("needed_thing", "wandb"):
        write_module(site, name, "2.0.0")
    return site


@contextmanager
def own_pythons(cluster: Cluster) -> Iterator[dict[int, Path]]:
    """Every node has a Python of its own at ~/env; afterwards its HOME is as before."""
    before = {k: set(cluster.home(k).iterdir()) for k in cluster.numbers}
    try:
        yield {k: give_python(cluster, k) for k in cluster.numbers}
    finally:
        for k, names in before.items():
            for path in set(cluster.home(k).iterdir()) - names:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_project(folder: Path) -> None:
    (folder / "helpers").mkdir()
    (folder / "helpers" / "inner.py").write_text("import needed_thing\n")
    (folder / "train.py").write_text(SCRIPT)


def test_modules_packages_logins_and_paths_that_one_node_lacks(nodes3: Cluster, tmp_path: Path) -> None:
    write_project(tmp_path)
    (tmp_path / "run.yaml").write_text("launch: {require_paths: [~/data/set.bin]}\n")
    with own_pythons(nodes3) as sites:
        for k in (1, 2, 3):
            (nodes3.home(k) / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password secret-of-mine\n")
            (nodes3.home(k) / "data").mkdir()
            (nodes3.home(k) / "data" / "set.bin").write_bytes(b"all of it")
        # Node 2 lacks a module, node 3 has another version, no login, no data, and a second torch before its own.
        for path in sites[2].glob("needed_thing*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in sites[3].glob("wandb*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_module(sites[3], "wandb", "1.0.0")
        (nodes3.home(3) / ".netrc").unlink()
        shutil.rmtree(nodes3.home(3) / "data")
        shutil.copytree(sites[3] / "torch", nodes3.home(3) / "extra" / "torch")
        version_py = nodes3.home(3) / "extra" / "torch" / "version.py"
        version_py.write_text(version_py.read_text().replace("2.13.0", "2.12.1"))
        (nodes3.home(3) / ".bashrc").write_text("export PYTHONPATH=$HOME/extra NCCL_P2P_DISABLE=1\n")

        words = ("--config", str(tmp_path / "run.yaml"))
        nodes = nodes3.write_list(tmp_path / "nodes.txt", python="~/env/bin/python")
        checked = check(nodes3, tmp_path, *words, "train.py", nodes=nodes)
        assert checked.exit_code == 3
        assert checked.failing() == {("script-imports", 1), ("require-paths", 2), ("torch-equal", 2)}
        assert checked.found("warn") & {(name, rank) for name in NAMES for rank in range(3)} == {
            ("packages-equal", 1),
            ("packages-equal", 2),
            ("trackers", 2),
            ("torch-single", 2),
            ("session-env", 2),
        }
        imports = checked.finding("script-imports", 1)
        assert "no needed_thing in " in imports["detail"]
        assert "-m pip install needed-thing==2.0.0" in imports["remedy"]
        assert "wandb 1.0.0 -> 2.0.0" in checked.finding("packages-equal", 2)["detail"]
        assert "torch 2.12.1 in " in checked.finding("torch-single", 2)["detail"]
        assert "wandb is not logged in, 2 of 3 nodes are" in checked.finding("trackers", 2)["detail"]
        assert "NCCL_P2P_DISABLE is 1, elsewhere not set" in checked.finding("session-env", 2)["detail"]
        assert "secret-of-mine" not in str(checked.document)

        try_remedy(nodes3, checked.finding("require-paths", 2))
        # The nodes have no way to an index: a folder stands in for it.
        write_wheel(nodes3.home(2) / "wheels", "needed_thing", "2.0.0")
        (nodes3.home(2) / ".config" / "pip").mkdir(parents=True)
        (nodes3.home(2) / ".config" / "pip" / "pip.conf").write_text(
            f"[global]\nno-index = true\nfind-links = {nodes3.spec.home_on_node(2)}/wheels\n"
        )
        try_remedy(nodes3, imports)
        where = nodes3.run_on_launch_host(["sh", "-c", checked.finding("session-env", 2)["remedy"]], cwd=tmp_path)
        assert ".bashrc:1:export PYTHONPATH=$HOME/extra NCCL_P2P_DISABLE=1" in where.stdout
        remedy = checked.finding("torch-single", 2)["remedy"]
        assert "--env PYTHONPATH=" in remedy
        mended = check(
            nodes3, tmp_path, *words, "--env", "PYTHONPATH=", "--env", "WANDB_API_KEY=k", "train.py", nodes=nodes
        )
        assert mended.failing() == set()
        assert mended.status("packages-equal", 1) == mended.status("script-imports", 1) == "ok"
        for name in ("torch-single", "require-paths", "trackers"):
            assert mended.status(name, 2) == "ok", mended.finding(name, 2)
        assert (nodes3.home(3) / "data" / "set.bin").read_bytes() == b"all of it"


NAMES = ("packages-equal", "trackers", "torch-single", "session-env", "proxy", "disks", "user-equal", "kernel-equal")


def test_code_that_differs_without_a_push(nodes3: Cluster, tmp_path: Path) -> None:
    try:
        for k in (1, 2, 3):
            folder = nodes3.home(k) / "code"
            folder.mkdir()
            (folder / "train.py").write_text("import json\nmatch = 1\n")
            (folder / "model.py").write_text(f"layers = {2 if k == 2 else 1}\n")
        (nodes3.home(3) / "code" / "train.py").unlink()
        checked = check(nodes3, tmp_path, "--no-push", "--workdir", "~/code", "train.py")
    finally:
        for k in (1, 2, 3):
            shutil.rmtree(nodes3.home(k) / "code", ignore_errors=True)
    assert checked.failing() >= {("script", 2), ("code-equal", 1)}
    assert checked.finding("script", 2)["detail"] == "no train.py in the working directory"
    assert "model.py" in checked.finding("code-equal", 1)["detail"]
    assert checked.status("script", 0) == "ok"
    assert checked.status("script-imports", 0) == "ok"


def test_variables_of_the_shell_that_would_mislead_a_run_are_kept_from_it(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write(
        "train.py", "import os\nprint('rank', os.environ['RANK'], 'inspects', os.environ.get('PYTHONINSPECT'))\n"
    )
    (tmp_path / "train.py").write_text("pass\n")
    shell = nodes3.home(2) / ".bashrc"
    stranger = "RANK=5 TORCHELASTIC_RUN_ID=by-hand exec cat"
    shell.write_text("export RANK=7 WORLD_SIZE=9 MASTER_PORT=1 PYTHONINSPECT=1\n")
    try:
        with started(nodes3, 3, stranger):
            wait_for(lambda: any("cat" in one.command for one in nodes3.process_table(3)), 10, "the stranger runs")
            checked = check(nodes3, tmp_path, "train.py", nodes=scene.nodes)
            try_remedy(nodes3, checked.finding("other-runs", 2))
        refused = scene.launch("--dry-run", "--ranks", "7", "--nproc-per-node", "1", "train.py")
        done = scene.launch("--ranks", "all", "--nproc-per-node", "1", "train.py")
    finally:
        shell.unlink()
    finding = checked.finding("session-env", 1)
    assert finding["status"] == "ok"
    assert "MASTER_PORT, PYTHONINSPECT, RANK, WORLD_SIZE of the session are kept from the run" in finding["detail"]
    other = checked.finding("other-runs", 2)
    assert other["status"] == "warn"
    assert re.search(r"pid \d+ cat \(rank 5\)", other["detail"]), other
    assert checked.status("other-runs", 0) == "ok"
    assert refused.exit_code == 2
    assert "7 is not within ranks 0 to 2 of this run" in refused.stderr
    assert done.exit_code == 0, done
    for rank in range(3):
        assert f"rank {rank} inspects None" in done.stdout


def test_a_home_that_all_but_one_share_is_told(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(3, shared_home=(1, 2))
    checked = check(cluster, tmp_path)
    assert f"shared by {cluster.address(1)}, {cluster.address(2)}" in checked.finding("disks", 0)["detail"]
    assert checked.finding("disks", 2)["status"] == "warn"
    assert "this one has its own" in checked.finding("disks", 2)["detail"]
    assert checked.failing() == set()
