"""What --env-file holds is seen by the ranks alone: not by `ps`, not in a record, not in a log of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster, PsSampler, wait_for
from scenes import Scene, grep_tree, wait_running

SECRET = "s3cr3t-value-of-the-test"
OTHER = 'an other $secret with "quotes"'

USE = """
import hashlib, json, os, time
told = {name: hashlib.sha256(os.environ[name].encode()).hexdigest() for name in ("WANDB_API_KEY", "PLAIN_NAME")}
out = os.environ["AORTA_OUTPUT_DIR"]
json.dump(told, open(os.path.join(out, f"rank_{int(os.environ['RANK']):02d}.json"), "w"))
time.sleep(600)
"""


def test_the_sampler_catches_a_planted_leak() -> None:
    with PsSampler(SECRET) as sampler:
        words = [sys.executable, "-c", "import time; time.sleep(0.2)", SECRET]
        subprocess.run(words, check=True)
        wait_for(lambda: sampler.samples > 5, 10, "it samples")
    assert {leak.secret for leak in sampler.leaks} == {SECRET}


@pytest.mark.namespaces
def test_secrets_are_seen_by_nobody_during_push_start_and_kill(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("use.py", USE)
    secrets = tmp_path / "secrets.env"
    secrets.write_text(f"WANDB_API_KEY={SECRET}\nexport PLAIN_NAME='{OTHER}'\n")
    with PsSampler(SECRET, OTHER) as sampler:
        launcher = scene.start("-v", "--env-file", str(secrets), "use.py")
        wait_running(launcher, 3)
        pushed = sampler.samples
        assert scene.verb("kill", scene.runs()[-1].name, "--grace", "3s").exit_code == 0
        done = launcher.wait(60)
        assert done.exit_code == 143, done
        dry = scene.launch("--dry-run", "--env-file", str(secrets), "use.py")
        commands = scene.launch("--print-commands", "--env-file", str(secrets), "use.py")
    print(
        f"sampler: {sampler.rate_hz:.0f} Hz, longest gap {sampler.longest_gap_s * 1000:.0f} ms, {pushed} samples to the start"
    )
    assert not sampler.leaks
    assert sampler.rate_hz >= 20
    assert [len(set(answer.values())) for answer in scene.answers()] == [2, 2, 2], "the ranks did not get them"

    wanted = [SECRET.encode(), OTHER.encode(), json.dumps(OTHER)[1:-1].encode()]
    said = done.stdout + done.stderr + dry.stdout + dry.stderr + commands.stdout + commands.stderr
    assert not [text for text in wanted if text.decode() in said]
    assert "WANDB_API_KEY" in dry.stdout
    assert "WANDB_API_KEY" in commands.stdout
    assert grep_tree(scene.experiment, wanted) == []
    assert grep_tree(nodes3.launch_home, wanted) == []
    for k in nodes3.numbers:
        assert (nodes3.home(k) / ".aorta/runs" / scene.experiment.name).exists()
        assert grep_tree(nodes3.home(k), wanted) == []
    shown = {value["name"]: value for value in scene.run_json()["plan"]["nodes"][0]["env"]}
    assert shown["WANDB_API_KEY"]["secret"]
    assert shown["PLAIN_NAME"]["secret"]
