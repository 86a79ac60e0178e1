"""What a rank's last lines say: the line that a person would read, and the step."""

from __future__ import annotations

import pytest

from orchestrator.node import progress


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("step 120", 120),
        ("step=120", 120),
        ('{"loss": 1.0, "step": 120}', 120),
        ("{'step': 7}", 7),
        ("Step: 120/1000", 120),
        ("step 1,200 loss 3", 1200),
        ("step 12,loss=3", 12),
        ("[step 9] loss 2.5", 9),
        ("step #4", 4),
        ("step 5.", 5),
        ("epoch 3 step 12 loss 0.4", 12),
        ("global_step=7", 7),
        ("train/step: 9", 9),
        ("iter 5", 5),
        ("iteration 5", 5),
        ("iter: [ 10/ 100]", 10),
        (" iteration      100/  500 | consumed samples", 100),
        (" 12%|█▏        | 120/1000 [00:01<00:10, 99it/s]", 120),
        ("epoch 3", None),
        ("max_steps=1000", None),
        ("max step 1000", None),
        ("steps: 1000", None),
        ("step 0.5 s", None),
        ("step 5s", None),
        ("step 5%", None),
        ("step time 0.5", None),
        ("step_time=5", None),
        ("no number at this step", None),
        ("", None),
    ],
)
def test_the_step_of_a_line(line: str, step: int | None) -> None:
    assert progress.parse_step([line]) == step


def test_the_latest_step_counts_and_old_lines_do_not() -> None:
    assert progress.parse_step(["step 1", "step 2", "saving"]) == 2
    assert progress.parse_step(["step 1"] + ["saving"] * progress.STEP_LINES) is None


def test_lines_as_a_terminal_shows_them() -> None:
    lines = progress.read_lines(b"\0\0\0tail of a hole\nstep 1\n 10%\r 20%\r\r\n\xff broken\n\n  \n")
    assert lines == ["tail of a hole", "step 1", "20%", "\ufffd broken"]
    assert progress.last_line(lines) == "\ufffd broken"
    assert progress.last_line(progress.read_lines(b"begun\n 10%\r 20%")) == "20%"
    assert progress.last_line([]) == ""
    assert len(progress.last_line(["x" * 500])) == progress.LINE_CHARS
