"""The drafter's threads: what its loop decides reaches the decode that is under way."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from helpers.graph.decode_graph import CAMERA, INSTRUCTION, Watcher, frame
from helpers.graph.nodes_here import node_here
from helpers.graph.peer import REPLY_TIMEOUT
from helpers.navigator_bench import Bench
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Bool, String

from edge_cloud_spec.msg import InstructionStatus, NavStatus
from edge_cloud_spec.nav.events import Report
from edge_cloud_spec.nav.status import GoalStatus, Status
from edge_cloud_spec.nodes.drafter import STARTED, DrafterNode
from edge_cloud_spec.nodes.runtime.heartbeat import HUNG
from edge_cloud_spec.nodes.runtime.qos import LATCHED

NO_MODEL = {"model.path": "bytes"}  # loaded at once


@pytest.fixture
def node() -> Iterator[DrafterNode]:
    with node_here(DrafterNode, **NO_MODEL) as node:
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


def test_what_the_navigator_says_of_a_motion_that_goes_on_is_heard(
    node: DrafterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says at once that an action was done and that it goes on, and a search is counted by it;
    a queue of one kept the last only."""
    heard: list[Status] = []

    def hear(event: object) -> None:
        heard.extend([event] if isinstance(event, Status) else [])

    monkeypatch.setattr(node._pilot, "hear", hear)
    navigator = node.create_publisher(NavStatus, "nav_status", LATCHED)
    said = [Status("ready", "r1", detail, 7) for detail in ("done: search", "search")]
    late = time.monotonic() + REPLY_TIMEOUT
    while not navigator.get_subscription_count():
        assert time.monotonic() < late
        time.sleep(0.01)
    for status in said:
        navigator.publish(NavStatus(**status.fields))
    while heard[-1:] != said[-1:]:
        assert time.monotonic() < late
        rclpy.spin_once(node, timeout_sec=0.1)
    assert heard == said


OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
DRAFTER, TOPIC = "/robot1/drafter", f"/robot1/{CAMERA}"


# Its waits are shorter than a drafter's; test_health.py tests the camera's watch with all of them.
IMPATIENT = """
import sys
from edge_cloud_spec.nodes.drafting import camera
from edge_cloud_spec.nodes.runtime import diagnostics
camera.SILENT_S = camera.MOVED_S = 0.6
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
    robot.destroy_publisher(stranger)
    other = robot.create_publisher(CompressedImage, "camera/imag_raw/compressed", 10)
    robot.until(
        lambda: robot.says(DRAFTER, ERROR, f"no picture on {TOPIC}", "nothing publishes it")
    )
    nearest = "/robot1/camera/imag_raw/compressed"
    robot.until(lambda: robot.says(DRAFTER, ERROR, f"camera:={nearest}"))
    assert robot.last[DRAFTER].hardware_id == "go2-7"

    robot.ask("find the blue box")
    blind = f"following find the blue box: no picture on {TOPIC}"
    robot.until(lambda: robot.told().startswith(blind))

    robot.destroy_publisher(other)
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
    navigator.publish(NavStatus(**Status("moving", "r1", "move forward small").fields))
    robot.until(lambda: robot.says(DRAFTER, ERROR, "the robot moves and they stay the same"))
    navigator.publish(NavStatus(**Status("idle", "r1", "done: move forward small").fields))
    robot.picture = b"no picture at all"
    robot.until(lambda: robot.says(DRAFTER, ERROR, "cannot be read"))
    robot.picture = frame()
    robot.until(lambda: robot.says(DRAFTER, OK, "no instruction"))  # and the problem was forgotten


def test_an_instruction_during_e_stop_is_refused_in_words_and_forgotten(
    bench: Bench, start: Any, launch: Any
) -> None:
    lines = bench.collect(InstructionStatus, "instruction_status", LATCHED)
    stop = bench.create_publisher(Bool, "e_stop", LATCHED)
    stop.publish(Bool(data=True))  # before the drafter begins, as for one that starts again

    def said(begin: str) -> bool:
        return bool(lines) and str(GoalStatus.read(lines[-1])).startswith(begin)

    start()
    launch(["-m", "edge_cloud_spec.nodes.drafter"], "-p", "model.path:=bytes")
    bench.until(lambda: said(f"idle {STARTED}"))
    bench.until(lambda: bench.instruction.get_subscription_count() >= 2)
    bench.spin(0.5)  # until the drafter has found this publisher, too
    bench.instruction.publish(String(data="find the red box"))
    bench.until(lambda: said("failed e_stop is on; publish the instruction again"))
    stop.publish(Bool(data=False))
    bench.until(lambda: "released; publish an instruction" in bench.state.detail)
    assert not any(line.state == InstructionStatus.FOLLOWING for line in lines)
    bench.instruction.publish(String(data="find the red box"))
    bench.until(lambda: said("following find the red box"))
    bench.e_stop.publish(Bool(data=True))
    bench.until(lambda: said("stopped e_stop"))


# edge_only needs neither a bridge nor a cloud.
PROGRAM = """
import sys, time
from edge_cloud_spec.nodes.runtime import heartbeat
from edge_cloud_spec.nodes.runtime import diagnostics
heartbeat.HANG_S, heartbeat.CHECK_S = 1.0, 0.1
diagnostics.PERIOD_S = 0.2
from edge_cloud_spec.nodes.drafter import DrafterNode
from edge_cloud_spec.nodes.runtime.run import spin

class Failing(DrafterNode):
    def load(self):
        super().load()
        self.kept, self.runs = self._pilot.runner.run, 0
        self._pilot.runner.run = self.run_next

    def run_next(self, *arguments):
        self.runs += 1
        if self.runs == 1:
            raise RuntimeError("the model broke")
        if arguments[0].instruction == "find the brown door":
            time.sleep(600)
        return self.kept(*arguments)

sys.exit(spin(Failing))
"""


def test_a_decode_that_raises_ends_its_words_and_one_that_hangs_ends_the_node(
    launch: Callable[..., subprocess.Popen[str]],
) -> None:
    """In between, a drafter that has nothing to decide is alive for longer than a hang may last."""
    given = ("-p", "preset:=edge_only", "-p", "retry:=0.1", "-p", "reply_timeout:=1.0")
    process = launch(["-c", PROGRAM], *given)
    with Watcher() as watcher:
        watcher.ask(INSTRUCTION)
        watcher.until(lambda: len(watcher.finished()) >= 2)
        assert next(m.finish_reason for m in watcher.finished()) == "failed"
        assert watcher.finished()[1].finish_reason in ("end", "length")
        ended = {m.request_id for m in watcher.finished()[:2]}
        watcher.until(lambda: {m.request_id for m in watcher.heard["decode_stats"]} >= ended)
        watcher.ask("stop")
        watcher.statuses.clear()
        watcher.until(lambda: len(watcher.statuses) > 10 or process.poll() is not None)
        assert process.poll() is None
        watcher.ask("find the brown door")
        watcher.until(lambda: process.poll() is not None)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == HUNG
        assert "the thread model hangs for" in errors and "the model broke" in errors
