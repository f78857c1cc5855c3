"""A second navigator, and other publishers of the base's topic, as a real navigator sees them."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from geometry_msgs.msg import Twist
from helpers.graph.peer import Peer
from helpers.navigator_bench import Bench

from edge_cloud_spec.nav.status import NavCode

NAVIGATOR = ["-m", "edge_cloud_spec.nodes.navigator"]
GUARD = ["-m", "edge_cloud_spec.nodes.stop_guard"]


def held(bench: Bench, why: str) -> bool:
    state = bench.state
    return (state.state, state.code) == ("stopped", NavCode.OTHER_PUBLISHER) and why in state.detail


def drive(bench: Bench) -> None:
    """Have it turn for a new instruction."""
    goal = f"go {len(bench.states)}"
    bench.publish(goal)

    def say() -> None:
        if bench.state.state == "stopped":
            bench.publish(goal)
        elif bench.state.state == "idle":
            bench.say("action: turn left large;", f"r{len(bench.states)}", instruction=goal)

    bench.twists.clear()
    bench.until(lambda: bench.turning, meanwhile=say)


def test_another_publisher_on_the_bases_topic_stops_the_robot_and_is_named(
    bench: Bench, start_here: Any, launch: Any
) -> None:
    """But none that only listens, a guard that comes and goes, one that is allowed, or a joystick
    whose mux publishes elsewhere."""
    start_here({"steps.turn_large": 180.0, "allowed_publishers": "gamepad"})
    with Peer("gamepad") as gamepad, Peer("teleop") as teleop:
        gamepad.create_publisher(Twist, "cmd_vel", 10)
        teleop.create_publisher(Twist, "joy_vel", 10)
        teleop.create_subscription(Twist, "cmd_vel", print, 10)
        guard = launch(GUARD)
        bench.until(lambda: bench.count_publishers("cmd_vel") == 3)
        drive(bench)
        guard.send_signal(signal.SIGKILL)
        bench.spin(1.0)
        assert not held(bench, "")
        drive(bench)
        stranger = teleop.create_publisher(Twist, "cmd_vel", 10)
        bench.until(lambda: held(bench, "/teleop publishes on /cmd_vel") and bench.halted)
        bench.publish("go on")
        bench.say("action: turn left large;", "late", instruction="go on")
        bench.until(lambda: bench.said("stopped", "late"))
        teleop.destroy_publisher(stranger)
        bench.until(lambda: bench.state.code == NavCode.RELEASED)
    drive(bench)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_of_two_navigators_both_hold_and_the_one_that_is_left_goes_on(
    bench: Bench, launch: Any, end: signal.Signals
) -> None:
    """Started together. One that was killed is seen for a while by who knew it, and not by one that
    is started after it."""
    first, second = (launch(NAVIGATOR, "-p", "listen:=0.2") for _ in range(2))
    bench.until(lambda: bench.states and bench.count_publishers("nav_status") == 2)
    bench.until(lambda: held(bench, "two nodes with the name /navigator"))
    bench.spin(1.0)
    assert not bench.twists or not any(twist.angular.z for twist in bench.twists)
    if end == signal.SIGINT:
        first.send_signal(end)
        bench.until(lambda: first.poll() is not None and bench.state.code == NavCode.RELEASED)
    else:
        first.send_signal(end)
        second.send_signal(end)
        first.wait(), second.wait()
        bench.states.clear()
        launch(NAVIGATOR, "-p", "listen:=0.2")
        bench.until(lambda: bench.states and bench.state.state == "idle")
    drive(bench)
