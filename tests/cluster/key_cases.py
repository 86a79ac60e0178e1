"""Runs as one of two ranks: trains every case of a file and writes down what could be seen of it, apart from the config.

A case is {"name", "config", "home", "calls", "breaks"}; seen is FOLDER/<name>/seen_<rank>.json.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import train
from workload import blocks, compiling
from workload.config import ConfigError, build_config
from workload.console import Console
from workload.group import NodeInfo, joined_group
from workload.machine import check_machine, find_checkpoint_dir
from workload.samples import Batch
from workload.sampling import Batches
from workload.trainer import Trainer

seen: dict[str, Any] = {}


class Watched(Trainer):
    """Leaves itself to be looked at."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        seen["trainer"] = self


class Makers:
    """Samples that say which process made them."""

    def build(self, index: torch.Tensor, *, held_out: bool) -> Batch:
        del held_out
        return Batch((index,), torch.full_like(index, os.getpid()))

    def best_loss(self) -> None:
        """There is none."""


def keep_backend(graph: torch.fx.GraphModule, _inputs: list[Any]) -> Any:
    """A compiler that does nothing, but writes down what it was given."""
    values = [node.meta.get("example_value") for node in graph.graph.nodes if node.op == "placeholder"]
    sizes = [size for value in values if isinstance(value, torch.Tensor) for size in value.shape]
    found = any(isinstance(part, torch.SymInt) for part in (*sizes, *values))
    seen["symbols"] = seen.get("symbols", False) or found
    return graph.forward


def look_at_model(trainer: Trainer) -> None:
    weights = dict(trainer.trained.parallel.evaluated.named_parameters())
    seen["shapes"] = {name: list(weight.shape) for name, weight in weights.items()}
    local = [getattr(weight, "to_local", lambda weight=weight: weight)() for weight in weights.values()]
    seen["local"] = sum(part.numel() for part in local)
    grads = [weight.grad for weight in weights.values() if weight.grad is not None]
    if all(type(grad) is torch.Tensor for grad in grads):
        seen["grad_storage"] = sum(grad.untyped_storage().nbytes() for grad in grads)


def look_at_loader(config: Any, info: NodeInfo) -> None:
    if config.dataloader.num_workers or config.dataloader.pin_memory is not None:
        batches = Batches(config, Makers(), info.world_size, info.device)
        seen["pinned"] = Batches(config, Makers(), info.world_size, torch.device("cuda", 0)).loader.pin_memory
        makers: list[set[int]] = []
        for epoch in range(2):
            batches.loader.set_epoch(epoch)
            found = iter(batches.loader)
            if config.dataloader.num_workers:
                seen["ahead"] = vars(found)["_send_idx"]
            makers.append({int(batch.targets[0]) for batch in found})
            del found
        seen["makers"] = len(makers[0] - {os.getpid()})
        seen["same_makers"] = makers[0] == makers[1]


def look_at_files(here: Path, home: Path, rank: int) -> None:
    for name, root in (("files", here), ("kept", home)):
        found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        seen[name] = sorted(path for path in found if not re.match(r"seen_|\.aorta/cache", path))
    lines = [json.loads(line) for line in (here / f"rank_{rank:02d}_metrics.jsonl").read_text().splitlines()]
    for key in ("loss", "lr", "grad_norm", "held_out_loss"):
        seen[key] = [line[key] for line in lines if line.get(key) is not None]
    seen["step"] = sorted({line["step"] for line in lines})
    for path in sorted((here / "traces").glob(f"rank_{rank:02d}_*")):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        names = {str(event.get("name")) for event in events}
        seen.setdefault("traced", []).append(sorted(name for name in names if re.fullmatch(r"\w*[Ss]tep#\d+", name)))
        words = {word for event in events for word in event.get("args", {})}
        seen["recorded"] = sorted(words & {"Input Dims", "Total Allocated", "Python id"})


@contextlib.contextmanager
def arranged(case: dict[str, Any]) -> Any:
    """What a case needs beside its config."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    forward, to_compile = blocks.Block.forward, torch.compile

    def broken(self: Any, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return forward(self, x)

    def told(function: Any, **words: Any) -> Any:
        # Inductor takes a minute; what it is told is looked at, and its work left to a quicker one.
        seen["compiler"] = {name: str(value) for name, value in words.items() if name in ("mode", "backend")}
        return to_compile(function, **{**words, "backend": "eager", "mode": None})

    if case.get("breaks"):
        blocks.Block.forward = broken  # type: ignore[method-assign]
    if case.get("inductor"):
        compiling.torch.compile = told  # type: ignore[attr-defined]
    try:
        if case.get("calls"):
            with torch.profiler.profile() as profile:
                yield
            wanted = re.compile(r"c10d::\w+|aten::(?:addmm|linear|copy_)")
            seen["calls"] = {event.key: event.count for event in profile.key_averages() if wanted.fullmatch(event.key)}
        else:
            yield
    finally:
        blocks.Block.forward = forward  # type: ignore[method-assign]
        torch.compile = to_compile
    counters: dict[str, Counter[str]] = torch._dynamo.utils.counters
    seen["graphs"] = counters["stats"]["unique_graphs"]
    seen["aot"] = counters["aot_autograd"]["ok"]


def run_case(case: dict[str, Any], folder: Path, info: NodeInfo) -> None:
    here, home = folder / case["name"], folder / "homes" / case.get("home", case["name"])
    for path in (here, home):
        path.mkdir(parents=True, exist_ok=True)
    os.environ.update(AORTA_OUTPUT_DIR=str(here), HOME=str(home))
    seen.clear()
    log = io.StringIO()
    config = build_config(case["config"])
    with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        try:
            check_machine(config)
            checkpoints = find_checkpoint_dir(config.checkpoint.dir, Path("case.yaml"))
            with arranged(case):
                train.run(config, info, checkpoints, Console(config.logging.level, info))
            look_at_model(seen.pop("trainer"))
            look_at_loader(config, info)
            look_at_files(here, home, info.rank)
        except ConfigError as error:
            seen["refused"] = str(error)
    seen["log"] = re.sub(r"\d[-+.e\d]*|/\S+", "#", log.getvalue())
    (here / f"seen_{info.rank}.json").write_text(json.dumps(seen))


def main(folder: Path) -> None:
    torch._dynamo.register_backend(keep_backend, name="keep")
    vars(train)["Trainer"] = Watched
    with joined_group(timeout_s=90) as info:
        for case in json.loads((folder / "cases.json").read_text()):
            run_case(case, folder, info)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
