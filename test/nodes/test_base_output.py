"""What a base receives: Twists, stamped or not, or the Go2's own requests."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
from geometry_msgs.msg import Twist, TwistStamped
from helpers.navigator_bench import Bench

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nav.motion import Velocity
from edge_cloud_spec.nav.watchdog import REPEATS
from edge_cloud_spec.nodes.base_output import SportOutput, TwistOutput


def test_a_twist_stop_gets_through_a_driver_that_drops_zeros() -> None:
    sent: list[Twist] = []
    node: Any = SimpleNamespace(
        create_publisher=lambda kind, topic, depth: SimpleNamespace(publish=sent.append)
    )
    output = TwistOutput(node, stamped=False, frame="base_link", nudge=0.001)
    for repeat in range(REPEATS):
        output.stop(repeat)
    speeds = [twist.linear.x for twist in sent]
    assert speeds[0] == speeds[-1] == 0.0 and not any(twist.angular.z for twist in sent)
    passed = [round(speed, 2) for speed in speeds if speed != 0.0]  # as go2_ros2_sdk does it
    assert len(passed) > 2 and not any(passed)


def test_stamped_twists_carry_time_and_frame(bench: Bench) -> None:
    sent: list[TwistStamped] = []
    node: Any = SimpleNamespace(
        create_publisher=lambda kind, topic, depth: SimpleNamespace(publish=sent.append),
        get_clock=bench.get_clock,
    )
    output = TwistOutput(node, stamped=True, frame="base_link", nudge=0.0)
    output.command(Velocity(vx=0.5))
    assert sent[0].twist.linear.x == 0.5 and sent[0].header.frame_id == "base_link"
    assert sent[0].header.stamp.sec > 0


def test_sport_output_speaks_the_go2s_own_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def request() -> Any:
        return SimpleNamespace(header=SimpleNamespace(identity=SimpleNamespace(api_id=0)))

    node: Any = SimpleNamespace(
        create_publisher=lambda kind, topic, depth: SimpleNamespace(publish=sent.append)
    )
    with pytest.raises(UserError, match="unitree_api is not installed"):
        SportOutput(node)
    messages = SimpleNamespace(Request=request)
    monkeypatch.setitem(sys.modules, "unitree_api", SimpleNamespace(msg=messages))
    monkeypatch.setitem(sys.modules, "unitree_api.msg", messages)
    output = SportOutput(node)
    output.command(Velocity(vx=0.5, wz=-0.25))
    output.stop(0)
    assert [message.header.identity.api_id for message in sent] == [1008, 1003]
    assert sent[0].parameter == '{"x": 0.5, "y": 0.0, "z": -0.25}'
