"""Saves the evidence of a hang without stopping anything: stacks, flight recorders, RAS, sockets, what the nodes know."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.diagnosis.hang.flight import Dump, parse_dump
from orchestrator.diagnosis.hang.odd import find_odd, with_ended
from orchestrator.diagnosis.hang.ras import Behind, parse_ras
from orchestrator.diagnosis.hang.stacks import Stack
from orchestrator.diagnosis.hang.stacks_node import NodeLook, list_looks, list_stacks
from orchestrator.light_dataclass import dataclass
from orchestrator.output.hang_text import render_hang
from orchestrator.output.stacks_text import render_stacks, stacks_document
from orchestrator.phases.answers import Asked, ask_ahead, ask_nodes, plain, take_answers
from orchestrator.phases.hang.dumps import take_dumps, write_dumps
from orchestrator.phases.record import write_json
from orchestrator.phases.stacks import STACKS_S, look_at_node, write_stacks
from orchestrator.phases.stacks_tool import carry_tool, find_tool, list_lacking
from orchestrator.values import Evidence

if TYPE_CHECKING:
    from orchestrator.diagnosis.case import Odd
    from orchestrator.phases.reader import NodeReader
    from orchestrator.plan.paths import ExperimentPaths
    from orchestrator.values import Plan

FLIGHT_S = 12.0
"""NCCL looks at its pipe every few seconds; a rank whose interpreter is locked up gives no dump at all."""
RAS_NODES = 2
"""Each of them tells of all."""
REST_S = 20.0
NATIVE_S = 12.0
MOST_NATIVE = 4
MOST_FILES = 4


@dataclass
class Report:
    """One hang, from the moment it was noticed on."""

    plan: Plan
    paths: ExperimentPaths
    readers: Sequence[NodeReader]
    since: float
    """The last sign of progress, in seconds since the epoch."""
    action: str
    py_spy: Path | None = None
    """One of this machine, as named in the settings."""
    ended: tuple[int, ...] = ()
    """Ranks that had ended by themselves before."""
    number: int = 0
    looks: tuple[NodeLook, ...] = ()
    dumps: list[Dump] = field(default_factory=list)
    odd: Odd | None = None
    words: str = ""

    @property
    def folder(self) -> Path:
        """Where the evidence of this one lies."""
        return self.paths.diagnosis / f"hang_{self.number}"

    @property
    def stacks(self) -> list[Stack]:
        """What the ranks were doing."""
        return list_stacks(self.looks)


def gather(report: Report, activity: Mapping[int, Mapping[str, Any]], now: float) -> None:
    """Ask all nodes at once what their ranks do, find who is odd, and save it; a full disk here costs the files alone."""
    end = time.monotonic() + FLIGHT_S
    alive = [reader for reader in report.readers if reader.is_alive()]
    flight = ask_ahead(alive, {"op": "flight"})
    ras = ask_ahead(alive[:RAS_NODES], {"op": "ras"})
    answers = ask_stacks(report)
    report.looks = tuple(
        look_at_node(report.plan, node.node_rank, node.node.name, answers.get(node.node_rank, {"error": "no answer"}))
        for node in report.plan.nodes
    )
    dumps = take_dumps(take_answers(flight, end - time.monotonic()), now - report.since)
    report.dumps = [dump for rank, (_, data) in sorted(dumps.items()) if (dump := parse_dump(data, rank)) is not None]
    told = take_answers(ras, end - time.monotonic())
    odd = find_odd(report.stacks, report.dumps, find_behind(told, report.looks))
    report.odd = with_ended(odd, report.ended) if odd is not None else None
    with contextlib.suppress(OSError):
        report.number = make_folder(report.paths)
        write_stacks(report.folder / "stacks", report.looks)
        write_dumps(report.folder / "flight", dumps)
        for node_rank, answer in told.items():
            keep_answer(report.folder, "ras", node_rank, answer)
        for node_rank, answer in activity.items():
            write_json(report.folder / f"activity_{node_rank}.json", plain(answer))
    name_evidence(report)
    tell(report, now)


def ask_stacks(report: Report) -> dict[int, Mapping[str, Any]]:
    """Ask for the stacks; where there is no py-spy and we have one, bring it and ask again."""
    answers = ask_nodes(report.readers, {"op": "stacks"}, STACKS_S)
    lacking, tool = list_lacking(answers), find_tool(report.py_spy)
    if lacking and tool is not None:
        links = {reader.node.node_rank: reader.link for reader in report.readers}
        had = carry_tool(tool, [report.plan.nodes[n] for n in lacking], {n: link for n, link in links.items() if link})
        again = [reader for reader in report.readers if reader.node.node_rank in had]
        answers |= ask_nodes(again, {"op": "stacks"}, STACKS_S)
    return answers


def find_behind(told: Mapping[int, Mapping[str, Any]], looks: Sequence[NodeLook]) -> list[Behind]:
    """Find ranks of the run that NCCL counts behind the others; it names them by process and address."""
    places = {(look.pid, node.address): look.rank for node in looks for look in node.ranks}
    # It may go by another interface than ours; a number that only one of the ranks has will do.
    pids = Counter(look.pid for node in looks for look in node.ranks)
    places |= {(look.pid, ""): look.rank for node in looks for look in node.ranks if pids[look.pid] == 1}
    for _, answer in sorted(told.items()):
        behind = parse_ras(str(answer.get("text") or ""))
        ranks = [places.get((one.pid, one.node), places.get((one.pid, ""))) for one in behind]
        known = [replace(one, rank=rank) for one, rank in zip(behind, ranks, strict=True) if rank is not None]
        if known:
            return known
    return []


def name_evidence(report: Report) -> None:
    """Put down which files show what is said."""
    if report.odd is None:
        return
    told = [report.folder / "report.txt"]
    for rank in report.odd.ranks[:MOST_FILES]:
        told += [report.folder / "stacks" / f"rank_{rank:04d}.txt", *report.folder.glob(f"flight/rank_{rank:04d}.*")]
    # Of a rank that has ended there is none; the report itself comes last.
    there = [path for path in told if path.name == "report.txt" or path.exists()]
    files = tuple(Evidence(file=str(path.relative_to(report.paths.root))) for path in there)
    report.odd = replace(report.odd, evidence=files)


def tell(report: Report, now: float) -> None:
    """Write the report, for people and as data."""
    over = {node.node_rank for node in report.plan.nodes if set(node.ranks) <= set(report.ended)}
    silent = [node.node for node in report.looks if node.error and node.node_rank not in over]
    report.words = render_hang(
        report.odd,
        report.plan,
        since=report.since,
        now=now,
        folder=f"{report.folder.relative_to(report.paths.root)}/",
        action=report.action,
        silent=silent,
    )
    stacks = render_stacks("what every rank was doing", report.looks).plain
    with contextlib.suppress(OSError):
        (report.folder / "report.txt").write_text(f"{report.words}\n\n{stacks}\n", "utf-8", "backslashreplace")
        document = {
            "schema": 1,
            "run_id": report.plan.run_id,
            "since": round(report.since, 3),
            "noticed": round(now, 3),
            "action": report.action,
            "odd": None if report.odd is None else asdict(report.odd),
            "stacks": stacks_document(report.plan.run_id, report.looks),
        }
        write_json(report.folder / "report.json", document)


def gather_rest(report: Report, now: float) -> None:
    """Save what takes longer, or explains more than it names: the nodes themselves, sockets, native stacks."""
    asked: dict[str, Asked] = {op: ask_ahead(report.readers, {"op": op}) for op in ("evidence", "sockets")}
    native = ask_native(report)
    end = time.monotonic() + REST_S
    with contextlib.suppress(OSError):
        for op, waiting in asked.items():
            for node_rank, answer in take_answers(waiting, max(0.0, end - time.monotonic())).items():
                keep_answer(report.folder, op, node_rank, answer)
        answers = take_answers(native, max(1.0, end - time.monotonic()))
        nodes = [look_at_node(report.plan, n, report.plan.nodes[n].node.name, one) for n, one in answers.items()]
        write_stacks(report.folder / "native", nodes)
        refine(report, list_stacks(nodes), now)


def refine(report: Report, native: Sequence[Stack], now: float) -> None:
    """Say it again with what native frames add, "lock acquire": who is odd stays."""
    odd = find_odd([*report.stacks, *native], report.dumps)
    if odd is not None and report.odd is not None and odd.ranks and odd.ranks == report.odd.ranks:
        report.odd = replace(report.odd, cause=odd.cause)
        tell(report, now)


def ask_native(report: Report) -> Asked:
    """Ask for native stacks of the odd ranks and of one other: it stops a process for a moment, so not of all."""
    odd = set(report.odd.ranks[: MOST_NATIVE - 1]) if report.odd is not None else set()
    other = next((look.rank for look in list_looks(report.looks) if look.rank not in odd), None)
    wanted = odd | ({other} if other is not None else set())
    asked = {}
    for reader in report.readers:
        here = sorted(wanted & set(reader.node.ranks))
        if here and reader.is_alive():
            asked[reader] = reader.ask_ahead({"op": "stacks", "native": True, "ranks": here})
    return asked


def keep_answer(folder: Path, op: str, node_rank: int, answer: Mapping[str, Any]) -> None:
    """Keep what one node told of itself; what is a text stays one."""
    if op == "evidence":
        write_json(folder / f"node_{node_rank}.json", plain(answer))
        return
    text = str(answer.get("text") or "")
    why = str(answer.get("why") or "")
    if text or why:
        (folder / f"{op}_{node_rank}.txt").write_text(text or f"nothing: {why}\n", "utf-8", "backslashreplace")


def make_folder(paths: ExperimentPaths) -> int:
    """Make the folder of a new hang and give its number.

    Raises:
        OSError: the disk here is full.
    """
    paths.diagnosis.mkdir(exist_ok=True)
    for number in itertools.count(1):
        with contextlib.suppress(FileExistsError):
            (paths.diagnosis / f"hang_{number}").mkdir()
            return number
    raise AssertionError
