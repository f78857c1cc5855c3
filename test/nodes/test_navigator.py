"""The navigator node in a process of its own, over real topics."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

rclpy = pytest.importorskip("rclpy")
from geometry_msgs.msg import Twist, TwistStamped  # noqa: E402
from nav_msgs.msg import Odometry  # noqa: E402
from rcl_interfaces.msg import Parameter, ParameterValue  # noqa: E402
from rcl_interfaces.srv import DescribeParameters, GetParameters, SetParameters  # noqa: E402
from rclpy.context import Context  # noqa: E402
from rclpy.duration import Duration  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data  # noqa: E402
from std_msgs.msg import Bool, Empty, String  # noqa: E402

from edge_cloud_spec.errors import UserError  # noqa: E402
from edge_cloud_spec.msg import NavCommand, VerifiedTokens  # noqa: E402
from edge_cloud_spec.nav.motion import Velocity  # noqa: E402
from edge_cloud_spec.nav.status import Status  # noqa: E402
from edge_cloud_spec.nav.watchdog import REPEATS  # noqa: E402
from edge_cloud_spec.nodes.base_output import SportOutput, TwistOutput  # noqa: E402

DOMAIN = 60 + os.getpid() % 40
PATIENCE = 60.0  # s; only a hung test takes that long
MODULE = ["-m", "edge_cloud_spec.nodes.navigator"]
# All that the executor can do is taken, and the lock with it: only the watchdog is left.
HANGING = """
import sys, time
from std_msgs.msg import Empty
from edge_cloud_spec.nodes.navigator import NavigatorNode
from edge_cloud_spec.nodes.run import spin

class Hanging(NavigatorNode):
    def __init__(self):
        super().__init__()
        self.create_subscription(Empty, "hang", self.hang, 10)

    def hang(self, message):
        with self._lock:
            time.sleep(60)

sys.exit(spin(Hanging))
"""


class Bench(Node):
    """The other side of the navigator's topics, and what it has heard."""

    def __init__(self, context: Context) -> None:
        super().__init__("bench", context=context)
        self.executor_ = SingleThreadedExecutor(context=context)
        self.executor_.add_node(self)
        self.twists: list[Twist] = []
        self.commands: list[NavCommand] = []
        self.states: list[str] = []
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.create_subscription(Twist, "cmd_vel", self.twists.append, 100)
        self.create_subscription(NavCommand, "nav_command", self.commands.append, 10)
        self.create_subscription(
            String, "nav_status", lambda message: self.states.append(message.data), latched
        )
        self.words = self.create_publisher(VerifiedTokens, "verified_tokens", 10)
        self.e_stop = self.create_publisher(Bool, "e_stop", 10)
        self.instruction = self.create_publisher(String, "instruction", 10)
        self.odom = self.create_publisher(Odometry, "odom", qos_profile_sensor_data)
        self.hang = self.create_publisher(Empty, "hang", 10)

    def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, (self.states, len(self.twists))
            self.executor_.spin_once(timeout_sec=0.05)

    @property
    def state(self) -> Status:
        return Status.parse(self.states[-1])

    def said(self, state: str, request: str, detail: str = "") -> bool:
        now = self.state
        return (now.state, now.request) == (state, request) and now.detail.startswith(detail)

    def say(
        self,
        text: str,
        request: str,
        verified: bool = True,
        instruction: str = "",
        stops: int | None = None,
        ahead: float = 0.0,
    ) -> None:
        """``stops``: None for the count that was heard; ``ahead``: s of the camera's clock."""
        message = VerifiedTokens(request_id=request, text=text, tokens=[1, 2], verified=verified)
        stamp = self.get_clock().now() + Duration(seconds=ahead)
        message.header.stamp = stamp.to_msg()
        message.instruction = instruction
        message.stops = self.state.stops if stops is None else stops
        message.finished = True
        self.words.publish(message)

    def call(self, kind: Any, name: str, request: Any) -> Any:
        client = self.create_client(kind, f"navigator/{name}")
        self.until(client.service_is_ready)
        self.until(lambda: self.answer(client.call_async(request)))
        return self.answered

    def answer(self, future: Any) -> bool:
        """Whether the answer came; it is lost if the server has not found the client yet."""
        self.executor_.spin_until_future_complete(future, timeout_sec=3.0)
        self.answered = future.result() if future.done() else None
        return future.done()

    @property
    def turning(self) -> bool:
        return bool(self.twists) and abs(self.twists[-1].angular.z) > 0.1

    @property
    def halted(self) -> bool:
        """Stopped, and no command that was under way is still to come."""
        return len(self.twists) > 3 and not any(t.angular.z for t in self.twists[-4:])

    @property
    def still(self) -> bool:
        last = self.twists[-1]
        return last.linear.x == last.linear.y == last.angular.z == 0.0


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    monkeypatch.setenv("ROS_DOMAIN_ID", str(DOMAIN))
    context = Context()
    rclpy.init(context=context, domain_id=DOMAIN)
    node = Bench(context)
    yield node
    node.executor_.shutdown()
    node.destroy_node()
    rclpy.shutdown(context=context)


@pytest.fixture
def start(bench: Bench) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, program: list[str] = MODULE) -> subprocess.Popen[str]:
        ros = ["--ros-args", *arguments] if arguments else []
        process = subprocess.Popen(
            [sys.executable, *program, *ros], stderr=subprocess.PIPE, text=True
        )
        running.append(process)
        bench.until(lambda: bench.states and bench.words.get_subscription_count())
        bench.until(lambda: bench.e_stop.get_subscription_count())
        bench.until(lambda: bench.instruction.get_subscription_count())
        bench.until(lambda: bench.count_publishers("cmd_vel"))
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def test_verified_words_move_and_e_stop_and_stop_end_it(bench: Bench, start: Any) -> None:
    process = start()
    bench.say("action: turn left large;", "r1")
    bench.until(lambda: bench.turning and bench.commands)
    assert bench.commands[0].text == "turn left large" and bench.commands[0].verified
    assert bench.commands[0].action == NavCommand.TURN

    bench.e_stop.publish(Bool(data=True))
    bench.until(lambda: bench.halted and bench.said("stopped", "r1"))
    moved = len(bench.twists)
    bench.say("action: turn left large;", "r2")
    bench.until(lambda: bench.said("stopped", "r2"))
    assert not any(abs(twist.angular.z) > 0 for twist in bench.twists[moved:])

    bench.e_stop.publish(Bool(data=False))
    bench.until(lambda: bench.said("idle", "r2", "released"))
    bench.say("action: search;", "r3")
    bench.until(lambda: bench.turning)
    bench.instruction.publish(String(data="stop"))
    bench.until(lambda: bench.halted and bench.said("stopped", "r3", "told to stop"))

    bench.instruction.publish(String(data="find it"))
    bench.until(lambda: bench.states[-1].startswith("idle"))
    bench.say("exception: cannot move forward small;", "r4", instruction="find it")
    bench.until(lambda: bench.said("idle", "r4", "refused: 'exception:"))
    bench.say("action: move forward small;", "r5", verified=False, instruction="find it")
    bench.until(lambda: bench.said("idle", "r5", "refused: its words are not verified"))
    bench.until(lambda: len(bench.commands) >= 2)
    assert [command.request_id for command in bench.commands] == ["r1", "r3"]

    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and "Traceback" not in errors


def test_old_decisions_move_nothing_whatever_the_clocks_say(bench: Bench, start: Any) -> None:
    start()
    bench.instruction.publish(String(data="find the cup "))
    before = bench.state.stops
    bench.e_stop.publish(Bool(data=True))
    bench.until(lambda: bench.said("stopped", "-"))
    during = bench.state.stops
    bench.e_stop.publish(Bool(data=False))
    bench.until(lambda: bench.said("idle", "-", "released"))
    assert len({before, during, bench.state.stops}) == 3

    turn, cup = "action: turn left large;", "find the cup"
    for number, stops in enumerate((before, during, 0, bench.state.stops + 1)):
        bench.say(turn, f"old{number}", instruction=cup, stops=stops, ahead=0.4)
        bench.until(lambda n=number: bench.said("idle", f"old{n}", "refused: its frame is from"))
    bench.instruction.publish(String(data="stop"))
    bench.until(lambda: bench.state.state == "stopped")
    bench.instruction.publish(String(data="find the door"))
    bench.until(lambda: bench.state.state == "idle")
    bench.say(turn, "now", instruction="find the door", ahead=0.4)
    bench.until(lambda: bench.turning and bench.commands)
    bench.until(lambda: bench.said("idle", "now"))
    bench.say(turn, "another", instruction=cup, ahead=0.4)
    bench.until(lambda: bench.said("idle", "another", "refused: it was decided for another"))
    assert [command.request_id for command in bench.commands] == ["now"]


def test_a_navigator_that_was_started_again_counts_from_elsewhere(bench: Bench, start: Any) -> None:
    process = start()
    before = bench.state.stops
    process.kill()
    process.wait()
    bench.states.clear()
    start()
    assert bench.state.stops != before
    bench.say("action: turn left large;", "r1", stops=before, ahead=0.4)
    bench.until(lambda: bench.said("idle", "r1", "refused: its frame is from before"))
    assert not bench.commands


def test_a_navigator_that_ends_in_motion_says_zero_last(bench: Bench, start: Any) -> None:
    process = start()
    bench.say("action: turn left large;", "r1")
    bench.until(lambda: bench.turning)
    process.send_signal(signal.SIGTERM)
    bench.until(lambda: process.poll() is not None and bench.still)
    assert process.returncode == 0


def test_the_watchdog_stops_the_robot_when_the_executor_hangs(bench: Bench, start: Any) -> None:
    process = start(program=["-c", HANGING])
    bench.until(lambda: bench.hang.get_subscription_count())
    bench.say("action: turn left large;", "r1")
    bench.until(lambda: bench.turning)
    bench.hang.publish(Empty())
    bench.until(lambda: bench.still)
    process.kill()
    assert bench.states[-1].startswith("moving"), "not the navigator's own doing"


def test_parameters_out_of_range_are_refused_by_name(bench: Bench, start: Any) -> None:
    start()

    def put(name: str, value: ParameterValue) -> Any:
        request = SetParameters.Request(parameters=[Parameter(name=name, value=value)])
        return bench.call(SetParameters, "set_parameters", request).results[0]

    refused = put("limits.speed", ParameterValue(type=3, double_value=9.0))
    assert not refused.successful and "limits.speed" in refused.reason
    refused = put("limits.speed", ParameterValue(type=3, double_value=float("nan")))
    assert not refused.successful and "limits.speed" in refused.reason
    refused = put("odometry", ParameterValue(type=4, string_value="maybe"))
    assert not refused.successful and "odometry must be one of" in refused.reason
    refused = put("output.kind", ParameterValue(type=4, string_value="unitree_sport"))
    assert not refused.successful and "start" in refused.reason
    assert put("limits.speed", ParameterValue(type=2, integer_value=1)).successful

    got = bench.call(
        GetParameters, "get_parameters", GetParameters.Request(names=["odometry", "output.kind"])
    )
    assert [value.string_value for value in got.values] == ["auto", "twist"]
    about = bench.call(
        DescribeParameters,
        "describe_parameters",
        DescribeParameters.Request(names=["limits.speed"]),
    ).descriptors[0]
    assert about.floating_point_range[0].to_value == 1.5 and "m/s" in about.description


def test_a_bad_parameter_at_the_start_is_told_and_holds_the_robot(bench: Bench, start: Any) -> None:
    start("-p", "limits.speed:=9.0", "-p", "odometry:=maybe")
    bench.until(lambda: "limits.speed must be" in bench.states[-1])
    assert bench.states[-1].startswith("stopped")
    assert "odometry must be one of" in bench.states[-1]
    bench.say("action: turn left large;", "r1")
    bench.until(lambda: bench.said("stopped", "r1"))
    assert bench.commands == []
    good = [
        Parameter(name="limits.speed", value=ParameterValue(type=3, double_value=0.5)),
        Parameter(name="odometry", value=ParameterValue(type=4, string_value="off")),
    ]
    bench.call(SetParameters, "set_parameters", SetParameters.Request(parameters=good))
    bench.until(lambda: bench.said("idle", "r1", "released"))


def test_odometry_closes_the_loop(bench: Bench, start: Any) -> None:
    start("-p", "odometry:=required", "-p", "odometry_timeout:=5.0")
    stand = Odometry()
    stand.pose.pose.orientation.w = 1.0

    def blocked() -> bool:
        stand.header.stamp = bench.get_clock().now().to_msg()
        bench.odom.publish(stand)
        if not bench.states[-1].startswith("moving"):
            bench.say("action: move forward small;", f"r{time.monotonic()}")
        return any("did not get where it should" in state for state in bench.states)

    bench.until(blocked)


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
