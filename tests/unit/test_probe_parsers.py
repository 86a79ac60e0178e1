from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from orchestrator.node import probe_gpus, probe_host, probe_python, smi
from orchestrator.node.portowner import find_owner, parse_holders
from orchestrator.node.probe_command import NoAnswerError, ask
from orchestrator.node.probe_disk import existing_parent

DATA = Path(__file__).parents[1] / "data" / "smi"


def read(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def test_nvidia_idle() -> None:
    gpus, driver = smi.parse_nvidia_gpus(read("nvidia_h100_idle_gpus.csv"))
    assert driver == "580.159.04"
    assert [(gpu["index"], gpu["model"], gpu["memory_total_mib"], gpu["memory_used_mib"]) for gpu in gpus] == [
        (0, "NVIDIA H100 80GB HBM3", 81559, 0)
    ]


def test_nvidia_busy() -> None:
    gpus, _ = smi.parse_nvidia_gpus(read("nvidia_h100_busy_gpus.csv"))
    (app,) = smi.parse_nvidia_apps(read("nvidia_h100_busy_apps.csv"))
    assert gpus[0]["memory_used_mib"] == 4715
    assert (app["pid"], app["used_mib"], app["command"]) == (424, 4706, "python3")
    assert app["uuid"] == gpus[0]["uuid"]


def test_an_h200_that_a_program_has_just_begun_to_use() -> None:
    gpus, driver = smi.parse_nvidia_gpus(read("nvidia_h200_busy_gpus.csv"))
    (app,) = smi.parse_nvidia_apps(read("nvidia_h200_busy_apps.csv"))
    # The card holds more than the program by what the driver takes for it.
    assert (gpus[0]["memory_used_mib"], app["used_mib"], driver) == (39, 14, "580.159.04")
    assert (app["pid"], app["uuid"]) == (723, gpus[0]["uuid"])


def test_what_the_driver_withholds_is_none() -> None:
    gpus, _ = smi.parse_nvidia_gpus(read("nvidia_not_available_gpus.csv"))
    assert [gpu["memory_used_mib"] for gpu in gpus] == [None, None]
    assert [gpu["memory_total_mib"] for gpu in gpus] == [None, 40960]


def test_no_devices_is_an_answer() -> None:
    assert smi.parse_nvidia_gpus(read("nvidia_no_devices.txt")) == ([], "")
    assert smi.parse_nvidia_apps("") == []


@pytest.mark.parametrize("name", ["nvidia_unknown_field.txt", "nvidia_no_driver.txt", "garbage.txt"])
def test_odd_output_of_nvidia_smi_is_told(name: str) -> None:
    with pytest.raises(smi.OddOutputError, match="nvidia-smi said: "):
        smi.parse_nvidia_gpus(read(name))


def test_amd_smi() -> None:
    gpus, driver = smi.parse_amd_gpus(read("amd_list.json"), read("amd_static.json"), read("amd_metric.json"))
    assert driver == "6.10.5"
    assert [(gpu["index"], gpu["model"], gpu["memory_total_mib"], gpu["memory_used_mib"]) for gpu in gpus] == [
        (0, "AMD Instinct MI300X", 196592, 285),
        (1, "AMD Instinct MI300X", 196592, 49152),
    ]
    assert smi.parse_amd_apps(read("amd_process.json")) == [
        {"pid": 4711, "uuid": "1", "used_mib": 49152, "command": "python3"}
    ]


def test_amd_smi_counts_even_when_it_tells_no_more() -> None:
    gpus, driver = smi.parse_amd_gpus(read("amd_list.json"), "", read("garbage.txt"))
    assert [gpu["memory_used_mib"] for gpu in gpus] == [None, None]
    assert driver == ""
    with pytest.raises(smi.OddOutputError, match="amd-smi gave no JSON: Segmentation fault"):
        smi.parse_amd_gpus(read("garbage.txt"), "", "")


def test_rocm_smi() -> None:
    gpus, driver = smi.parse_rocm_gpus(read("rocm_gpus.json"))
    assert driver == "6.3.6"
    assert [(gpu["index"], gpu["memory_used_mib"]) for gpu in gpus] == [(0, 32768), (1, 10)]
    assert smi.parse_rocm_apps(read("rocm_pids.json"))[0]["used_mib"] == 32768
    assert smi.parse_rocm_apps("WARNING: No JSON data to report") == []


def put_tool(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_the_probe_takes_rocm_smi_when_amd_smi_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tool(tmp_path, "amd-smi", "exit 3")
    put_tool(
        tmp_path,
        "rocm-smi",
        f'case "$*" in *showpids*) cat {DATA}/rocm_pids.json;; *) cat {DATA}/rocm_gpus.json;; esac',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    facts = probe_gpus.probe_gpus({})
    assert (facts["gpu_kind"], len(facts["gpus"])) == ("amd", 2)
    assert facts["visible_devices"]["HIP_VISIBLE_DEVICES"] == "1"
    assert "unknown" not in facts


def test_a_driver_that_does_not_answer_is_unknown_and_not_zero_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_tool(tmp_path, "nvidia-smi", f"cat {DATA}/nvidia_no_driver.txt; exit 9")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    facts = probe_gpus.probe_gpus({})
    assert "nvidia-smi ended with 9: NVIDIA-SMI has failed" in facts["unknown"]["gpus"]


def test_a_command_that_hangs_costs_its_limit_and_leaves_no_process(tmp_path: Path) -> None:
    put_tool(tmp_path, "slow", f"sleep 300 & echo $! > {tmp_path}/pid; wait")
    began = time.monotonic()
    with pytest.raises(NoAnswerError, match=r"slow gave no answer within 0.5 s"):
        ask([str(tmp_path / "slow")], 0.5)
    assert time.monotonic() - began < 2
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while _runs(pid) and time.monotonic() < deadline:
        pass
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_memory_limit_of_the_cgroup_is_the_smallest_on_the_way(tmp_path: Path) -> None:
    folder = tmp_path / "user.slice" / "session"
    folder.mkdir(parents=True)
    (tmp_path / "user.slice" / "memory.max").write_text("1073741824\n")
    (folder / "memory.max").write_text("max\n")
    assert probe_host.cgroup_memory_limit("0::/user.slice/session", str(tmp_path)) == 1 << 30
    assert probe_host.cgroup_memory_limit("0::/elsewhere", str(tmp_path)) is None


def test_memory_limit_of_a_version_1_cgroup(tmp_path: Path) -> None:
    folder = tmp_path / "memory" / "docker"
    folder.mkdir(parents=True)
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (folder / "memory.limit_in_bytes").write_text("2147483648\n")
    assert probe_host.cgroup_memory_limit("4:memory:/docker\n3:cpu:/docker", str(tmp_path)) == 2 << 30


def test_meminfo_and_os_release() -> None:
    assert probe_host.parse_meminfo("MemTotal:   16 kB\nHugePages_Total:  0\nbad\n")["MemTotal"] == 16384
    assert probe_host.parse_os_release('NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n') == "Ubuntu 24.04.3 LTS"
    assert probe_host.parse_os_release("") == ""


def test_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    assert existing_parent(str(tmp_path / "a" / "b")) == str(tmp_path)


def make_python(place: Path, torch: str = "") -> str:
    """Make a virtual environment by hand, with as much of torch as the probe reads."""
    bin_folder = place / "bin"
    bin_folder.mkdir(parents=True)
    (place / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
    (bin_folder / "python").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    if torch:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = place / "lib" / version / "site-packages"
        (site / "torch" / "distributed").mkdir(parents=True)
        (site / "torch" / "__init__.py").write_text("raise RuntimeError('nobody may import it')\n")
        (site / "torch" / "version.py").write_text(f"__version__ = {torch!r}\n")
        (site / "torch" / "distributed" / "run.py").write_text('add("--signals-to-handle")\n')
        (site / "nvidia_nccl_cu12-2.27.5.dist-info").mkdir()
    return str(bin_folder / "python")


def test_a_virtual_environment_in_the_working_directory_is_found_and_torch_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_python(tmp_path / ".venv")
    python = make_python(tmp_path / "venv", "2.9.0+cu128")
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    # A file of the working directory must not stand in for a module.
    (tmp_path / "json.py").write_text("raise RuntimeError\n")
    facts = probe_python.probe_python({"workdir": str(tmp_path)})
    assert facts["python"] == python
    assert facts["python_origin"] == "virtual environment of the working directory"
    assert "2.9.0+cu128" in facts["torch_version_py"]
    assert facts["torchrun_flags"] == ["--signals-to-handle"]
    assert facts["nccl_metadata"] == "2.27.5"
    assert facts["torch_bytecode"] is True
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert probe_python.probe_python({"workdir": str(tmp_path)})["torch_bytecode"] is False


def test_a_named_interpreter_counts_alone(tmp_path: Path) -> None:
    make_python(tmp_path / ".venv", "2.9.0")
    facts = probe_python.probe_python({"workdir": str(tmp_path), "python": "/no/such/python"})
    assert facts["python"] == ""
    assert facts["python_origin"] == "node list python="
    assert "/no/such/python: python: No such file or directory" in facts["python_trouble"]
    facts = probe_python.probe_python({"workdir": str(tmp_path), "launch_python": ".venv/bin/python"})
    assert facts["python"] == str(tmp_path / ".venv" / "bin" / "python")
    assert facts["python_origin"] == "launch.python"


def test_a_conda_environment_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    python = make_python(tmp_path / "miniconda3" / "envs" / "train", "2.8.0")
    assert probe_python.probe_python({"conda_env": "train"})["python"] == python
    missing = probe_python.probe_python({"conda_env": "other"})
    assert (missing["python"], missing["python_origin"]) == ("", "conda environment other")


def test_the_login_shell_is_asked_when_the_project_has_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = make_python(tmp_path / "mine", "2.8.0")
    (tmp_path / "mine" / "bin" / "python3").symlink_to("python")
    (tmp_path / ".profile").write_text(f'echo "Welcome!"; PATH={tmp_path}/mine/bin:$PATH\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/sh")
    facts = probe_python.probe_python({"workdir": str(tmp_path / "none")})
    assert Path(facts["python"]).parent == Path(python).parent
    assert facts["python_origin"] == "python3 of the login shell /bin/sh"


def test_what_is_no_python_is_told(tmp_path: Path) -> None:
    put_tool(tmp_path, "python", "cat > /dev/null; echo hello")
    facts = probe_python.probe_python({"python": str(tmp_path / "python")})
    assert "it is no Python 3" in facts["python_trouble"]


def test_the_owner_of_a_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert find_owner(server.getsockname()[1]).startswith(f"pid {os.getpid()} (")
    line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0 100 0\n"
    assert parse_holders("heading\n" + line, 8080) == [("4242", 1000)]
    assert parse_holders("heading\n" + line, 8081) == []
