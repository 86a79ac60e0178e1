"""Reads logs of runs that nobody of us started, or that nobody finished watching, into the form in which a run is judged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from pathlib import Path

from orchestrator.diagnosis.case import Case, Odd
from orchestrator.diagnosis.cause import Hit
from orchestrator.diagnosis.hang.flight import Dump, parse_dump
from orchestrator.diagnosis.hang.odd import find_odd
from orchestrator.diagnosis.hang.ras import parse_ras
from orchestrator.diagnosis.hang.stacks import Stack, merge_stacks, parse_stack
from orchestrator.diagnosis.logs.build import build_log_case, find_layout, natural_key
from orchestrator.diagnosis.logs.nodelog import NodeLog, NodeLogReader
from orchestrator.diagnosis.logs.scan import scan_lines
from orchestrator.diagnosis.logs.teller import Beside
from orchestrator.diagnosis.logs.tracebacks import Failure, parse_error_file
from orchestrator.errors import UsageError
from orchestrator.light_dataclass import dataclass
from orchestrator.phases.foreign.lines import find_packing, read_parts
from orchestrator.phases.foreign.logs import read_logs
from orchestrator.phases.foreign.ours import is_experiment
from orchestrator.plan.paths import ExperimentPaths
from orchestrator.values import Evidence

LOG_ENDINGS = (".log", ".txt", ".out", ".err")
PACKED_ENDINGS = (".gz", ".zst", ".xz", ".bz2")
MOST_SHOWN = 4
MOST_BESIDE = 64 << 20
"""A stack or a flight recorder dump is never larger."""

_KERNEL = re.compile(r"^(?P<node>.*?)[._-]?(?:kernel|dmesg|journal|kern)\b", re.IGNORECASE)
_STACK = re.compile(
    r"(?:^|[._-])(?:stacks?|py-?spy|proc|faulthandler)(?:[._-](?:native|dump))*[._-]?(?:rank[._-]?)?(?P<rank>\d+)",
    re.IGNORECASE,
)
_FLIGHT = re.compile(r"(?:^|[._-])(?:fr|flight|trace|nccl_trace\w*?)[._-]?(?:rank[._-]?)(?P<rank>\d+)", re.IGNORECASE)
_ERROR = re.compile(r"^(?:error[._-]?)?(?:rank[._-]?)(?P<rank>\d+)\.json$", re.IGNORECASE)
_RANK_FILE = re.compile(r"^rank[._-]?(?P<rank>\d+)$", re.IGNORECASE)
_AGENT_FILE = re.compile(r"^agent[._-]?(?P<node>\d+)$", re.IGNORECASE)
_NODE_FILE = re.compile(r"^node_(?P<node>\d+)_(?P<name>.+)$")
_RAS = re.compile(r"(?:^|[._-])ras(?:[._-]|$)", re.IGNORECASE)
_JOB = re.compile(r"^(?P<job>(?:job|run|attempt|try|trial)[._-]?\w*?)[._-](?P<rest>.+)$", re.IGNORECASE)
_PID = re.compile(r"^(?:Process|Pid:|pid[ =:]) ?(?P<pid>\d+)", re.MULTILINE)
_SOCKETS = re.compile(r"^(?:ss|netstat|lsof|nvidia-?smi|df|free|top)$", re.IGNORECASE)


@dataclass(frozen=True)
class Job:
    """One run that logs tell of."""

    name: str
    """Empty where there is only one."""
    case: Case
    logs: Sequence[NodeLog] = ()
    """What the case was made of."""
    unread: Sequence[str] = ()
    """Files that would be logs if they were text, each with what they are."""


@dataclass
class _Folder:
    """The files of a folder by what they hold."""

    logs: list[Path] = field(default_factory=list)
    kernels: list[tuple[str, Path]] = field(default_factory=list)
    stacks: list[tuple[int, Path]] = field(default_factory=list)
    dumps: list[tuple[int, Path]] = field(default_factory=list)
    errors: list[tuple[int, Path]] = field(default_factory=list)
    counts: list[Path] = field(default_factory=list)
    """What NCCL's own service tells."""
    unread: list[str] = field(default_factory=list)


def read_jobs(path: Path) -> list[Job]:
    """Read a file or folder of logs.

    Raises:
        UsageError: it is not there, cannot be read, or holds no log.
    """
    try:
        if path.is_dir():
            jobs = _read_folder(path)
        elif path.is_file():
            _refuse([f"{path.name} ({what})"] if (what := find_packing(path)) else [], path)
            logs = read_logs(path.stem, [path], path.parent)
            jobs = [Job("", build_log_case(logs), logs)]
        elif path.exists():
            raise UsageError(what="it is no file and no folder", where=str(path))
        else:
            raise UsageError(what=f"there is no run, folder or file {path}", remedy="aorta-launch ls lists the runs")
    except OSError as error:
        raise UsageError(what=f"it cannot be read: {error.strerror}", where=str(error.filename or path)) from None
    if not jobs:
        raise UsageError(
            what="no log lies there", where=str(path), remedy=f"one file a node, ending in {', '.join(LOG_ENDINGS)}"
        )
    return jobs


def _refuse(unread: Sequence[str], path: Path) -> None:
    """Refuse what is no text.

    Raises:
        UsageError: there is any.
    """
    if unread:
        shown = f"{', '.join(unread[:MOST_SHOWN])}{' …' if len(unread) > MOST_SHOWN else ''}"
        packed = not all("(binary)" in one for one in unread)
        raise UsageError(
            what=f"no text: {shown}", where=str(path), remedy="unpack it, and ask again" if packed else "name a log"
        )


def _read_folder(path: Path) -> list[Job]:
    paths = ExperimentPaths(path)
    # Our own log of a launch quotes what stands in the others.
    found = _sort_files(file for file in sorted(path.iterdir()) if file != paths.launch_log or not paths.logs.is_dir())
    nothing = not (found.logs or found.stacks or found.dumps)
    if (nothing or is_experiment(path)) and (path / "logs").is_dir():
        found = _sort_files(sorted((path / "logs").iterdir()))
        if (path / "errors").is_dir():
            found.errors = _sort_files(sorted((path / "errors").iterdir())).errors
    jobs: dict[str, list[tuple[str, Path]]] = {}
    for file in found.logs:
        named = _JOB.match(file.stem)
        jobs.setdefault(named["job"] if named else "", []).append((named["rest"] if named else file.stem, file))
    if len(jobs) > 1:
        return [_build_job(name, files, _Folder(), path) for name, files in sorted(jobs.items())]
    if not jobs and not (found.stacks or found.dumps):
        _refuse(found.unread, path)
        return []
    return [_build_job("", [(file.stem, file) for file in found.logs], found, path)]


def _sort_files(files: Iterable[Path]) -> _Folder:
    found = _Folder()
    texts: list[Path] = []
    for file in files:
        if not file.is_file():
            continue
        if flight := _FLIGHT.search(file.name):
            found.dumps.append((int(flight["rank"]), file))
        elif error := _ERROR.match(file.name):
            found.errors.append((int(error["rank"]), file))
        elif file.suffix in PACKED_ENDINGS and Path(file.stem).suffix in LOG_ENDINGS:
            found.unread.append(file.name)
        elif file.suffix in LOG_ENDINGS:
            _sort_text(file, found, texts)
    nodes = [file for file in texts if _NODE_FILE.match(file.stem)]
    logs = [file for file in texts if file.suffix == ".log"]
    found.logs = nodes or logs or texts
    return found


def _sort_text(file: Path, found: _Folder, texts: list[Path]) -> None:
    if what := find_packing(file):
        found.unread.append(f"{file.name} ({what})")
    elif kernel := _KERNEL.match(file.name):
        found.kernels.append((kernel["node"], file))
    elif stack := _STACK.search(file.stem):
        found.stacks.append((int(stack["rank"]), file))
    elif _RAS.search(file.stem):
        found.counts.append(file)
    elif not _SOCKETS.match(file.stem) and not file.stem.startswith("error_file"):
        texts.append(file)


def _build_job(job: str, named: Sequence[tuple[str, Path]], found: _Folder, root: Path) -> Job:
    ours = [(node["name"], file) for name, file in named if (node := _NODE_FILE.match(name))]
    singles = [(name, file) for name, file in named if _RANK_FILE.match(name) or _AGENT_FILE.match(name)]
    if singles and not ours:
        logs = [_read_single_files(singles, root)]
    else:
        groups: dict[str, list[Path]] = {}
        for name, file in ours or named:
            groups.setdefault(name, []).append(file)
        named_files = sorted(groups.items(), key=lambda one: natural_key(one[0]))
        logs = [log for name, files in named_files for log in read_logs(name, files, root)]
    layout = {rank: place for place, ranks in enumerate(find_layout(logs).values()) for rank in ranks}
    places = _find_places(found, logs)
    case = build_log_case(
        logs,
        Beside(
            kernel_files={_match_node(name, logs): str(file.relative_to(root)) for name, file in found.kernels},
            kernel={_match_node(name, logs): _read_kernel(file) for name, file in found.kernels},
            errors={rank: failure for rank, file in found.errors if (failure := _read_error(file)) is not None},
            odd=_read_odd(found, {**layout, **{rank: _place_of(name, logs) for rank, name in places.items()}}, root),
            places=places,
        ),
    )
    return Job(job, case, logs, found.unread)


def _read_single_files(singles: Sequence[tuple[str, Path]], root: Path) -> NodeLog:
    """Read files of one rank or agent each: whose they are is told by their names."""
    reader = NodeLogReader("", str(singles[0][1].relative_to(root)))
    for name, file in singles:
        rank = _RANK_FILE.match(name)
        mark = f"[rank {int(rank['rank'])}] " if rank else "[agent] "
        for number, lines in read_parts(file):
            reader.feed([mark + line for line in lines], number)
    return reader.end()


def _match_node(name: str, logs: Sequence[NodeLog]) -> str:
    return next((log.name for log in logs if log.name == name), logs[0].name if len(logs) == 1 else name)


def _read_kernel(file: Path) -> tuple[Hit, ...]:
    return tuple(hit for number, lines in read_parts(file) for hit in scan_lines(lines, kernel=True, first=number))


def _read_error(file: Path) -> Failure | None:
    return parse_error_file(_read_small(file))


def _read_small(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(MOST_BESIDE)


def _find_places(found: _Folder, logs: Sequence[NodeLog]) -> dict[int, str]:
    """Find the nodes of ranks that only stacks or dumps tell of: by the pids in them, or because there is one node."""
    ranks = {rank for rank, _ in (*found.stacks, *found.dumps)}
    if len(logs) == 1:
        return dict.fromkeys(ranks, logs[0].name)
    owners = {pid: log.name for log in logs for pid in (log.agent.stopped_pids | {one.pid for one in log.agent.claims})}
    places: dict[int, str] = {}
    for rank, file in found.stacks:
        pid = _PID.search(_read_small(file)[:400].decode("utf-8", "replace"))
        if pid is not None and int(pid["pid"]) in owners:
            places[rank] = owners[int(pid["pid"])]
    return places


def _place_of(name: str, logs: Sequence[NodeLog]) -> int:
    return next((place for place, log in enumerate(logs) if log.name == name), 0)


def _read_odd(found: _Folder, layout: dict[int, int], root: Path) -> Odd | None:
    stacks: list[Stack] = []
    for rank, file in found.stacks:
        stack = parse_stack(_read_small(file).decode("utf-8", "replace"), rank, layout.get(rank, 0))
        if stack is not None:
            stacks.append(stack)
    dumps: list[Dump] = []
    for rank, file in found.dumps:
        dump = parse_dump(_read_small(file), rank)
        if dump is not None:
            dumps.append(dump)
    behind = [one for file in found.counts for one in parse_ras(_read_small(file).decode("utf-8", "replace"))]
    odd = find_odd(merge_stacks(stacks), dumps, behind) if stacks or dumps or behind else None
    if odd is None or odd.evidence:
        return odd
    files = found.dumps if odd.rule == "flight recorder" else found.stacks
    shown = [file for rank, file in files if rank in odd.ranks] or [file for _, file in files]
    if odd.rule == "NCCL RAS":
        shown = found.counts
    return replace(odd, evidence=tuple(Evidence(file=str(file.relative_to(root))) for file in shown[:MOST_SHOWN]))
