from __future__ import annotations

from runs import Story

from orchestrator.diagnosis.odd_code import find_odd_node

RESET = """Traceback (most recent call last):
  File "/w/train.py", line 90, in step
    dist.all_reduce(t)
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4711
"""
BROKEN = """Traceback (most recent call last):
  File "/w/{file}", line 9, in step
    shape = batch["width"]
KeyError: 'width'
"""


def test_the_node_whose_file_differs_from_what_most_have_is_found() -> None:
    same = {"train.py": "a", "model.py": "b"}
    assert find_odd_node({0: same, 1: {**same, "model.py": "c"}, 2: same}) == (1, ["model.py"])
    # What lies on one node alone is what its run wrote.
    assert find_odd_node({0: same, 1: {"train.py": "a"}, 2: same}) is None
    assert find_odd_node({0: same, 1: same}) is None
    assert find_odd_node({}) is None


def test_of_two_nodes_the_head_has_the_code_that_was_meant() -> None:
    assert find_odd_node({0: {"train.py": "a"}, 1: {"train.py": "b"}}) == (1, ["train.py"])


def test_two_nodes_that_differ_from_the_rest_are_no_reason() -> None:
    trees = {0: {"a.py": "1"}, 1: {"a.py": "1"}, 2: {"a.py": "2"}, 3: {"a.py": "3"}}
    assert find_odd_node(trees) is None


def broken() -> Story:
    story = Story(1, 1)
    story.all_run()
    story.rank_ends(1, code=1)
    return story


def test_a_rank_that_broke_in_the_file_that_differs_has_its_reason_there() -> None:
    told = {0: {"code": {"step.py": "a", "x.py": "b"}}, 1: {"code": {"step.py": "z", "x.py": "b"}}}
    verdict = broken().verdict(err={1: BROKEN.format(file="step.py")}, told=told)
    assert (verdict.family, verdict.rule, verdict.confidence) == ("DEPLOY", "other code", "likely")
    assert "node1 runs other code than the rest: step.py" in verdict.cause
    assert "width" in verdict.reason
    assert verdict.first_failure is not None
    assert (verdict.first_failure.rank, verdict.first_failure.node_rank) == (1, 1)


def test_a_file_that_differs_elsewhere_is_not_blamed_for_an_exception() -> None:
    told = {0: {"code": {"step.py": "a", "notes.py": "b"}}, 1: {"code": {"step.py": "a", "notes.py": "c"}}}
    verdict = broken().verdict(err={1: BROKEN.format(file="step.py")}, told=told)
    assert verdict.family == "CODE"
    assert "node1 has other code than the rest: notes.py" in verdict.reason


def test_a_caller_and_a_callee_of_two_versions_do_not_fit() -> None:
    told = {0: {"code": {"step.py": "a", "mix.py": "b"}}, 1: {"code": {"step.py": "a", "mix.py": "c"}}}
    raised = BROKEN.format(file="step.py").replace("KeyError: 'width'", "TypeError: mix() got an unexpected argument")
    verdict = broken().verdict(err={1: raised}, told=told)
    assert (verdict.family, verdict.first_failure.rank if verdict.first_failure else None) == ("DEPLOY", 1)


def test_a_file_that_nobody_is_known_to_have_run_is_told_and_not_blamed_for_a_hang() -> None:
    story = Story(1, 2)
    story.all_run()
    for rank in (0, 1):
        story.rank_ends(rank, at=5.0, code=1)
    story.rank_ends(2, at=5.4, code=None, signal=15, after_stop=True)
    told = {0: {"code": {"notes.py": "a"}}, 1: {"code": {"notes.py": "b"}}}
    waited = RESET.replace("Connection closed by peer [10.0.0.2]:4711", "Timed out waiting 9000ms for recv operation")
    verdict = story.verdict(err={0: waited, 1: waited}, told=told)
    assert verdict.family == "HANG"
    assert "notes.py" in verdict.reason
