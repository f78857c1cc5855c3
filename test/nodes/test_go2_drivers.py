"""The robot stops, and moves on nothing stale, behind what behaves as the two Go2 drivers do."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from geometry_msgs.msg import Twist
from helpers.drill import FORWARD, Drill
from helpers.graph.fake_go2 import FakeSdk, FakeSport
from helpers.navigator_bench import Bench
from sensor_msgs.msg import Image
from std_msgs.msg import Bool

from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nav.events import Drive, EStop, Halt, Instruction
from edge_cloud_spec.nav.motion import Limits
from edge_cloud_spec.nav.status import Status
from edge_cloud_spec.nodes.base_output import SportOutput
from edge_cloud_spec.nodes.runtime.qos import SENSOR_DATA
from edge_cloud_spec.pilot.decision_loop import DecisionLoop, Ended, Frame, LoopSettings
from edge_cloud_spec.share import share

FILE = str(share() / "config/robots/go2_ros2_sdk.yaml")
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def driver(bench: Bench) -> Iterator[FakeSdk]:
    driver = FakeSdk(bench.context)
    bench.executor_.add_node(driver)
    yield driver
    bench.executor_.remove_node(driver)
    driver.destroy_node()


def drive(bench: Bench, driver: FakeSdk, request: str = "r1") -> None:
    """Until the base goes ahead."""
    bench.until(lambda: bench.count_publishers("odom") and driver.base.x == 0.0)
    seen: list[int] = []

    def try_again() -> bool:  # the first words may come before the first odometry
        if not seen or bench.state.detail.startswith("refused"):
            seen.append(len(bench.states))
            bench.say(FORWARD, f"{request}-{len(seen)}")
            bench.until(lambda: len(bench.states) > seen[-1])
        return driver.base.velocity[0] > 0.1

    bench.until(try_again)


@pytest.mark.parametrize("stops", [True, False])
def test_a_stop_gets_through_a_driver_that_drops_zeros(
    bench: Bench, driver: FakeSdk, start: Start, stops: bool
) -> None:
    """Without the nudge such a base goes on: the fake is no fake if it stops."""
    without = () if stops else ("-p", "output.stop_nudge:=0.0")
    start("--params-file", FILE, *without)
    drive(bench, driver)
    bench.e_stop.publish(Bool(data=True))
    bench.until(lambda: bench.state.state == "stopped")
    count = len(bench.twists)
    bench.until(lambda: len(bench.twists) > count + 3 and bench.still)
    assert driver.base.still is stops


def freeze(driver: FakeSdk) -> None:
    driver.frozen = driver.get_clock().now()


def go_silent(driver: FakeSdk) -> None:
    """Another client took the robot; no message gets through."""
    driver.connected = False


@pytest.mark.parametrize(
    ("fail", "said"), [(freeze, "its stamps do not go on"), (go_silent, "odometry is missing")]
)
def test_a_motion_ends_when_the_driver_fails_and_none_begins(
    bench: Bench, driver: FakeSdk, start: Start, fail: Callable[[FakeSdk], None], said: str
) -> None:
    start("--params-file", FILE)
    bench.until(lambda: bench.count_publishers("odom"))
    bench.say(FORWARD, "old", ahead=-5.5)
    bench.until(lambda: bench.said("idle", "old", "refused: its frame is 5."))
    assert driver.base.still and driver.base.x == 0.0, "a picture that came late moves nothing"
    drive(bench, driver)
    fail(driver)
    bench.until(lambda: bench.state.state == "idle" and said in bench.state.detail)
    bench.until(lambda: bench.still)
    bench.say(FORWARD, "late")
    bench.until(lambda: bench.said("idle", "late", "refused: odometry is missing"))
    bench.until(lambda: driver.base.still or not driver.connected)


@pytest.mark.parametrize(("lag", "right"), [(2.7, True), (0.0, False)])
def test_pictures_that_are_late_but_stamped_on_arrival_need_camera_lag(
    bench: Bench, driver: FakeSdk, lag: float, right: bool
) -> None:
    """The robot turns until it is idle; only a picture that was taken then may be decided on."""
    loop: DecisionLoop = DecisionLoop(LoopSettings(lag=lag))
    shades: list[int] = []

    def on_image(message: Image) -> None:
        shades.append(message.data[0])
        loop.on(Frame(bytes(message.data[:1])), time.monotonic())

    bench.create_subscription(Image, "camera/image_raw", on_image, SENSOR_DATA)
    driver.lag = 2.5  # far above what a loaded machine takes from one picture to the next
    loop.on(Instruction("find it"), time.monotonic())
    bench.until(lambda: loop.take("r1", time.monotonic()))
    loop.on(Status("moving", "r1"), time.monotonic())
    driver.base.velocity = (0.0, 0.0, 1.0)
    bench.until(lambda: shades and shades[-1] > 5)
    driver.base.velocity = (0.0, 0.0, 0.0)
    loop.on(Ended("action: search;"), time.monotonic())
    loop.on(Status("idle", "r1"), time.monotonic())
    task: list[int] = []

    def due() -> bool:
        taken = loop.take("r2", time.monotonic())
        task.extend([] if taken is None else [taken.frame.jpeg[0]])
        return bool(task)

    bench.until(due)
    bench.until(lambda: len(set(shades[-20:])) == 1)  # now it shows the robot at rest
    assert (task[0] == shades[-1]) is right


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
    bench.until(lambda: driver.base.velocity[0] == Limits().speed)
    for _ in range(3):
        commands.publish(slow)
    bench.until(lambda: len(bench.twists) == 4)
    bench.until(lambda: driver.received == 4)
    assert driver.base.still is stops


def test_a_stop_reaches_the_sport_service(monkeypatch: pytest.MonkeyPatch) -> None:
    sport = FakeSport()
    node: Any = SimpleNamespace(create_publisher=lambda kind, topic, depth: sport)

    def request() -> Any:
        return SimpleNamespace(header=SimpleNamespace(identity=SimpleNamespace(api_id=0)))

    with pytest.raises(UserError, match="unitree_api is not installed"):
        SportOutput(node)
    messages = SimpleNamespace(Request=request)
    monkeypatch.setitem(sys.modules, "unitree_api", SimpleNamespace(msg=messages))
    monkeypatch.setitem(sys.modules, "unitree_api.msg", messages)
    output, drill = SportOutput(node), Drill()

    def carry_out(effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Drive):
                output.command(effect.velocity)
            elif isinstance(effect, Halt):
                output.stop(0)

    carry_out(drill.on(drill.current(FORWARD, "r1")) + drill.run(0.5))
    assert sport.base.velocity[0] > 0.1
    carry_out(drill.on(EStop(True)))
    assert sport.base.still
    carry_out(drill.on(drill.current(FORWARD, "r2")) + drill.run(0.5))
    assert sport.base.still
