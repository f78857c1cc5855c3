"""The drafter's threads: what its loop decides reaches the decode that is under way."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Iterator

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from helpers.graph.decode_graph import CAMERA, Watcher, frame
from helpers.graph.nodes_here import node_here
from helpers.graph.peer import Peer
from hypothesis import given
from hypothesis import strategies as st
from rclpy.parameter import Parameter
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Bool, String

from edge_cloud_spec.edge.measures import DecodeStats
from edge_cloud_spec.edge.runner import OUT_OF_REACH, Outcome
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.health import Level
from edge_cloud_spec.msg import InstructionStatus, LinkState, NavStatus
from edge_cloud_spec.nav.events import EStop, Report, Tick
from edge_cloud_spec.nav.status import TOLD_TO_STOP, GoalStatus, NavCode, NavigatorStatus
from edge_cloud_spec.nodes.drafter import STARTED, DrafterNode
from edge_cloud_spec.nodes.drafting.topics import to_decode_stats
from edge_cloud_spec.nodes.nav_messages import to_status
from edge_cloud_spec.nodes.runtime.qos import EVERY_PUBLISHER, LATCHED, RELIABLE, SENSOR_DATA
from edge_cloud_spec.pilot.decision_loop import Decide, Ended, Frame
from edge_cloud_spec.pilot.pilot import Decided
from edge_cloud_spec.pilot.settings import DrafterSettings
from edge_cloud_spec.presets import preset_names

ENDS = ("end", "length", "aborted", "failed", "bad_request", *OUT_OF_REACH)
TREES = {"specedge", "best_first", "mc_tslt", "mc_dsd"}  # presets that only a model can follow
NO_MODEL = {"model.path": "bytes"}  # loaded at once


@pytest.fixture
def node() -> Iterator[DrafterNode]:
    with node_here(DrafterNode, **NO_MODEL, reply_timeout=0.5) as node:
        node.bring_up()
        yield node


def test_what_fails_in_each_decision_is_logged_once_and_counted(
    node: DrafterNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before, a wrong token was an ERROR a second for as long as it was wrong."""
    for number in range(50):
        node._publish(Report(f"the token is wrong; it asks again in {number} s"))
        assert f"in {number} s" in str(node.diagnose())
    node._publish(Report("something else"))
    node.get_logger().info("the end")
    logged = [line for line in capfd.readouterr().err.splitlines() if "ERROR" in line]
    assert 2 <= len(logged) <= 10, "a few, where this took seconds"
    assert "in 0 s" in logged[0] and "something else" in logged[-1]


@pytest.mark.parametrize("preset", preset_names())
def test_a_drafter_of_chains_starts_with_a_preset_that_fits_or_says_which_do(preset: str) -> None:
    with node_here(DrafterNode, **NO_MODEL, preset=preset) as node:
        try:
            node.bring_up()
        except UserError as error:
            assert f"preset {preset}: it drafts trees" in str(error)
        assert bool(node.problem) == (preset in TREES)


@given(st.sampled_from(sorted(ENDS)), st.sampled_from([0.0, 1e-9, 2.0]), st.integers(0, 3))
def test_figures_of_any_decode_can_be_published(reason: str, seconds: float, tokens: int) -> None:
    outcome = Outcome(reason, "", (1,) * tokens, seconds, DecodeStats())
    decide = Decide("ab", "find it", Frame(b""), 0)
    told = to_decode_stats(Decided(decide, Ended(), outcome=outcome), DrafterSettings())
    assert math.isfinite(told.tokens_per_second) and told.finish_reason == reason


def test_what_the_navigator_says_of_a_motion_that_goes_on_is_heard(
    node: DrafterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says at once that an action was done and that it goes on, and a search is counted by it;
    a queue of one kept the last only."""
    received: list[object] = []

    def receive(event: object) -> None:
        if not isinstance(event, Tick):  # its timer runs on
            received.append(event)

    monkeypatch.setattr(node._pilot, "receive", receive)
    said = [NavigatorStatus("ready", "r1", "so", 7, code) for code in (NavCode.DONE, NavCode.NONE)]
    with Peer() as navigator:
        publisher = navigator.create_publisher(NavStatus, "nav_status", LATCHED)
        navigator.until(publisher.get_subscription_count)
        for status in said:
            publisher.publish(to_status(status))
        navigator.until(
            lambda: received[-1:] == said[-1:],
            meanwhile=lambda: rclpy.spin_once(node, timeout_sec=0.01),
        )
    assert received == said


def test_only_a_state_of_lost_or_a_bridge_that_is_gone_is_a_lost_link(node: DrafterNode) -> None:
    """test_decode.py has a drafter creep."""
    topics = node._topics
    with Peer() as bridge:
        assert not topics.link_problem, "nothing was heard yet: the cloud is asked"
        link = bridge.create_publisher(LinkState, "link_state", LATCHED)
        for state in (LinkState.LOST, LinkState.DEGRADED, LinkState.LOST, LinkState.CLOUD):
            link.publish(LinkState(state=state, detail="why"))
            said = "the link is lost: why" if state == LinkState.LOST else ""
            bridge.until(lambda said=said: topics.link_problem == said)
        bridge.destroy_publisher(link)
        bridge.until(lambda: topics.link_problem == "the cloud bridge is gone")


def test_each_reason_for_which_nothing_is_decided_stands_with_the_instruction(
    node: DrafterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[GoalStatus] = []
    monkeypatch.setattr(node._topics, "publish_status", said.append)
    monkeypatch.setattr(node._topics, "connect", None)  # each decision fails at once
    node._on_instruction(String(data="find it"))

    def told() -> str:
        node._diagnose()
        assert said[-1].state == "following"
        return said[-1].detail

    stamp = node.get_clock().now().to_msg()
    raw = Image(encoding="yuv422", width=2, height=2, step=4, data=bytes(8))
    raw.header.stamp = stamp
    node._on_picture(raw)
    assert "encoding 'yuv422'" in told()
    node._on_picture(CompressedImage(data=frame()))
    assert "header.stamp is 0" in told()

    def told_of_good_pictures() -> str:
        picture = CompressedImage(data=frame())
        picture.header.stamp = node.get_clock().now().to_msg()
        node._on_picture(picture)
        return told()

    assert "stamp" not in told_of_good_pictures()
    with Peer() as bridge:
        link = bridge.create_publisher(LinkState, "link_state", LATCHED)
        link.publish(LinkState(state=LinkState.LOST, detail="the token is refused"))
        lost = "the link is lost: the token is refused"
        bridge.until(lambda: told_of_good_pictures() == lost)
        link.publish(LinkState(state=LinkState.CLOUD))
        bridge.until(lambda: told_of_good_pictures() != lost)
    node._on_instruction(String(data="stop"))  # nothing is decided while the node ends


def test_a_ros_time_that_stands_still_is_said_by_a_node_and_with_the_instruction(
    node: DrafterNode,
) -> None:
    for _ in range(3):
        assert "ROS time" not in str(node._diagnose()), "this one goes on"
    node.set_parameters([Parameter("use_sim_time", value=True)])
    node._on_instruction(String(data="find it"))
    node._diagnose()
    health = node._diagnose()
    assert "nothing publishes /clock" in str(health) and health.level == Level.ERROR
    assert any(part.check == "clock" for part in health.parts), "a console prints it"
    assert node._pilot._loop.trouble.startswith("ROS time stands still")


OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
DRAFTER, TOPIC = "/robot1/drafter", f"/robot1/{CAMERA}"


@pytest.mark.parametrize(
    ("encoding", "step", "why"),
    [
        ("yuv422", 16, "have encoding 'yuv422'"),
        ("32FC1", 32, "which is a depth camera's"),
        ("rgb8", 0, "has rows of 0 bytes"),
        ("rgb8", 24, ""),
        ("16UC1; png compressed ", 0, "which is a depth camera's"),
        ("rgb8; jpeg compressed bgr8", 0, ""),
    ],
)
def test_why_a_picture_is_refused_is_told_on_instruction_status(
    node: DrafterNode, encoding: str, step: int, why: str
) -> None:
    told: list[GoalStatus] = []
    node._topics.publish_status = told.append  # type: ignore[method-assign]
    node._on_instruction(String(data="find the blue box"))
    picture = Image(width=8, height=4, encoding=encoding, step=step, data=bytes(4 * step))
    if "compressed" in encoding:
        picture = CompressedImage(format=encoding, data=frame())
    picture.header.stamp = node.get_clock().now().to_msg()
    node._on_picture(picture)
    node.diagnose()
    assert told[-1].state == "following" and bool(told[-1].detail) == bool(why)
    assert why in told[-1].detail, told[-1]


# Its waits are shorter than a drafter's; test_health.py tests the camera's watch with all of them.
IMPATIENT = """
import sys
from edge_cloud_spec.nodes.drafting import camera
from edge_cloud_spec.nodes.runtime import diagnostics
from edge_cloud_spec.pilot import decision_loop
camera.SILENT_S = decision_loop.MOVED_S = 0.6
diagnostics.PERIOD_S = 0.2
from edge_cloud_spec.nodes.drafter import main
sys.exit(main())
"""


@pytest.fixture
def robot(launch: Callable[..., subprocess.Popen[str]]) -> Iterator[Watcher]:
    given = ("-p", "model.path:=bytes", "-p", "reply_timeout:=1.0", "-p", "hardware_id:=go2-7")
    launch(["-c", IMPATIENT], "-r", "__ns:=/robot1", *given)
    with Watcher("/robot1", sees=False) as robot:
        yield robot


def test_every_fault_of_the_camera_is_said_and_passes(robot: Watcher) -> None:
    stranger = robot.create_publisher(CompressedImage, TOPIC.replace("1", "2"), 10)
    robot.until(
        lambda: robot.says(DRAFTER, ERROR, f"no picture on {TOPIC}", "there is /robot2/camera")
    )
    assert stranger.get_subscription_count() == 0  # another robot's pictures do not count
    assert robot.last[DRAFTER].hardware_id == "go2-7"

    robot.ask("find the blue box")
    blind = f"following find the blue box: no picture on {TOPIC}"
    robot.until(lambda: robot.told().startswith(blind))

    wrong = robot.create_publisher(Image, TOPIC, 10)
    robot.until(lambda: robot.says(DRAFTER, ERROR, "it carries sensor_msgs/msg/Image"))
    robot.destroy_publisher(wrong)

    robot.start_camera()
    robot.until(lambda: robot.told().startswith("following") and blind not in robot.told())
    # There is no bridge: said by the decision that fails, with what to do.
    robot.until(
        lambda: robot.says(DRAFTER, ERROR, "no cloud bridge is on the topics", "start the node")
    )
    robot.until(lambda: "no cloud bridge" in robot.told())
    robot.ask("stop")
    robot.until(lambda: robot.told().startswith("stopped"))

    navigator = robot.create_publisher(NavStatus, "nav_status", LATCHED)
    navigator.publish(to_status(NavigatorStatus("moving", "r1")))
    robot.until(lambda: robot.says(DRAFTER, ERROR, "stay the same though the robot is told to"))
    navigator.publish(to_status(NavigatorStatus("idle", "r1", code=NavCode.DONE)))
    robot.picture = b"no picture at all"
    robot.until(lambda: robot.says(DRAFTER, ERROR, "cannot be read"))
    robot.picture = frame()
    robot.until(lambda: robot.says(DRAFTER, OK, "no instruction"))  # and the problem was forgotten


def test_an_instruction_during_e_stop_is_refused_in_words_and_forgotten() -> None:
    with Peer() as operator, node_here(DrafterNode, **NO_MODEL) as node:
        lines = operator.collect(InstructionStatus, "instruction_status", LATCHED)
        instruction = operator.create_publisher(String, "instruction", RELIABLE)
        stops = [operator.create_publisher(Bool, "e_stop", qos) for qos in (LATCHED, RELIABLE)]
        received, receive = list[object](), node._pilot.receive
        node._pilot.receive = lambda event: (received.append(event), receive(event))

        def reaches(event: object) -> None:
            operator.until(
                lambda: event in received,
                meanwhile=lambda: rclpy.spin_once(node, timeout_sec=0.01),
            )
            received.clear()

        def hear(begin: str, meanwhile: Callable[[], object] = lambda: None) -> None:
            operator.until(
                lambda: lines and str(GoalStatus.read(lines[-1])).startswith(begin),
                meanwhile=lambda: (meanwhile(), rclpy.spin_once(node, timeout_sec=0.01)),
            )

        stops[0].publish(Bool(data=True))  # before the drafter begins, as for one that starts again
        operator.until(lambda: stops[0].get_subscription_count() >= len(EVERY_PUBLISHER))
        reaches(EStop(True))
        node.bring_up()
        hear(f"idle {STARTED}")
        operator.until(instruction.get_subscription_count)
        instruction.publish(String(data="find the red box"))
        hear("failed e_stop is on; publish the instruction again")
        stops[0].publish(Bool(data=False))
        reaches(EStop(False))
        operator.spin(0.5)
        assert not any(line.state == InstructionStatus.FOLLOWING for line in lines)
        instruction.publish(String(data="find the red box"))
        hear("following find the red box")
        stops[1].publish(Bool(data=True))
        hear("stopped e_stop")
        stops[1].publish(Bool(data=False))
        reaches(EStop(False))
        instruction.publish(String(data="find the red box"))
        hear("following find the red box")
        navigator = operator.create_publisher(NavStatus, "nav_status", LATCHED)
        navigator.publish(to_status(NavigatorStatus("stopped", code=NavCode.E_STOP)))
        hear("stopped e_stop")  # which its publisher did not tell the drafter itself
        instruction.publish(String(data="find the red box"))
        hear("failed e_stop is on; publish the instruction again")
        released = NavigatorStatus("idle", code=NavCode.RELEASED)
        navigator.publish(to_status(released))
        reaches(released)
        instruction.publish(String(data="find the red box"))
        hear("following find the red box")
        bystander = "teleop publishes on /cmd_vel"
        held = NavigatorStatus("stopped", detail=bystander, code=NavCode.OTHER_PUBLISHER)
        navigator.publish(to_status(held))
        hear(f"stopped {bystander}; publish the instruction again")
        instruction.publish(String(data="find the red box"))
        hear(f"failed {bystander}; publish the instruction again")
        navigator.publish(to_status(released))
        reaches(released)
        instruction.publish(String(data="find the red box"))
        hear("following find the red box")
        lossy = operator.create_publisher(String, "instruction", SENSOR_DATA)
        halt = String(data="Halt!")  # lost until the drafter has found its publisher
        hear(f"stopped {TOLD_TO_STOP}", meanwhile=lambda: lossy.publish(halt))
