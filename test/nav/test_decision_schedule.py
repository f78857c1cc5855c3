"""When the next decision is due: also while one is under way, and while the robot moves."""

from __future__ import annotations

from edge_cloud_spec.nav.decision_schedule import SETTLE_S, DecisionSchedule, DueDecision
from edge_cloud_spec.nav.status import Status


def deciding() -> DecisionSchedule[str]:
    """A decision r1 that began at 1 s and is under way."""
    schedule: DecisionSchedule[str] = DecisionSchedule()
    schedule.instruct("find it", 0.0)
    schedule.on_status(Status("idle", stops=7), 0.0)
    schedule.show("first", 1.0)
    assert schedule.take(1.0) == DueDecision("find it", "first", 7)
    schedule.begin("r1")
    return schedule


def test_a_decision_under_way_is_not_in_the_way_of_itself() -> None:
    schedule = deciding()
    schedule.show("second", 1.1)
    assert not schedule.due(1.1 + 10 * SETTLE_S), "the navigator has not settled it, however long"


def test_the_next_is_due_on_a_frame_from_after_the_navigator_said_ready() -> None:
    schedule = deciding()
    schedule.on_status(Status("moving", "r1", stops=7), 2.0)
    schedule.show("too early", 2.5)
    assert not schedule.due(2.5)
    schedule.on_status(Status("ready", "r1", stops=7), 3.0)
    assert not schedule.due(3.0), "no frame from after that"
    schedule.show("moving", 3.1)
    assert schedule.due(3.1) and schedule.deciding
    schedule.end(3.2)
    assert schedule.take(3.2) == DueDecision("find it", "moving", 7)


def test_a_decision_that_began_on_the_move_is_the_only_one_until_it_is_settled() -> None:
    schedule = deciding()
    schedule.on_status(Status("ready", "r1", stops=7), 3.0)
    schedule.show("moving", 3.1)
    schedule.end(3.2)
    assert schedule.take(3.2)
    schedule.begin("r2")
    schedule.on_status(Status("idle", "r1", "done: search", 7), 4.0)
    schedule.show("at rest", 4.1)
    assert not schedule.due(4.1)
    schedule.on_status(Status("idle", "r2", "refused: its frame is too old", 7), 4.2)
    assert not schedule.due(4.2), "the frame is from before that"
    schedule.show("later", 4.3)
    assert schedule.due(4.3)


def test_without_a_navigator_no_answer_is_in_the_way_of_the_next() -> None:
    schedule: DecisionSchedule[str] = DecisionSchedule()
    schedule.instruct("find it", 0.0)
    schedule.show("first", 0.1)
    assert schedule.take(0.1)
    schedule.begin("r1")
    schedule.show("second", 0.2)
    assert not schedule.due(0.2)
    schedule.end(0.3)
    assert schedule.due(0.3)


def test_a_frame_from_before_a_stop_or_a_release_is_not_decided_on() -> None:
    """It would be told with a count of stops that is newer than the frame."""
    schedule = DecisionSchedule[str]()
    schedule.on_status(Status("idle", "-", "started", 0), 0.0)
    schedule.instruct("find it", 0.0)
    for stops in (1, 2):
        schedule.show("before", 1.0 * stops)
        assert schedule.on_status(Status("idle", "-", "released", stops), 1.0 * stops + 0.5)
        assert schedule.take(1.0 * stops + 0.5) is None
    schedule.show("after", 3.0)
    assert schedule.take(3.0) == DueDecision("find it", "after", 2)
