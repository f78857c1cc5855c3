"""A stop outlives the nodes that heard it: latched or not, and whoever is started again."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import pytest

pytest.importorskip("rclpy")
from helpers.navigator_bench import Bench
from nav_msgs.msg import Odometry
from rclpy.duration import Duration
from rclpy.publisher import Publisher
from rclpy.qos import (
    DurabilityPolicy,
    QoSProfile,
    qos_profile_sensor_data,
)
from std_msgs.msg import Bool, String

TURN, CUP = "action: turn left large;", "find the cup"
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
PROFILES = {"latched": LATCHED, "volatile": QoSProfile(depth=10), "sensor": qos_profile_sensor_data}


def press(stop: Publisher, on: bool) -> None:
    """Again and again: best effort may lose one."""
    stop.publish(Bool(data=on))


@pytest.mark.parametrize("kind", PROFILES)
def test_an_instruction_during_e_stop_moves_nothing_at_its_release(
    kind: str, bench: Bench, start: Any
) -> None:
    start()
    stop = bench.create_publisher(Bool, "e_stop", PROFILES[kind])
    bench.until(stop.get_subscription_count)
    bench.until(lambda: bench.state.state == "idle")
    bench.until(lambda: press(stop, True) or "e_stop is on" in bench.state.detail)
    bench.instruction.publish(String(data=CUP))
    bench.say(TURN, "r1", instruction=CUP)
    bench.until(lambda: bench.said("stopped", "r1"))
    bench.until(lambda: press(stop, False) or "e_stop is on" not in bench.state.detail)
    bench.say(TURN, "r2", instruction=CUP)
    bench.until(lambda: bench.said("stopped", "r2", "released; publish an instruction"))
    assert not bench.commands
    bench.instruction.publish(String(data=CUP))
    bench.until(lambda: bench.state.state == "idle")
    bench.say(TURN, "r3", instruction=CUP)
    bench.until(lambda: bench.turning)


def test_each_press_of_a_latched_stop_counts_once(bench: Bench, start: Any) -> None:
    start()
    stop = bench.create_publisher(Bool, "e_stop", LATCHED)
    bench.until(lambda: stop.get_subscription_count() >= 2)
    bench.until(lambda: bench.state.state == "idle")
    before = bench.state.stops
    for on in (True, False) * 3:
        was = bench.state.stops
        stop.publish(Bool(data=on))
        bench.until(lambda w=was: bench.state.stops > w)
    bench.instruction.publish(String(data=CUP))
    bench.until(lambda: bench.state.state == "idle")
    assert bench.state.stops == before + 7


def test_a_navigator_that_starts_under_a_latched_stop_never_moves(bench: Bench, start: Any) -> None:
    stop = bench.create_publisher(Bool, "e_stop", LATCHED)
    stop.publish(Bool(data=True))
    for life in range(2):
        bench.states.clear()
        # On a loaded machine DDS takes seconds to match publishers: docs/safety.md on `listen`.
        process = start("-p", "listen:=5.0", ready=False)
        for number in range(200):  # words for the count of each status that was heard
            bench.say(TURN, f"r{life}-{number}", instruction=CUP)
            bench.executor_.spin_once(timeout_sec=0.02)
            if bench.state.detail == "e_stop is on" and number > 20:
                break
        bench.until(lambda: bench.state.detail == "e_stop is on")
        process.kill()
        process.wait()
    assert not bench.commands
    assert not any(t.angular.z or t.linear.x > 0.005 for t in bench.twists)


def test_a_navigator_that_starts_again_stands_before_it_may_move(bench: Bench, start: Any) -> None:
    start("-p", "listen:=5.0", ready=False)
    bench.instruction.publish(String(data=CUP))
    bench.say(TURN, "r1", instruction=CUP)
    bench.until(lambda: bench.said("stopped", "r1", "the navigator is not active"))
    bench.until(lambda: bench.state.state == "idle")
    assert not bench.commands
    bench.say(TURN, "r2", instruction=CUP)
    bench.until(lambda: bench.turning)


@pytest.mark.parametrize("ahead", [-3.0, 3.0])
def test_a_base_whose_clock_differs_is_allowed_for_and_said(
    ahead: float, bench: Bench, start: Any
) -> None:
    from diagnostic_msgs.msg import DiagnosticArray

    told: list[float] = []

    def on_diagnostics(array: DiagnosticArray) -> None:
        for status in array.status:
            for value in status.values:
                if value.key == "odometry_clock_offset_s" and value.value != "unknown":
                    told.append(float(value.value))

    start("-p", "odometry:=required")
    bench.create_subscription(DiagnosticArray, "/diagnostics", on_diagnostics, 10)
    odometry = Odometry()
    odometry.pose.pose.orientation.w = 1.0

    def publish() -> None:
        stamp = bench.get_clock().now() + Duration(seconds=ahead)
        odometry.header.stamp = stamp.to_msg()
        bench.odom.publish(odometry)

    timer = bench.create_timer(0.02, publish)
    bench.until(lambda: told)
    assert told[-1] == pytest.approx(ahead, abs=1.0), "a loaded machine is late, not seconds late"
    bench.until(lambda: bench.state.state == "idle")
    numbers = count()

    def moves() -> bool:
        time.sleep(0.05)  # each refusal is logged, to a pipe that nobody reads until the end
        bench.say(TURN, f"r{next(numbers)}", ahead=ahead, measured=ahead)
        return bool(bench.commands)

    bench.until(moves)
    timer.cancel()
