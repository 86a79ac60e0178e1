from __future__ import annotations

from runs import Story


def test_a_run_in_which_all_agents_end_well_succeeds() -> None:
    story = Story(1, 1)
    story.all_run()
    assert story.orders[-1].say == "running: 2 ranks on 2 nodes"
    for rank in (0, 1):
        story.rank_ends(rank)
    story.node_ends(0)
    over_before = story.decider.over
    story.node_ends(1)
    assert (over_before, story.decider.over) == (False, True)
    verdict = story.verdict()
    assert (verdict.state, verdict.exit_code, verdict.duration_s) == ("succeeded", 0, 100.0)


def test_a_rank_that_fails_stops_every_node_within_the_failure_grace() -> None:
    story = Story(2, 2, 2)
    story.all_run()
    (order,) = story.rank_ends(3, code=7)
    assert order.stop == (0, 1, 2)
    assert order.grace_s == 2.0
    assert "rank 3 on node1 ended with exit code 7" in order.say
    assert story.rank_ends(4, at=5.5, code=1) == [], "only the first failure is a failure"


def test_the_same_news_twice_changes_nothing() -> None:
    story = Story(1, 1)
    story.all_run()
    assert story.rank_ends(1, code=1)
    assert not story.rank_ends(1, code=1)
    story.node_ends(1, code=1, state="failed")
    story.node_ends(1, code=1, state="failed")
    assert not story.decider.over


def test_a_rank_whose_end_is_not_known_waits_for_its_agents_word() -> None:
    story = Story(1, 1)
    story.all_run()
    assert not story.rank_ends(1, code=None)
    (order,) = story.tell("agent_exit", 1, code=1, signal=None)
    assert order.stop == (0, 1)
    assert "agent on node1 ended with exit code 1" in order.say


def test_an_agent_that_ends_well_although_a_rank_failed_does_not_make_success() -> None:
    story = Story(1)
    story.all_run()
    story.rank_ends(0, code=3)
    story.node_ends(0, code=0)
    verdict = story.verdict()
    assert (verdict.state, verdict.exit_code) == ("failed", 1)
    assert verdict.first_failure is not None
    assert verdict.first_failure.exit_code == 3


def test_ctrl_c_stops_with_the_grace_and_a_second_one_kills() -> None:
    story = Story(1, 1)
    story.all_run()
    (first,) = story.tell("interrupt")
    assert (first.stop, first.grace_s) == ((0, 1), 30.0)
    (second,) = story.tell("interrupt", at=2)
    assert (second.stop, second.grace_s) == ((0, 1), 0.0)
    for node_rank in (0, 1):
        story.node_ends(node_rank, code=1, state="stopped", after_stop=True)
    verdict = story.verdict()
    assert (verdict.state, verdict.exit_code) == ("killed", 130)
    assert verdict.stopped == (0, 1)


def test_sigterm_ends_with_143() -> None:
    story = Story(1)
    story.all_run()
    story.tell("terminate")
    story.node_ends(0, code=1, state="stopped", after_stop=True)
    assert story.verdict().exit_code == 143


def test_a_stop_from_elsewhere_stops_the_other_nodes_and_ends_with_143() -> None:
    story = Story(1, 1)
    story.all_run()
    (order,) = story.tell("final", 1, state="stopped", reason="kill", survivors=[])
    assert order.stop == (0,)
    story.node_ends(0, code=1, state="stopped", after_stop=True)
    verdict = story.verdict()
    assert (verdict.state, verdict.exit_code) == ("killed", 143)
    assert "elsewhere" in verdict.cause


def test_the_time_limit_ends_with_124() -> None:
    story = Story(1)
    story.all_run()
    (order,) = story.tell("time_limit")
    assert order.grace_s == 30.0
    story.node_ends(0, code=1, state="stopped", after_stop=True)
    verdict = story.verdict()
    assert (verdict.state, verdict.exit_code) == ("timed out", 124)


def test_a_lost_node_stops_the_others_and_ends_with_4() -> None:
    story = Story(1, 1, 1)
    story.all_run()
    story.tell("suspect", 1, why="silent")
    (order,) = story.tell("lost", 1, at=70, why="timed out")
    assert order.stop == (0, 1, 2)
    for node_rank in (0, 2):
        story.node_ends(node_rank, code=1, state="stopped", after_stop=True)
    assert story.decider.over
    verdict = story.verdict()
    assert (verdict.state, verdict.exit_code) == ("lost", 4)
    assert "node1" in verdict.cause
    assert verdict.stopped == (0, 2)
    assert "aorta-launch kill run" in verdict.remedy


def test_a_killed_supervisor_is_a_failure_and_its_node_is_swept() -> None:
    story = Story(1, 1)
    story.all_run()
    (order,) = story.tell("supervisor_lost", 1)
    assert order.stop == (0, 1)
    for node_rank in (0, 1):
        story.tell("final", node_rank, state="stopped", reason="failure", survivors=[])
    verdict = story.verdict()
    assert (verdict.state, verdict.exit_code, verdict.cause) == ("failed", 1, "the supervisor was killed")
    assert verdict.first_failure is not None
    assert verdict.first_failure.node == "node1"


def test_a_supervisor_killed_while_stopping_is_asked_to_be_swept_again() -> None:
    story = Story(1, 1)
    story.all_run()
    story.tell("interrupt")
    (order,) = story.tell("supervisor_lost", 1)
    assert order.stop == (1,)


def test_a_wrong_world_size_is_a_failure_before_anything_is_trained() -> None:
    story = Story(1, 1)
    (order,) = story.tell("rank", 1, rank=1, local_rank=0, world_size=1)
    assert order.stop == (0, 1)
    assert "world size 1, the plan says 2" in order.say


def test_ranks_that_do_not_appear_are_told_by_node() -> None:
    story = Story(1, 1, 1)
    for node_rank in range(3):
        story.tell("agent", node_rank, pid=1)
    story.tell("rank", 0, rank=0, local_rank=0, world_size=3)
    assert not story.tell("tick", at=200)
    (order,) = story.tell("tick", at=211)
    assert order.stop == (0, 1, 2)
    assert "node1, node2" in order.say
    for node_rank in range(3):
        story.node_ends(node_rank, code=1, state="stopped", after_stop=True)
    verdict = story.verdict()
    assert (verdict.state, verdict.exit_code) == ("failed", 1)
    assert "aorta-launch check" in verdict.remedy


def test_survivors_make_the_end_a_failure() -> None:
    story = Story(1)
    story.all_run()
    story.tell("interrupt")
    story.node_ends(0, code=1, state="stopped", after_stop=True, survivors=[{"pid": 9, "state": "D", "command": "x"}])
    verdict = story.verdict()
    assert verdict.exit_code == 1
    assert verdict.survivors == (("node0", 9, "x"),)


def test_an_interrupted_run_with_a_node_that_could_not_be_asked_is_no_clean_end() -> None:
    story = Story(1, 1)
    story.all_run()
    story.tell("interrupt")
    story.tell("lost", 1, why="gave up")
    story.node_ends(0, code=1, state="stopped", after_stop=True)
    verdict = story.verdict()
    assert verdict.exit_code == 1
    assert "node1 could not be asked" in verdict.cause


def test_a_kill_stops_with_its_own_grace_and_ends_with_143() -> None:
    story = Story(1, 1)
    story.all_run()
    assert [(order.stop, order.grace_s) for order in story.tell("kill", grace_s=7.0)] == [((0, 1), 7.0)]
    assert [(order.stop, order.grace_s) for order in story.tell("kill", grace_s=1.0)] == [((0, 1), 1.0)]
    for node_rank in (0, 1):
        story.node_ends(node_rank, code=1, state="killed", after_stop=True, reason="kill")
    verdict = story.verdict()
    assert (verdict.state, verdict.exit_code, verdict.cause) == ("killed", 143, "stopped by aorta-launch kill")


def test_a_run_that_was_being_stopped_is_taken_over_with_its_reason() -> None:
    story = Story(1, 1)
    story.tell("stop", 1, cause="failure", detail="rank 1 failed")
    story.all_run()
    assert story.rank_ends(1, code=3) == [], "no second reason"
    story.node_ends(1, code=1, state="stopped", after_stop=True, reason="failure")
    story.node_ends(0, code=1, state="stopped", after_stop=True, reason="failure")
    verdict = story.verdict()
    assert (verdict.state, verdict.exit_code) == ("failed", 1)
    assert verdict.first_failure is not None
    assert verdict.first_failure.rank == 1


def test_a_node_that_tells_why_it_had_been_stopped_is_believed() -> None:
    story = Story(1, 1)
    story.tell("agent", 1, pid=1)
    story.node_ends(1, code=1, state="timed out", after_stop=True, reason="time limit")
    (order,) = (order for order in story.orders if order.stop)
    assert order.stop == (0,)
    story.node_ends(0, code=1, state="timed out", after_stop=True, reason="time limit")
    assert (story.verdict().state, story.verdict().exit_code) == ("timed out", 124)


def test_a_node_that_ended_itself_without_a_controller_is_a_failure() -> None:
    story = Story(1, 1)
    story.all_run()
    (order,) = story.rank_ends(1, code=3)
    assert order.stop == (0, 1)
    story.node_ends(1, code=1, state="failed", after_stop=True, reason="rank 1 failed, and no controller was there")
    story.node_ends(0, code=1, state="stopped", after_stop=True, reason="failure")
    assert story.verdict().state == "failed"


def test_what_was_dropped_is_said_once_a_file() -> None:
    story = Story(1, 1)
    for file, rank, end in (("0.out", 1, 12 << 20), ("0.out", 1, 90 << 20), ("agent.err", None, 8 << 20)):
        story.tell("gap", 1, file=file, rank=rank, **{"from": 0, "to": end})
    assert [order.say for order in story.orders] == [
        "warning: 12.0 MiB of the output of rank 1 on node1 were dropped there: launch.log_space_mib",
        "warning: 8.0 MiB of the output of the agent on node1 were dropped there: launch.log_space_mib",
    ]


def test_logs_without_bound_and_a_disk_with_space_again_are_told() -> None:
    story = Story(1)
    (order,) = story.tell("log_space", 0, why="old parts of log files cannot be freed on this file system: no")
    assert order.say.startswith("warning: node0: old parts of log files cannot be freed")
    (order,) = story.tell("store_back", 0)
    assert "logs can be written here again" in order.say
