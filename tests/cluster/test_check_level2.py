"""Level 2 on real nodes: the one that is held to a part of a core is named, with its numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import FreshCluster

pytestmark = [pytest.mark.namespaces, pytest.mark.torch]
HELD = 3
CONFIG = """launch:
  env: {OMP_NUM_THREADS: "1"}
  checks:
    # All nodes of the test share two cores: equals differ.
    compute: {seconds: 2, warn_share: 0.5, fail_share: 0.45}
    memory-bandwidth: {seconds: 1, warn_share: 0.5, fail_share: 0.4}
    bandwidth: {warn_share: 0}
"""


def finding(document: dict[str, Any], check: str, node_rank: int) -> dict[str, str]:
    """What one check says of one node."""
    (found,) = [one for one in document["nodes"][node_rank]["findings"] if one["check"] == check]
    return dict(found)


@pytest.mark.timeout(200)
def test_a_node_that_is_held_to_part_of_a_core_is_named(fresh_cluster: FreshCluster, tmp_path: Path) -> None:
    cluster = fresh_cluster(3, cpus={HELD: 0.25})
    nodes = cluster.write_list(tmp_path / "nodes.txt", python=cluster.python)
    (tmp_path / "config.yaml").write_text(CONFIG)
    words = ["check", "--nodes", str(nodes), "--config", "config.yaml", "--level", "2", "--json"]
    done = cluster.run_launcher(words, cwd=tmp_path, timeout_s=150)
    assert done.stdout, done
    document = json.loads(done.stdout)
    assert done.exit_code == 3
    slow = finding(document, "compute", HELD - 1)
    assert slow["status"] == "fail"
    assert "below the median of 3 nodes" in slow["detail"]
    members = {member["node_rank"]: member for member in document["survey"]["load"]["members"]}
    assert f"{members[HELD - 1]['tflops']:.4g} TFLOPS" in slow["detail"]
    assert members[HELD - 1]["tflops"] < 0.5 * members[0]["tflops"]
    for node_rank in range(HELD - 1):
        assert finding(document, "compute", node_rank)["status"] == "ok"
        assert finding(document, "bits", node_rank)["detail"].endswith("repeats alike")
    assert all(member["memory_gbs"] for member in members.values())
    assert [gauges["trouble"] for gauges in document["survey"]["load"]["gauges"]] == [""] * 3
    assert all(gauges["busy_share"] > 0 for gauges in document["survey"]["load"]["gauges"])
