"""One `aorta-launch check --json` of a cluster, and what it says of each node; and remedies, run as they are printed."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import Cluster


@dataclass(frozen=True)
class Checked:
    """The answer of one check."""

    exit_code: int
    document: dict[str, Any]
    seconds: float

    def finding(self, check: str, node_rank: int) -> dict[str, str]:
        """What one check says of one node."""
        (found,) = [one for one in self.document["nodes"][node_rank]["findings"] if one["check"] == check]
        return dict(found)

    def status(self, check: str, node_rank: int) -> str:
        """Its status."""
        return self.finding(check, node_rank)["status"]

    def failing(self) -> set[tuple[str, int]]:
        """Check and node rank of all that fails."""
        return self.found("fail")

    def found(self, *statuses: str) -> set[tuple[str, int]]:
        """Check and node rank of all that has one of these."""
        return {
            (one["check"], node["node_rank"])
            for node in self.document["nodes"]
            for one in node["findings"]
            if one["status"] in statuses
        }


def check(cluster: Cluster, tmp_path: Path, *words: str, nodes: Path | None = None, **listed: Any) -> Checked:
    """Run it and read its document."""
    chosen = nodes or cluster.write_list(tmp_path / "nodes.txt", **listed)
    done = cluster.run_launcher(["check", "--nodes", str(chosen), "--json", *words], cwd=tmp_path)
    assert done.stdout, done
    return Checked(done.exit_code, json.loads(done.stdout), done.seconds)


def run_on(cluster: Cluster, k: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command on a node as root; it has to end well."""
    done = cluster.exec(k, words)
    assert done.returncode == 0, done
    return done


def try_remedy(cluster: Cluster, finding: dict[str, str]) -> None:
    """Type the remedy of a finding on the launch host, as a person would; it has to end well."""
    words = ["sh", "-c", finding["remedy"].replace("sudo ", "")]
    done = cluster.run_on_launch_host(words, cwd=Path("/"))
    assert done.exit_code == 0, (finding, done)
