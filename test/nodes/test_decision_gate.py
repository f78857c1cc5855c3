"""When a decision is due, and which stops and releases its words have heard of."""

from __future__ import annotations

from threading import Timer

import pytest

pytest.importorskip("rclpy")
from builtin_interfaces.msg import Time

from edge_cloud_spec.nav.status import Status
from edge_cloud_spec.nodes.decision_gate import CameraFrame, DecisionGate, DecisionTask

FIRST, SECOND = CameraFrame(b"1", Time(sec=1)), CameraFrame(b"2", Time(sec=2))


def due(mission: DecisionGate) -> DecisionTask | None:
    """The decision that is due, if one is within a while; the mission may be over after this."""
    timer = Timer(0.5, mission.end)
    timer.start()
    task = mission.next()
    timer.cancel()
    return task


def test_a_task_carries_the_count_that_was_heard_when_its_frame_came() -> None:
    mission = DecisionGate()
    mission.follow("find it")
    assert mission.hear(Status("idle", stops=7))
    mission.see(FIRST)
    assert due(mission) == DecisionTask("find it", FIRST, 7)


@pytest.mark.parametrize("status", [Status("stopped", stops=8), Status("idle", stops=8)])
def test_a_frame_from_before_a_stop_or_a_release_is_dropped(status: Status) -> None:
    mission = DecisionGate()
    mission.follow("find it")
    mission.hear(Status("idle", stops=7))
    mission.see(FIRST)
    assert mission.hear(status)
    mission.hear(Status("idle", stops=9))
    mission.see(SECOND)
    assert not mission.hear(Status("idle", "-", "released", 9)), "no other count"
    assert due(mission) == DecisionTask("find it", SECOND, 9)


def test_a_frame_held_over_a_release_is_not_decided_on() -> None:
    mission = DecisionGate()
    mission.follow("find it")
    mission.hear(Status("stopped", stops=7))
    mission.see(FIRST)
    mission.hear(Status("idle", stops=8))
    assert due(mission) is None


def test_a_refused_decision_is_followed_by_another() -> None:
    mission = DecisionGate()
    mission.follow("find it")
    mission.hear(Status("idle", stops=7))
    mission.see(FIRST)
    assert due(mission) == DecisionTask("find it", FIRST, 7)
    mission.deciding("r1")
    mission.hear(Status("idle", "r1", "refused: its frame is from before", 8))
    mission.see(SECOND)
    assert due(mission) == DecisionTask("find it", SECOND, 8)
