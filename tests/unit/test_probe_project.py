"""What a node tells of its session, its packages and its files for the run; of secrets only that they are there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from orchestrator.node import probe, probe_places, probe_project, probe_python, probe_script

SECRET = "sesame-4711"


def test_variables_that_reach_the_ranks_are_told_and_secrets_only_by_name() -> None:
    environ = {
        "PATH": "/bin",
        "NCCL_DEBUG": "INFO",
        "NCCL_SOCKET_IFNAME": "eth7",
        "CUDA_VISIBLE_DEVICES": "1",
        "RANK": "3",
        "TORCH_HUB_TOKEN": SECRET,
        "LD_PRELOAD": "x" * 1000,
        "CUDA_CACHE": f"https://me:{SECRET}@host",
        "PYTHONPATH": "/given",
    }
    session = probe_project.session_of(environ, ["PYTHONPATH"])
    assert set(session) == {"NCCL_DEBUG", "RANK", "TORCH_HUB_TOKEN", "LD_PRELOAD", "CUDA_CACHE"}
    assert session["TORCH_HUB_TOKEN"] == session["CUDA_CACHE"] == "(hidden)"
    assert len(session["LD_PRELOAD"]) == probe_project.TEXT_LIMIT


def test_proxies_lose_their_passwords() -> None:
    environ = {"HTTP_PROXY": f"http://me:{SECRET}@proxy:3128/", "https_proxy": "proxy:3128", "no_proxy": "10.0.0.0/8"}
    found = probe_project.proxies_of(environ, ["ALL_PROXY"])
    assert found == {
        "http_proxy": "http://proxy:3128",
        "https_proxy": "proxy:3128",
        "all_proxy": "(given)",
        "no_proxy": "10.0.0.0/8",
    }
    assert probe_project.without_password("http://[::1") == "(not a URL)"


@pytest.mark.parametrize(
    ("environ", "given", "login"),
    [
        ({}, [], None),
        ({"WANDB_API_KEY": SECRET}, [], "WANDB_API_KEY"),
        ({}, ["WANDB_API_KEY"], "WANDB_API_KEY"),
        ({"WANDB_MODE": "Offline"}, [], "WANDB_MODE=offline"),
        ({"WANDB_MODE": "online"}, [], None),
        ({"NETRC": "netrc"}, [], "netrc"),
        ({"NETRC": "netrc", "WANDB_BASE_URL": "https://wandb.example.org:8080"}, [], None),
        ({"WANDB_CONFIG_DIR": "config"}, [], "config/settings (disabled)"),
    ],
)
def test_logins_to_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], given: list[str], login: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "netrc").write_text(f"machine api.wandb.ai login user password {SECRET}\n")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "settings").write_text("[default]\nproject = x\ndisabled = true\n")
    logins = probe_project.logins_of(environ, given)
    assert logins.get("wandb") == login
    assert SECRET not in str(logins)


def test_a_netrc_line_counts_with_a_password_only() -> None:
    text = "machine a\n  login me\n  password x\nmachine b login me\n# machine c\ndefault login me password y\n"
    assert "a" in probe_project.parse_netrc(text)
    assert "b" not in probe_project.parse_netrc(text)
    assert probe_project.parse_netrc("") == []


def test_a_system_is_told_without_its_point_release() -> None:
    ubuntu = 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\nVERSION_ID="22.04"\nID=ubuntu\n'
    assert probe_project.parse_release(ubuntu) == "ubuntu 22.04"
    assert probe_project.parse_release("ID=arch\n") == "arch"
    assert probe_project.parse_release("") == ""
    assert probe_project.parse_libc("glibc 2.36") == "2.36"
    assert probe_project.parse_libc("") == ""


def test_required_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "work" / "data").mkdir(parents=True)
    (tmp_path / "work" / "a.bin").write_bytes(b"12345")
    looked = {
        path: probe_places.look_at(path, str(tmp_path / "work")) for path in ("a.bin", "data", "~", "~/x", "a.bin/x")
    }
    assert (looked["a.bin"]["kind"], looked["a.bin"]["size"], looked["a.bin"]["readable"]) == ("file", 5, True)
    assert (looked["data"]["kind"], looked["data"]["entries"]) == ("folder", 0)
    assert looked["~"]["place"] == str(tmp_path / "home")
    assert looked["~/x"]["kind"] == looked["a.bin/x"]["kind"] == "absent"


MOUNTS = """sysfs /sys sysfs rw 0 0
/dev/sda1 / ext4 rw 0 0
fs.example:/export/home /home nfs4 rw 0 0
tmpfs /home/my\\040data tmpfs rw 0 0
"""


def test_the_mount_of_a_path() -> None:
    mounts = probe_places.parse_mounts(MOUNTS + "broken\n")
    assert len(mounts) == 4
    assert probe_places.find_mount("/home/me", mounts) == ("fs.example:/export/home", "/home", "nfs4")
    assert probe_places.find_mount("/homes", mounts) == ("/dev/sda1", "/", "ext4")
    assert probe_places.find_mount("/home/my data/x", mounts)[2] == "tmpfs"


def test_one_folder_has_one_key_and_another_has_not(tmp_path: Path) -> None:
    mounts = [("fs:/x", str(tmp_path / "net"), "nfs4"), ("/dev/sda1", "/", "ext4")]
    for name in ("net", "one", "two"):
        (tmp_path / name).mkdir()
    disks = {name: probe_places.describe_disk(str(tmp_path / name), mounts) for name in ("net", "one", "two")}
    assert disks["net"]["source"] == "fs:/x"
    assert disks["one"]["source"] == ""
    assert disks["one"] == probe_places.describe_disk(str(tmp_path / "one"), mounts)
    assert disks["one"]["key"] != disks["two"]["key"]


def test_the_hash_of_code_sees_code_alone(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "train.py").write_text("x = 1\n")
    (tmp_path / "lib" / "a.yaml").write_text("a: 1\n")
    request = {"workdir": str(tmp_path), "push": False, "script": "train.py"}
    before = probe_places.probe_code(request)["project"]
    assert (before["code_count"], set(before["code_files"])) == (2, {"train.py", "lib/a.yaml"})
    for folder in (".git", "wandb", "__pycache__", "env"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").write_text("no")
    (tmp_path / "env" / "pyvenv.cfg").touch()
    (tmp_path / "weights.pt").write_bytes(b"data")
    (tmp_path / "large.json").write_bytes(b" " * (probe_places.CODE_BYTES + 1))
    (tmp_path / "dangling.py").symlink_to("nowhere")
    (tmp_path / "dangling.py").unlink()
    assert probe_places.probe_code(request)["project"] == before
    (tmp_path / "train.py").write_text("x = 2\n")
    assert probe_places.probe_code(request)["project"]["code_hash"] != before["code_hash"]
    assert probe_places.probe_code({**request, "push": True}) == {}


def test_a_folder_with_too_much_in_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_places, "CODE_FILES", 2)
    for number in range(3):
        (tmp_path / f"{number}.py").touch()
    answer = probe_places.probe_code({"workdir": str(tmp_path), "push": False, "script": "0.py"})
    assert "more than 2 files of code" in answer["unknown"]["project.code"]


def test_an_interpreter_tells_its_packages_its_modules_and_whether_it_can_read_the_script(tmp_path: Path) -> None:
    (tmp_path / "lib" / "only_by_path").mkdir(parents=True)
    (tmp_path / "lib" / "only_by_path" / "__init__.py").write_text("raise SystemExit('nothing is run')\n")
    request = {
        "workdir": str(tmp_path),
        "script": "train.py",
        "imports": {
            "needed": ["json", "only_by_path", "not_there_at_all"],
            "perhaps": [],
            "sure": True,
            "beside": {},
            "trouble": "",
        },
        "source": "x = 1\ny = = 2\n# ' \" \\ \N{SNOWMAN}\n",
        "given_values": {"PYTHONPATH": "lib"},
    }
    answer = probe_python.ask_python(sys.executable, probe_python.build_question(request, str(tmp_path)))
    assert answer["modules"] == {"json": True, "only_by_path": True, "not_there_at_all": False}
    assert answer["syntax"] == "line 2: invalid syntax"
    assert "pytest" in answer["packages"]
    assert answer["environment"] in ("venv", "conda", "system")
    assert answer["torch_places"][0][2] in (True, False)
    request["source"] = "print('fine')\n"
    again = probe_python.ask_python(sys.executable, probe_python.build_question(request, str(tmp_path)))
    assert again["syntax"] == ""


def test_without_a_push_the_nodes_own_script_is_read(tmp_path: Path) -> None:
    (tmp_path / "my train.py").write_text("import json, absent_thing\n")
    request = {"workdir": str(tmp_path), "script": "'my train.py'", "push": False}
    project = probe_script.probe_script(request)["project"]
    assert (project["workdir_found"], project["script_found"], project["imports_trouble"]) == (True, True, "")
    assert probe_script.imports_of(request, str(tmp_path))["needed"] == ["absent_thing", "json"]
    assert probe_script.source_of(request, str(tmp_path)) == "import json, absent_thing\n"
    gone = probe_script.probe_script({**request, "workdir": str(tmp_path / "gone")})["project"]
    assert (gone["workdir_found"], gone["script_found"]) == (False, False)
    assert probe_script.probe_script({})["project"] == {"script": ""}


def test_groups_add_to_one_table() -> None:
    facts = {"project": {"uid": 1}, "cores": 2}
    probe.lay_over(facts, {"project": {"script": "x"}, "cores": 3})
    assert json.dumps(facts) == '{"project": {"uid": 1, "script": "x"}, "cores": 3}'
