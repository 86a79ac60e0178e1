"""The GPT over all nodes: aorta-launch against torchrun started by hand, in pairs of alternating order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from . import PROJECT
from .nodes import BARE, Bed
from .results import ProofError, Row

OURS, BY_HAND = "aorta-launch", "torchrun by hand"
SEQUENCES = 256
"""On each rank, unless told: the GPUs must be what a step waits for, because sockets between the nodes differ from run to run by more than 1 %."""
SMALL = {
    "model": {"model_dim": 64, "num_heads": 4, "num_layers": 2},
    "dataset": {"sequence_length": 32, "vocab_size": 256},
    "training": {"batch_size": 4, "mixed_precision": "none"},
}
"""For nodes without a GPU: that everything runs, no figure of use."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to train."""

    name: str
    distributed: dict[str, Any]
    compiled: bool
    alone: bool = False
    """On the first node only: no network and no other rank to wait for."""
    pairs: int = 0
    """Of its own; 0: as many as asked for."""

    @property
    def label(self) -> str:
        """Names its config and its runs."""
        return f"{self.name}{'_compiled' if self.compiled else ''}{'_alone' if self.alone else ''}"


def list_cases() -> list[Case]:
    """Every case, in the order of the page."""
    modes: dict[str, dict[str, Any]] = {"ddp": {"distributed": {"mode": "ddp"}}}
    for strategy in ("full_shard", "hybrid_shard"):
        modes[strategy] = {
            "distributed": {"mode": "fsdp"},
            "fsdp": {"sharding_strategy": strategy, "reduce_dtype": "fp32", "wrap": "block"},
        }
    cases = [Case(name=name, distributed=keys, compiled=False) for name, keys in modes.items()]
    cases += [Case(name=name, distributed=keys, compiled=True) for name, keys in modes.items()]
    return [*cases, Case(name="ddp", distributed=modes["ddp"], compiled=False, alone=True)]


def build_config(case: Case, steps: int, sequences: int, *, small: bool) -> dict[str, Any]:
    """config/gpt_small.yaml with this case's keys; nothing is saved, the held-out loss comes at the start and the end."""
    config: dict[str, Any] = yaml.safe_load((PROJECT / "config" / "gpt_small.yaml").read_text())
    for section in ("checkpoint", "fsdp", "distributed"):
        config.pop(section)
    config["training"] |= {"max_steps": steps, "log_interval": 10, "eval_interval": 10**6, "gradient_accumulation": 1}
    config["training"] |= {"batch_size": sequences}
    config |= case.distributed
    config["distributed"] = {"timeout_s": 120, **config["distributed"]}
    config["scheduler"] |= {"warmup_steps": 10}
    if case.compiled:
        config["compile"] = {"enabled": True}
    for section, keys in SMALL.items() if small else ():
        config[section] |= keys
    return config


def measure_training(
    bed: Bed, wanted: Iterable[str], begun: Sequence[Row], *, pairs: int, warm_up: int
) -> Iterable[Row]:
    """Measure the cases that are asked for, a row each time, after those of an earlier call; the order within a pair alternates."""
    bed.push()
    for case in (case for case in list_cases() if case.label in wanted):
        first = 1 + max((row["pair"] for row in begun if row["case"] == case.label), default=0)
        for pair in range(first, first + pairs):
            tools = (OURS, BY_HAND) if pair % 2 else (BY_HAND, OURS)
            for tool in tools:
                run = launch_once if tool == OURS else start_by_hand
                lines, seconds = run(bed, case)
                yield {**build_row(case, tool, pair, seconds, lines, warm_up), "sequences": read_sequences(bed, case)}


def keep_pairs(rows: Sequence[Row]) -> list[Row]:
    """Leave out what a call that was cut off has half measured."""
    tools = {(row["case"], row["pair"], row["tool"]) for row in rows}
    return [row for row in rows if all((row["case"], row["pair"], tool) in tools for tool in (OURS, BY_HAND))]


def write_configs(bed: Bed, *, steps: int, sequences: int, small: bool) -> None:
    """Put every case's config into the project, before it is brought to the nodes."""
    for case in list_cases():
        config = build_config(case, steps, sequences, small=small)
        (bed.project / "config" / f"proof_{case.label}.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def read_sequences(bed: Bed, case: Case) -> int:
    """How many sequences each rank gets at a step."""
    config = yaml.safe_load((bed.project / "config" / f"proof_{case.label}.yaml").read_text())
    return int(config["training"]["batch_size"])


def launch_once(bed: Bed, case: Case) -> tuple[list[Row], float]:
    """One launch; what its first rank measured."""
    config = f"config/proof_{case.label}.yaml"
    done = bed.launch(["--config", config], label=case.label, node_list=first_node(bed) if case.alone else None).check()
    assert done.experiment is not None
    found = list((done.experiment / "outputs").rglob("rank_00_metrics.jsonl"))
    if len(found) != 1:
        raise ProofError(f"{done.experiment} has {len(found)} files of metrics of rank 0")
    return parse_lines(found[0].read_text()), done.seconds


def first_node(bed: Bed) -> Path:
    """A node list with the first node alone."""
    path = bed.project / "alone.txt"
    lines = [line for line in bed.node_list.read_text().splitlines() if line.strip() and not line.startswith("#")]
    path.write_text(lines[0] + "\n")
    return path


def start_by_hand(bed: Bed, case: Case) -> tuple[list[Row], float]:
    """The same by ssh and torchrun."""
    nodes = bed.nodes[:1] if case.alone else bed.nodes
    script = ["scripts/train.py", "--config", f"config/proof_{case.label}.yaml"]
    _, seconds = bed.torchrun(script, nodes=nodes)
    return parse_lines(bed.say(nodes[0], f"cat {BARE}/out/rank_00_metrics.jsonl")), seconds


def parse_lines(text: str) -> list[Row]:
    """Metrics of one rank."""
    return [json.loads(line) for line in text.splitlines()]


def build_row(case: Case, tool: str, pair: int, seconds: float, lines: list[Row], warm_up: int) -> Row:
    """One run: every step's time, and what follows from them."""
    steps = [line for line in lines if line.get("step_ms") is not None]
    times = [line["step_ms"] for line in steps][warm_up:]
    if not times:
        raise ProofError(f"{case.label}: {len(steps)} steps, all of them to warm up")
    held_out = [line["held_out_loss"] for line in lines if "held_out_loss" in line]
    return {
        "case": case.label,
        "tool": tool,
        "pair": pair,
        "step_ms": round(median(times), 3),
        "tokens_per_s": round(median([line["tokens_per_s"] for line in steps][warm_up:])),
        "loss": [round(steps[0]["loss"], 4), round(steps[-1]["loss"], 4)],
        "held_out_loss": [round(held_out[0], 4), round(held_out[-1], 4)] if held_out else [],
        "gpu_memory_mib": max((round(line.get("peak_memory_mib") or 0) for line in steps), default=0),
        "seconds": round(seconds, 1),
        "steps": [round(time, 2) for time in times],
    }
