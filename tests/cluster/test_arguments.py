"""Words and values that a shell would take apart arrive byte for byte at the script, on every node and in every shell."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cluster import Cluster
from conftest import FreshCluster, wait_settled
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scenes import Scene

TELL = """
import json, os, sys
# surrogateescape: bytes that are no UTF-8 come as they are
told = {"argv": [os.fsencode(word).hex() for word in sys.argv[1:]]}
told["env"] = {name: os.fsencode(value).hex() for name, value in os.environ.items() if name.startswith("T_")}
json.dump(told, open(os.path.join(os.environ["AORTA_OUTPUT_DIR"], f"rank_{int(os.environ['RANK']):02d}.json"), "w"))
"""
NASTY = [
    *("", " ", "a b", "  two  spaces ", "'", '"', "'\\''", '\\"', "\\", "\\\\", "a\\ b", "tab\there"),
    *("$HOME", "${HOME}", "$(touch /tmp/pwned)", "`touch /tmp/pwned`", "$((1+1))", "!!", "!history", "~", "~root", "*", "?", "[a-z]"),
    *("new\nline", "\n", "cr\rlf\r\n", "trailing\n", ";ls", "|cat", "&&true", ">out", "<in", "2>&1", "#comment", "{a,b}", "(x)"),
    *("-", "--", "-x", "--nodes", "--config=x", "--help", "-m", "--env", "=", "a=b", "%s", "%n", "\x01\x1b[31m", "\x7f"),
    *("ä", "\u65e5\u672c\u8a9e", "\U0001f600", "e\u0301", "\u202eright", "\u2028", "x" * 20000, "{not_ours}", "{{", "}", "{run_id}", "{"),
]  # fmt: skip
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40) | st.sampled_from(NASTY)


def check_vectors(scene: Scene, words: list[str], values: list[str], ranks: int) -> None:
    """Launch once and compare what every rank got."""
    env = {f"T_{number}": value for number, value in enumerate(values)}
    flags = [part for name, value in env.items() for part in ("--env", f"{name}={value}")]
    done = scene.launch(*flags, "tell.py", *words)
    assert done.exit_code == 0, done
    root = scene.runs()[-1]
    files = sorted(root.rglob("outputs/**/rank_*.json"))
    assert len(files) == ranks
    for file in files:
        told = json.loads(file.read_text())
        assert [bytes.fromhex(word).decode() for word in told["argv"]] == words
        assert {name: bytes.fromhex(value).decode() for name, value in told["env"].items()} == env
    assert json.loads((root / "run.json").read_text())["plan"]["script"] == ["tell.py", *words]


def test_every_nasty_word_at_once(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path)
    scene.write("tell.py", TELL)
    check_vectors(scene, NASTY, NASTY, 3)
    assert not Path("/tmp/pwned").exists()
    for k in nodes3.numbers:
        assert nodes3.ssh(k, "ls /tmp/pwned").returncode != 0


@pytest.mark.timeout(300)
def test_words_that_hypothesis_finds(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 3])
    scene.write("tell.py", TELL)

    @settings(
        max_examples=2,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # shrinking would launch a hundred times
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(WORDS, min_size=20, max_size=60), st.lists(WORDS, min_size=10, max_size=30))
    def check(words: list[str], values: list[str]) -> None:
        check_vectors(scene, words, values, 2)

    check()


@pytest.mark.long
def test_words_of_the_config_arrive_as_they_stand(nodes3: Cluster, tmp_path: Path) -> None:
    scene = Scene(nodes3, tmp_path, nodes=[1, 2])
    scene.write("tell.py", TELL)
    words = [word for word in NASTY if "{" not in word and word.isprintable() and len(word) < 100]
    section = {"script": "tell.py", "args": words, "env": {f"T_{n}": word for n, word in enumerate(words)}}
    scene.write("c.yaml", json.dumps({"launch": section}, ensure_ascii=False))
    done = scene.launch("--config", "c.yaml")
    assert done.exit_code == 0, done
    for told in scene.answers():
        assert [bytes.fromhex(word).decode() for word in told["argv"]] == words
        assert [bytes.fromhex(told["env"][f"T_{n}"]).decode() for n in range(len(words))] == words


NOISE = 'echo "Welcome to $(hostname)!"; printf "no newline"\n'
RC = {"bash": ".bashrc", "dash": ".profile", "fish": ".config/fish/config.fish", "csh": ".cshrc", "tcsh": ".tcshrc"}


@pytest.mark.namespaces
def test_login_shells_with_a_noisy_start_do_no_harm(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    shells = [path for name in ("bash", "dash", "fish", "csh", "tcsh", "zsh") if (path := shutil.which(name))]
    cluster = fresh_cluster(len(shells))
    for k, shell in enumerate(shells, 1):
        name = Path(shell).name
        rc = cluster.home(k) / RC.get(name, f".{name}rc")
        rc.parent.mkdir(parents=True, exist_ok=True)
        rc.write_text("" if "csh" in name else "echo noise >&2\n")
        passwd = cluster.folder(k) / "etc/passwd"
        lines = passwd.read_text().splitlines()
        passwd.write_text(
            "\n".join(f"{line.rpartition(':')[0]}:{shell}" if line.startswith("root:") else line for line in lines)
            + "\n"
        )
    # What is mounted over /etc holds what the file held then, so look: the shell is really another one.
    shown = [cluster.ssh(k, "echo; echo $0").stdout.split()[-1] for k in cluster.numbers]
    print("login shells:", shown)
    assert all(Path(shell).name in seen for shell, seen in zip(shells, shown, strict=True))
    wait_settled(cluster)  # those logins have ended
    scene = Scene(cluster, tmp_path)
    scene.write("tell.py", TELL)
    check_vectors(scene, NASTY, NASTY, len(shells))

    # A greeting on stdout would end every rsync: ours is dropped before the stream begins, both ways.
    (cluster.home(1) / ".bashrc").write_text(NOISE)
    scene.write("new.py", "")
    loud = scene.launch("tell.py", "a  b")
    assert loud.exit_code == 0, loud
    assert "did not come" not in loud.stderr
    assert (cluster.home(1) / ".aorta/code" / scene.project.name / "new.py").exists()
    assert json.loads((scene.runs()[-1] / "run.json").read_text())["state"] == "succeeded"
    scene.wait_empty(10)
