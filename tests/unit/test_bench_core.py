"""The benchmark's own parts: pairs, ratios, what must be reached, tables and curves. No node is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from benchmark.bench import Bench, Contender, Must, Series  # noqa: E402 - found by the line above
from benchmark.curves import LABEL_GAP, draw_curves, spread  # noqa: E402
from benchmark.judge import at_size, judge  # noqa: E402
from benchmark.page import read_all  # noqa: E402
from benchmark.results import Results, read_results, write_results  # noqa: E402
from benchmark.table import TIMES, render_musts, render_part  # noqa: E402
from benchmark.timing import BenchError, Running, fold_ratios  # noqa: E402


def series(tool: str, values: list[float], nodes: int = 8, metric: str = "seconds") -> Series:
    return Series(
        part="check", case="all", nodes=nodes, tool=tool, metric=metric, command=f"{tool} -f 8", values=tuple(values)
    )


def results(*found: Series) -> Results:
    return Results(made="now", command="scripts/bench", machine={"cores": "2"}, versions={"torch": "2"}, series=found)


def must(nodes: int = 8, at_most: float = 2, against: str = "", against_nodes: int = 0, unit: str = "") -> Must:
    return Must(
        says="it is fast",
        case="all",
        tool="aorta-launch check",
        nodes=nodes,
        at_most=at_most,
        against=against,
        against_nodes=against_nodes,
        unit=unit,
    )


def test_rounds_alternate_and_the_warm_up_does_not_count() -> None:
    seen: list[str] = []

    def contender(tool: str) -> Contender:
        def measure() -> dict[str, float]:
            seen.append(tool)
            return {"seconds": float(len(seen)), "cpu_s": 0.1}

        return Contender(tool=tool, command=tool, measure=measure)

    bench = Bench(runs=3)
    bench.compare("check", "all", 2, [contender("a"), contender("b")], warm_up=True)
    assert "".join(seen) == "baabbaab"
    found = {(one.tool, one.metric): one.values for one in bench.series}
    times = {"a": (3, 6, 7), "b": (4, 5, 8)}
    assert found == {(tool, "seconds"): values for tool, values in times.items()} | {
        (tool, "cpu_s"): (0.1, 0.1, 0.1) for tool in times
    }


def test_two_contenders_with_one_name_are_refused() -> None:
    same = Contender(tool="a", command="a", measure=lambda: {"seconds": 1})
    with pytest.raises(BenchError, match="one name"):
        Bench().compare("check", "all", 2, [same, same])


def start(tmp_path: Path, *words: str) -> Running:
    return Running(words, wrap=lambda stamped: stamped, cwd=tmp_path, env=os.environ)


def test_a_command_is_timed_from_its_own_first_moment(tmp_path: Path) -> None:
    slow = Running(
        ["sh", "-c", "echo out; echo err >&2; exit 3"],
        wrap=lambda stamped: ["sh", "-c", 'sleep 0.3; exec "$@"', "sh", *stamped],
        cwd=tmp_path,
        env=os.environ,
    )
    ran = slow.wait()
    assert (ran.exit_code, ran.stdout, ran.stderr) == (3, "out\n", "err\n")
    assert 0 < ran.seconds < 0.3
    assert ran.check(3) is ran
    with pytest.raises(BenchError, match=r"exit code 3: sh -c(.|\n)*out\n\nerr"):
        ran.check()


def test_the_cost_of_a_command_is_its_own(tmp_path: Path) -> None:
    mib = 64
    busy = f"import time; b = bytearray({mib << 20}); begin = time.process_time()\nwhile time.process_time() < begin + 0.3: pass"
    ran = start(tmp_path, sys.executable, "-I", "-S", "-c", busy).wait().check()
    assert 0.3 <= ran.cpu_s < 1
    assert mib < ran.peak_mib < 2 * mib


ENDED = """
import os, signal, sys
from benchmark.timing import Running
signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
command = Running(["sleep", "600"], wrap=lambda stamped: stamped, cwd=sys.argv[1], env=os.environ)
print(command.pid, command._folder.name, flush=True)
command.wait()
"""


def test_a_benchmark_that_is_ended_waits_for_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", ENDED, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=env
    ) as it:
        assert it.stdout is not None
        pid, folder = it.stdout.readline().split()
        it.send_signal(signal.SIGTERM)
        assert it.wait(10) == 128 + signal.SIGTERM
    assert not Path(folder).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_what_does_not_end_in_time_fails(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"still running after 0\.2 s: sleep 60"):
        start(tmp_path, "sleep", "60").wait(0.2)


def test_a_command_that_is_not_there_fails(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="exit code 127"):
        start(tmp_path, "no-such-tool").wait().check()


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    assert fold_ratios([1, 10, 3], [2, 10, 1]) == 1
    with pytest.raises(ValueError, match="shorter"):
        fold_ratios([1, 2], [1])


def test_musts_are_ratios_growth_or_figures() -> None:
    ours, theirs = series("aorta-launch check", [1, 2, 3]), series("clush", [2, 2, 2])
    more = series("aorta-launch check", [9], nodes=32)
    found = results(ours, theirs, more)
    assert judge(found, "check", must(against="clush")).measured == 1
    assert judge(found, "check", must(nodes=32, against_nodes=8)).measured == 4.5
    assert not judge(found, "check", must(nodes=32, against_nodes=8, at_most=4)).ok
    assert judge(found, "check", must()).measured == 2
    missing = judge(found, "check", must(against="pdsh"))
    assert (missing.measured, missing.ok) == (None, False)
    assert at_size(must(against="clush"), 2).at_most == 6


def test_results_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    found = results(series("aorta-launch check", [1, 2]), series("clush", [2, 2]))
    write_results(found, tmp_path / "bench.json")
    assert read_results(tmp_path / "bench.json") == found
    assert len((tmp_path / "bench.json").read_text().splitlines()) < 20


def test_a_part_may_be_measured_in_several_runs_on_one_machine(tmp_path: Path) -> None:
    one, two = results(series("clush", [1])), results(series("clush", [9], nodes=256))
    write_results(one, tmp_path / "a.json")
    write_results(two, tmp_path / "b.json")
    found = read_all(tmp_path)["check"]
    assert [(part.nodes, part.values) for part in found.series] == [(8, (1,)), (256, (9,))]
    write_results(replace(two, machine={"cores": "64"}), tmp_path / "b.json")
    with pytest.raises(BenchError, match="another machine"):
        read_all(tmp_path)
    write_results(one, tmp_path / "b.json")
    with pytest.raises(BenchError, match="'all' at 8 nodes stands in another file"):
        read_all(tmp_path)


def test_tables_begin_with_ratios() -> None:
    found = results(
        series("aorta-launch check", [1, 2, 3]), series("clush", [2, 2, 2]), series("clush", [512], metric="peak_mib")
    )
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in render_part(found, "check").splitlines()[2:]]
    assert lines[0] == ["nodes", "tool", "aorta-launch ÷ it", "seconds", "peak_mib"]
    assert lines[2:] == [
        ["8", "aorta-launch check", "", "2.00 (1.00 to 3.00)", ""],
        ["8", "clush", "1.00", "2.00", "512"],
    ]
    told = render_musts(
        [
            judge(found, "check", must(against="clush")),
            judge(found, "check", must(nodes=9)),
            judge(found, "check", must(at_most=1, unit="s")),
        ]
    )
    assert f"| ≤ 2 {TIMES}  | 1.00 {TIMES}       | yes     |" in told
    assert "| ≤ 2    | not measured |         |" in told
    assert "| ≤ 1 s  | 2.00 s       | **no**  |" in told


def test_curves_are_drawings_with_a_label_for_each_tool() -> None:
    points = [(2, 0.5), (8, 0.9), (256, 31.0)]
    drawn = draw_curves("a <b>", {"ours & theirs": points, "clush": [(2, 0.6), (256, 30.5)]})
    root = ET.fromstring(drawn)
    names = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a <b>", "ours & theirs", "clush", "2", "8", "256", "0.5", "50", "nodes", "seconds"} <= set(names)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 2


def test_labels_never_lie_over_one_another() -> None:
    places = spread({"a": 370, "b": 371, "c": 372, "d": 100})
    ordered = sorted(places.values())
    assert all(after - before >= LABEL_GAP for before, after in pairwise(ordered))
    assert places["d"] == 100
