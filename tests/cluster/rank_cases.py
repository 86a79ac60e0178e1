"""Runs as one of several ranks: trains every case of a file, one after the other, in one group.

Each rank costs seconds to start, a case of twenty small steps costs less. A case is {"name", "config"} and leaves
FOLDER/<name>/rank_00_metrics.jsonl; a refused one leaves FOLDER/<name>/refused_<rank>.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from train import run
from workload.config import ConfigError, build_config
from workload.console import Console
from workload.group import joined_group
from workload.parallel import build_mesh


def main(folder: Path) -> None:
    cases = json.loads((folder / "cases.json").read_text())
    with joined_group(timeout_s=90) as info:
        for case in cases:
            here = folder / case["name"]
            here.mkdir(exist_ok=True)
            os.environ["AORTA_OUTPUT_DIR"] = str(here)
            config = build_config(copy.deepcopy(case["config"]))
            console = Console(config.logging.level, info)
            try:
                run(config, info, folder / "checkpoints" / str(config.checkpoint.dir), console)
            except ConfigError as error:
                (here / f"refused_{info.rank}").write_text(str(error))
        if (folder / "meshes_wanted").exists():
            meshes = {name: build_mesh(name, info) for name in ("full_shard", "no_shard", "hybrid_shard")}
            told = {name: [mesh.mesh_dim_names, mesh.mesh.tolist()] for name, mesh in meshes.items()}
            (folder / f"meshes_{info.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
