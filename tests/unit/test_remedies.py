"""Every remedy that a report leads to is a line that a shell on Debian understands, with programs that Debian has."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from test_checks import CASES, read_json, run_case

from orchestrator.values import Finding

# fmt: off
PROGRAMS = frozenset("""
adduser amd-smi aorta-launch apt-get awk bash cat cd chmod chown chronyc conda cp cut df dmesg echo env ethtool export find free git
grep head hostnamectl hostname ibstat id install ip ip6tables iptables journalctl kill ls lspci lsmod mkdir modprobe mount mv nvidia-smi
nvidia-modprobe passwd pip printf ps python python3 rdma readlink reboot restorecon ausearch rm rmdir rocm-smi rsync sed sh sha256sum
ss ssh stat sudo swapoff swapon sysctl systemctl systemd-machine-id-setup tail taskset tee test top touch tr ufw ulimit umask umount uname
unset uptime usermod uv wandb
""".split())  # noqa: SIM905 - a list of words reads better than one of texts
# fmt: on
"""What a remedy may call: Debian's own programs, and those of what the remedy is about."""


def commands_of(remedy: str) -> list[str]:
    """Find the command lines in a remedy: what stands behind ssh, or begins with a program."""
    # A sentence around a command is set apart by "; or", ": " or "; to".
    parts = re.split(r"; (?:or|to|in|if|then|and|otherwise|its|it)\b[^:]*?(?:: |$)|\n", remedy)
    return [part.strip() for part in parts if part and part.split()[0] in PROGRAMS]


def findings() -> list[Finding]:
    found = {finding.remedy: finding for path in CASES for finding in run_case(read_json(path)) if finding.remedy}
    return list(found.values())


@pytest.mark.parametrize("finding", findings(), ids=lambda finding: f"{finding.check}-{finding.status}")
def test_a_shell_understands_the_line(finding: Finding) -> None:
    for line in commands_of(finding.remedy):
        done = subprocess.run(["bash", "-n", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
        words = shlex.split(line)
        if words[0] != "ssh":
            continue
        # What runs on the node is one word of the line.
        done = subprocess.run(["bash", "-n", "-c", words[-1]], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
        assert words[-1].split()[0].rpartition("/")[2] in PROGRAMS, words[-1]


def test_most_remedies_are_commands() -> None:
    told = findings()
    lines = [finding for finding in told if commands_of(finding.remedy)]
    assert len(told) > 100
    assert len(lines) > 0.75 * len(told), [finding.remedy for finding in told if finding not in lines]


def test_the_folder_of_reports_is_there() -> None:
    assert Path(CASES[0]).exists()
