"""Level 2 on real nodes: the one that is held to a part of a core is named, with its numbers; and nothing is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cluster import Cluster, wait_for
from cluster.life import give_share
from conftest import FreshCluster

from orchestrator.output.checks_schema import checks_schema

pytestmark = [pytest.mark.namespaces, pytest.mark.torch]
HELD = 3
CHECKS = ("compute", "memory-bandwidth", "bits", "heat", "host-link")
# All nodes share the two cores of the test, and whatever else works on them: equals differ much.
CONFIG = """launch:
  env: {OMP_NUM_THREADS: "1"}
  checks:
    compute: {seconds: 3, warn_share: 0.35, fail_share: 0.3}
    memory-bandwidth: {seconds: 0.5, warn_share: 0, fail_share: 0}
"""


def findings(document: dict[str, Any], node_rank: int) -> dict[str, dict[str, str]]:
    """What each check says of one node."""
    return {one["check"]: one for one in document["nodes"][node_rank]["findings"]}


def show_control_groups(cluster: Cluster, k: int) -> bool:
    """Mount them where a node has them; not every kernel of a test lets us."""
    version1 = "mkdir /sys/fs/cgroup/cpu && mount -t cgroup -o cpu cgroup /sys/fs/cgroup/cpu"
    line = f"mount -t tmpfs t /sys/fs/cgroup && {{ {version1} || mount -t cgroup2 cgroup /sys/fs/cgroup; }}"
    return cluster.exec(k, ["sh", "-c", line]).returncode == 0


def words_of(nodes: Path, folder: Path, config: str = CONFIG) -> list[str]:
    (folder / "config.yaml").write_text(config)
    return ["check", "--nodes", str(nodes), "--config", "config.yaml", "--level", "2", "--only", ",".join(CHECKS)]


@pytest.mark.timeout(150)
def test_a_node_that_is_held_to_part_of_a_core_is_named(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(3, cpus={HELD: 4})
    nodes = cluster.write_list(tmp_path / "nodes.txt", python=cluster.python)
    sees_quota = show_control_groups(cluster, HELD)
    launcher = cluster.start_launcher([*words_of(nodes, tmp_path), "--json"], cwd=tmp_path)
    # Not before: at this pace torch would be imported for half a minute.
    launcher.wait_for_text("load: compute", 60)
    give_share(cluster.spec, HELD, 0.04)
    launcher.wait_for_text("load: memory", 60)
    give_share(cluster.spec, HELD, 4)
    done = launcher.wait(90)
    assert done.exit_code == 3, done
    document = json.loads(done.stdout)
    jsonschema.validate(document, checks_schema())
    assert document["survey"]["collectives"] is None
    load = document["survey"]["load"]
    tflops = [member["tflops"] for member in load["members"]]
    held = findings(document, HELD - 1)["compute"]
    assert held["status"] == "fail", (held, tflops)
    assert f"the processors: {tflops[HELD - 1]:.4g} TFLOPS, " in held["detail"]
    assert f" % below the median of 3 nodes ({sorted(tflops)[1]:.4g} TFLOPS)" in held["detail"]
    assert not sees_quota or "; a control group allows 0.04 cores" in held["detail"], held
    assert "the slowest sets the pace" in held["why"]
    assert held["remedy"].endswith("'top -b -n 1 | head -n 12'")
    for node_rank in range(HELD - 1):
        well = findings(document, node_rank)
        assert well["compute"]["status"] == well["memory-bandwidth"]["status"] == "ok", (well, tflops)
        assert well["bits"]["detail"].endswith(" repeats alike")
        assert (well["heat"]["status"], well["host-link"]["status"]) == ("skip", "skip")
    assert all(member["memory_gbs"] > 0 and member["threads"] == 1 for member in load["members"])
    gauges = [(one["load"], one["node_rank"], one["trouble"]) for one in load["gauges"]]
    assert gauges == [(kind, rank, "") for kind in ("compute", "memory") for rank in range(3)]
    assert all(one["busy_share"] > 0 for one in load["gauges"])


@pytest.mark.long
@pytest.mark.timeout(150)
def test_ctrl_c_and_the_death_of_the_launcher_leave_no_load_behind(nodes3: Cluster, tmp_path: Path) -> None:
    before = nodes3.process_tables()
    nodes = nodes3.write_list(tmp_path / "nodes.txt", python=nodes3.python, nodes=(1, 2))
    words = words_of(nodes, tmp_path, CONFIG.replace("seconds: 3", "seconds: 60"))
    for number, code in ((2, 130), (9, -9)):
        launcher = nodes3.start_launcher(words, cwd=tmp_path)
        launcher.wait_for_text("load: compute", 60)
        wait_for(lambda: any("compile(source" in p.command for p in nodes3.process_table(2)), 30, "load")
        launcher.send_signal(number)
        assert launcher.wait(30).exit_code == code
        nodes3.wait_process_tables(before, 15)


def test_the_table_and_the_findings_for_people(nodes3: Cluster, tmp_path: Path) -> None:
    nodes = nodes3.write_list(tmp_path / "nodes.txt", python=nodes3.python, nodes=(1, 2))
    config = CONFIG.replace(
        "seconds: 3, warn_share: 0.35, fail_share: 0.3", "seconds: 0.5, warn_share: 0, fail_share: 0"
    )
    done = nodes3.run_launcher(words_of(nodes, tmp_path, config), cwd=tmp_path, timeout_s=90)
    assert done.exit_code == 0, done
    assert "load: memory, 0.5 s\n" in done.stderr
    assert "\nunder load; whoever is furthest behind its equals first\nnode " in done.stdout
    head, *rows = done.stdout.partition("equals first\n")[2].splitlines()
    assert head.split() == [
        "node",
        "to",
        "equals",
        "threads",
        "TFLOPS",
        "memory",
        "GB/s",
        "clock",
        "MHz",
        "held",
        "back",
    ]
    assert {row.split()[1] for row in rows} == {nodes3.address(1), nodes3.address(2)}
