"""The tables of docs/gpu-results.md: one part as it was measured on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmark.table import render_rows

from . import collectives, training
from .results import Results, Row

LEAST_RATIO, MOST_RATIO = 0.99, 1.01
TRAINING = """## Training, beside torchrun by hand

`config/gpt_small.yaml` (a GPT of 12 blocks, 768 wide, bf16) through `scripts/train.py`, started by `aorta-launch` and by
hand: `ssh` to each node, and there `python -m torch.distributed.run --nnodes … --node-rank … --master-addr … scripts/train.py`. Both run the same file of the same
config in pairs, in alternating order within a call; of a call that was cut off the whole pairs count. A step's time is the median of a run's steps after the first ones; the ratio is the median of the pairs' ratios, in brackets
the least and the most. It must be 1.00 ± 0.01: once the ranks run, the launcher costs the training nothing. How far runs by hand of the same case lie apart says
how finely that can be told at all: with few sequences on a rank a step waits for the sockets between the nodes, which are faster in one run than in another;
with many it waits for the GPU.
"""
COLLECTIVES = """## Collectives

`aorta-launch check --level 1` against an all-reduce with torch alone, started by hand over the same nodes; medians over the pairs.
"""
FAULTS = """## Faults

Each was brought about on the nodes above; what is quoted is what the run's record or the check said.
"""
KINDS = {
    "oom": "A rank runs out of GPU memory",
    "hang": "A rank hangs in a collective",
    "kill": "A rank is killed",
    "interface": "A wrong NCCL_SOCKET_IFNAME",
    "busy": "A GPU is in use",
}


def render_training(results: Results) -> list[str]:
    """Ratios first."""
    head = (
        "case",
        "pairs",
        "aorta-launch ÷ by hand",
        "1.00 ± 0.01",
        "slower in",
        "runs by hand differ by",
        "step by hand",
        "step",
    )
    rows: list[tuple[str, ...]] = [(*head, "tokens/s of rank 0", "loss from → to", "by hand")]
    ratios: list[float] = []
    for case in dict.fromkeys(row["case"] for row in results.rows):
        ours, by_hand = (pick(results.rows, case, tool) for tool in (training.OURS, training.BY_HAND))
        found = read_ratios(ours, by_hand)
        if found:
            ratios += found
            rows.append(render_case(case, found, ours, by_hand))
    rows.append(("all of them", str(len(ratios)), *judge_ratios(ratios), *[""] * (len(rows[0]) - 5)))
    starts = [
        f"{tool} {median([row['seconds'] for row in results.rows if row['tool'] == tool]):.1f} s"
        for tool in (training.OURS, training.BY_HAND)
        if any(row["tool"] == tool for row in results.rows)
    ]
    counted = " or ".join(map(str, sorted({len(row["steps"]) for row in results.rows})))
    sequences = " or ".join(map(str, sorted({row["sequences"] for row in results.rows})))
    return [
        render_rows(rows),
        "",
        f"{sequences} sequences of 512 tokens on each rank. {counted} steps of each run count. The whole command, with check, push, start and the collecting of outputs: {', '.join(starts)} (median).",
        "",
    ]


def render_case(case: str, ratios: Sequence[float], ours: Sequence[Row], by_hand: Sequence[Row]) -> tuple[str, ...]:
    """One line of the table."""
    return (
        case,
        str(len(ratios)),
        *judge_ratios(ratios),
        f"{100 * spread(by_hand):.1f} %" if len(by_hand) > 1 else "",
        f"{median([row['step_ms'] for row in by_hand]):.1f} ms",
        f"{median([row['step_ms'] for row in ours]):.1f} ms",
        f"{median([row['tokens_per_s'] for row in ours]):,.0f}",
        render_loss(ours),
        render_loss(by_hand),
    )


def read_ratios(ours: Sequence[Row], by_hand: Sequence[Row]) -> list[float]:
    """The ratio of each pair."""
    return [mine["step_ms"] / other["step_ms"] for mine, other in zip(ours, by_hand, strict=False)]


def judge_ratios(ratios: Sequence[float]) -> tuple[str, str, str]:
    """The median with the least and the most, whether it is what it must be, and in how many pairs it is above 1."""
    ratio = median(ratios)
    shown = f"{ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    slower = f"{sum(one > 1 for one in ratios)} of {len(ratios)}"
    return shown, "yes" if LEAST_RATIO <= ratio <= MOST_RATIO else "**no**", slower


def spread(rows: Sequence[Row]) -> float:
    """How far runs of one tool lie apart, as a share of the least."""
    times = [row["step_ms"] for row in rows]
    return float(max(times) / min(times) - 1)


def render_loss(rows: Sequence[Row]) -> str:
    """The first and the last loss of the first run."""
    first, last = rows[0]["loss"]
    return f"{first:.3f} → {last:.3f}"


def pick(rows: Sequence[Row], case: str, tool: str) -> list[Row]:
    """The rows of one tool, in the order of the pairs."""
    return sorted((row for row in rows if (row["case"], row["tool"]) == (case, tool)), key=lambda row: row["pair"])


def render_collectives(results: Results) -> list[str]:
    """A line a size."""
    rows: list[tuple[str, ...]] = [
        ("bytes", "time, check", "time, by hand", "busbw, check", "busbw, by hand", "check ÷ by hand")
    ]
    for size in dict.fromkeys(row["bytes"] for row in results.rows):
        of_size = [row for row in results.rows if row["bytes"] == size]
        ours, by_hand = (pick(of_size, "all_reduce", tool) for tool in (collectives.OURS, collectives.BY_HAND))
        if not ours or not by_hand:
            continue
        times = [median([row["us"] for row in group]) for group in (ours, by_hand)]
        widths = [median([row["busbw_gb_s"] for row in group]) for group in (ours, by_hand)]
        ratio = median([mine["us"] / other["us"] for mine, other in zip(ours, by_hand, strict=False)])
        rows.append(
            (
                f"{size:,}",
                *(f"{us:,.0f} µs" for us in times),
                *(f"{width:.3f} GB/s" for width in widths),
                f"{ratio:.2f}",
            )
        )
    networks = sorted({row["transport"] for row in results.rows if row.get("transport")})
    told = f"NCCL took: {', '.join(networks)}. " if networks else ""
    pairs = len({row["pair"] for row in results.rows})
    return [render_rows(rows), "", f"{told}{pairs} pairs.", ""]


def render_faults(results: Results) -> list[str]:
    """A paragraph a fault."""
    lines: list[str] = []
    for row in results.rows:
        lines += [
            f"**{KINDS[row['case']]}** ({'as it must be' if row['right'] else '**not as it must be**'}): {row['happened']}.",
            "",
        ]
        told = [f"- exit code {row['exit_code']}" + (f"; `{row['cause']}`" if row["cause"] else "")]
        if row["named"]["rank"] is not None:
            told.append(
                f"- named: rank {row['named']['rank']} on node {row['named']['node_rank']} ({row['family']}, {row['confidence']})"
            )
        told += [f"- `{line}`" for line in row.get("said", ())]
        if row.get("asked"):
            told.append(f"- asked for: `{row['asked']}`")
        if row.get("flight_recorders"):
            told.append(f"- flight recorders kept: {', '.join(f'`{name}`' for name in row['flight_recorders'])}")
        if row.get("memory_before_mib"):
            told += [
                f"- GPU {index}: {before} MiB before, {row['memory_most_mib'][index]} MiB at most, {row['memory_after_mib'][index]} MiB after"
                for index, before in row["memory_before_mib"].items()
            ]
            told.append(f"- from the death of the rank to the memory as before: {row['seconds_to_base']} s")
        lines += [*told, ""]
    return lines


def render_origin(results: Results) -> str:
    """When, by what and on what."""
    machine = results.machine
    gpus = [f"{machine['gpus'].count(name)} {name}" for name in dict.fromkeys(machine["gpus"])]
    shares = ", ".join(
        f"node {rank}: GPU {own}" if own else f"node {rank}: none" for rank, own in enumerate(machine["nodes"])
    )
    versions = ", ".join(f"{name} {number}" for name, number in results.versions.items() if number)
    memory = f" with {machine['gpu_memory_mib'][0]} MiB each, driver {machine['driver']}" if gpus else ""
    commands = ", ".join(f"`{command}`" for command in results.commands)
    return (
        f"Measured {results.made} by {commands} on {', '.join(gpus) or 'no GPU'}{memory} ({shares}); {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, Linux {machine['kernel']}; {versions}.\n"
    )
