"""When a decision is due, and which stops and releases its words have heard of."""

from __future__ import annotations

from threading import Timer

import pytest

pytest.importorskip("rclpy")
from builtin_interfaces.msg import Time

from edge_cloud_spec.nav.status import AWAITS, Status
from edge_cloud_spec.nodes.drafting import decision_gate
from edge_cloud_spec.nodes.drafting.decision_gate import CameraFrame, DecisionGate, DecisionTask

FIRST, SECOND = CameraFrame(b"1", Time(sec=1)), CameraFrame(b"2", Time(sec=2))


def due(gate: DecisionGate) -> DecisionTask | None:
    """The decision that is due, if one is within a while; the gate may be closed after this."""
    timer = Timer(0.5, gate.close)
    timer.start()
    task = gate.wait_for_task()
    timer.cancel()
    return task


def test_a_task_carries_the_count_that_was_heard_when_its_frame_came() -> None:
    gate = DecisionGate()
    gate.set_instruction("find it")
    assert gate.update_status(Status("idle", stops=7))
    gate.update_frame(FIRST)
    assert due(gate) == DecisionTask("find it", FIRST, 7)


def test_a_frame_that_was_on_its_way_when_the_robot_came_to_rest_is_dropped() -> None:
    lag = 60.0
    gate = DecisionGate(lambda: lag)
    gate.set_instruction("find it")
    gate.update_status(Status("idle", stops=7))
    gate.update_frame(FIRST)
    lag = 0.0
    gate.set_instruction("find it")
    gate.update_frame(SECOND)
    assert due(gate) == DecisionTask("find it", SECOND, 7)


@pytest.mark.parametrize("status", [Status("stopped", stops=8), Status("idle", stops=8)])
def test_a_frame_from_before_a_stop_or_a_release_is_dropped(status: Status) -> None:
    gate = DecisionGate()
    gate.set_instruction("find it")
    gate.update_status(Status("idle", stops=7))
    gate.update_frame(FIRST)
    assert gate.update_status(status)
    gate.update_status(Status("idle", stops=9))
    gate.update_frame(SECOND)
    assert not gate.update_status(Status("idle", "-", "released", 9)), "no other count"
    assert due(gate) == DecisionTask("find it", SECOND, 9)


def test_a_frame_held_over_a_release_is_not_decided_on() -> None:
    gate = DecisionGate()
    gate.set_instruction("find it")
    gate.update_status(Status("stopped", stops=7))
    gate.update_frame(FIRST)
    gate.update_status(Status("idle", stops=8))
    assert due(gate) is None


def test_a_refused_decision_is_followed_by_another() -> None:
    gate = DecisionGate()
    gate.set_instruction("find it")
    gate.update_status(Status("idle", stops=7))
    gate.update_frame(FIRST)
    assert due(gate) == DecisionTask("find it", FIRST, 7)
    gate.begin_decision("r1")
    gate.update_status(Status("idle", "r1", "refused: its frame is from before", 8))
    gate.update_frame(SECOND)
    assert due(gate) == DecisionTask("find it", SECOND, 8)


def test_an_instruction_that_the_navigator_will_not_take_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(decision_gate.time, "monotonic", lambda: now[0])
    gate = DecisionGate()
    gate.set_instruction("find it")
    gate.update_status(Status("stopped", "-", AWAITS, 8))
    assert not gate.waits_in_vain, "it may only have not heard it yet"
    now[0] += 10.0
    assert gate.waits_in_vain
    gate.update_status(Status("idle", "-", "released", 9))
    assert not gate.waits_in_vain
