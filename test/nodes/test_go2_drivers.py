"""The robot stops, and moves on nothing stale, behind what behaves as the two Go2 drivers do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from geometry_msgs.msg import Twist
from helpers.drill import FORWARD
from helpers.navigator_bench import Bench
from nav_msgs.msg import Odometry
from rclpy.context import Context
from rclpy.node import Node
from std_msgs.msg import Bool

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nav.limits import Limits
from edge_cloud_spec.nav.motion import Velocity
from edge_cloud_spec.nodes.base_output import SportOutput
from edge_cloud_spec.share import share

PERIOD = 0.02  # s, of the odometry
FILE = str(share() / "config/robots/go2_ros2_sdk.yaml")
MOVE, STOP = 1008, 1003  # as unitree_api has them
Start = Callable[..., subprocess.Popen[str]]


class FakeSdk(Node):
    """go2_ros2_sdk's node, as read at commit 7f005bb, without its twist_mux, and a base behind it.

    A Twist of zeros is dropped, another is rounded to 0.01 before it is sent. The base follows its
    last velocity for as long as no other comes, which is the worst that a base may do.
    """

    def __init__(self, context: Context) -> None:
        super().__init__("go2_driver_node", context=context)
        self.velocity = (0.0, 0.0, 0.0)
        self.received = 0  # messages on cmd_vel
        self._x = 0.0
        self._odom = self.create_publisher(Odometry, "odom", 10)
        self.create_subscription(Twist, "cmd_vel", self._on_twist, 10)
        self.create_timer(PERIOD, self._on_timer)

    @property
    def still(self) -> bool:
        return not any(self.velocity)

    def _on_twist(self, message: Twist) -> None:
        x, y, z = message.linear.x, message.linear.y, message.angular.z
        self.received += 1
        if any((x, y, z)):
            self.velocity = (round(x, 2), round(y, 2), round(z, 2))

    def _on_timer(self) -> None:
        self._x += self.velocity[0] * PERIOD
        message = Odometry()
        message.header.stamp = self.get_clock().now().to_msg()
        message.pose.pose.position.x = self._x
        message.pose.pose.orientation.w = 1.0
        self._odom.publish(message)


@pytest.fixture
def driver(bench: Bench) -> Iterator[FakeSdk]:
    driver = FakeSdk(bench.context)
    bench.executor_.add_node(driver)
    yield driver
    bench.executor_.remove_node(driver)
    driver.destroy_node()


@pytest.mark.parametrize("stops", [True, False])
def test_a_stop_gets_through_a_driver_that_drops_zeros(
    bench: Bench, driver: FakeSdk, start: Start, stops: bool
) -> None:
    """Without the nudge such a base goes on: the fake is no fake if it stops."""
    without = () if stops else ("-p", "output.stop_nudge:=0.0")
    start("--params-file", FILE, *without)
    bench.until(lambda: bench.count_publishers("odom"))
    requests = count()

    def goes_ahead() -> bool:  # the first words may come before the first odometry
        if bench.state.state == "idle":
            bench.say(FORWARD, f"r{next(requests)}")
        return driver.velocity[0] > 0.1

    bench.until(goes_ahead)
    bench.e_stop.publish(Bool(data=True))
    bench.until(lambda: bench.state.state == "stopped")
    so_far = len(bench.twists)
    bench.until(lambda: len(bench.twists) > so_far + 3 and bench.still)
    assert driver.still is stops


@pytest.mark.parametrize(("ratio", "stops"), [(0.005, True), (0.0, False)])
def test_the_zone_that_slows_down_stops_behind_the_driver_that_drops_zeros(
    bench: Bench, driver: FakeSdk, ratio: float, stops: bool
) -> None:
    """The collision monitor in our navigator's place: at its full speed, then slowed down."""
    commands = bench.create_publisher(Twist, "cmd_vel", 10)
    bench.until(lambda: commands.get_subscription_count() == 2)
    fast, slow = Twist(), Twist()
    fast.linear.x, slow.linear.x = Limits().speed, Limits().speed * ratio
    commands.publish(fast)
    bench.until(lambda: driver.velocity[0] == Limits().speed)
    for _ in range(3):
        commands.publish(slow)
    bench.until(lambda: len(bench.twists) == 4)
    bench.until(lambda: driver.received == 4)
    assert driver.still is stops


def test_a_stop_reaches_the_sport_service(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    publisher = SimpleNamespace(publish=sent.append)
    node: Any = SimpleNamespace(create_publisher=lambda kind, topic, depth: publisher)

    def request() -> Any:
        return SimpleNamespace(header=SimpleNamespace(identity=SimpleNamespace(api_id=0)))

    with pytest.raises(UserError, match="unitree_api is not installed"):
        SportOutput(node)
    messages = SimpleNamespace(Request=request)
    monkeypatch.setitem(sys.modules, "unitree_api", SimpleNamespace(msg=messages))
    monkeypatch.setitem(sys.modules, "unitree_api.msg", messages)
    output = SportOutput(node)
    output.command(Velocity(vx=0.3, wz=-0.2))
    output.stop(0)
    assert [request.header.identity.api_id for request in sent] == [MOVE, STOP]
    assert json.loads(sent[0].parameter) == {"x": 0.3, "y": 0.0, "z": -0.2}
