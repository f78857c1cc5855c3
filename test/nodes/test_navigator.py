"""The navigator node over real topics: in a process of its own where its end is looked at."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import TwistStamped
from helpers.graph.nodes_here import node_here
from helpers.graph.peer import REPLY_TIMEOUT
from helpers.navigator_bench import Bench
from nav_msgs.msg import Odometry
from rcl_interfaces.srv import DescribeParameters, GetParameters
from rclpy.duration import Duration
from rclpy.publisher import Publisher
from rclpy.time import Time
from std_msgs.msg import Bool, String

from edge_cloud_spec import instruction
from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.edge.link.state import LinkQuality
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.msg import (
    InstructionStatus,
    LinkState,
    NavAction,
    NavStatus,
    VerifiedTokens,
)
from edge_cloud_spec.nav.answer import SEARCH_ACTION, Action, every_action
from edge_cloud_spec.nav.events import Effect, Event, GoAround, Instruction, Tilt
from edge_cloud_spec.nav.motion import Velocity
from edge_cloud_spec.nav.navigator import Navigator
from edge_cloud_spec.nav.status import (
    GOAL_STATES,
    NAV_STATES,
    GoalStatus,
    NavCode,
    NavigatorStatus,
)
from edge_cloud_spec.nav.steps import Goal
from edge_cloud_spec.nodes.base_output import TwistOutput
from edge_cloud_spec.nodes.nav_messages import to_status
from edge_cloud_spec.nodes.navigator import NavigatorNode, action_markers, way_markers
from edge_cloud_spec.nodes.runtime.qos import EVERY_SENDER, LATCHED, RELIABLE, SENSOR_DATA


def test_states_have_the_numbers_of_the_message() -> None:
    assert [getattr(NavStatus, state.upper()) for state in NAV_STATES] == [1, 2, 3, 4]
    for state in NAV_STATES:
        said = NavigatorStatus(state, "r", "why", 7, NavCode.DONE, SEARCH_ACTION)
        assert NavigatorStatus.read(to_status(said)) == said
    assert [getattr(NavStatus, code.name) for code in NavCode] == list(NavCode)
    verbs = {getattr(NavAction, verb.upper()) for verb in ("stop", "move", "turn", "search")}
    assert verbs == {action.verb for action in every_action()}
    with pytest.raises(ValueError, match="no state"):
        NavigatorStatus.read(NavStatus())
    for number, state in enumerate(GOAL_STATES):
        assert getattr(InstructionStatus, state.upper()) == number
        said = GoalStatus(state, "find it", "why", "a-1")
        assert GoalStatus.read(InstructionStatus(**said.fields)) == said
    assert GoalStatus.read(InstructionStatus(state=255)).state == "unknown"
    assert [getattr(LinkState, str(each).upper()) for each in LinkQuality] == list(LinkQuality)


def test_verified_words_move_and_e_stop_and_stop_end_it(bench: Bench, start: Any) -> None:
    process = start()
    bench.say("action: turn left large;", "r1")
    bench.until(lambda: bench.turning and bench.commands)
    assert bench.commands[0].text == "turn left large" and bench.commands[0].verified
    assert Action.read(bench.commands[0].action) == Action("turn", "left", "large")

    bench.e_stop.publish(Bool(data=True))
    bench.until(lambda: bench.halted and bench.said("stopped", "r1"))
    moved = len(bench.twists)
    bench.say("action: turn left large;", "r2")
    bench.until(lambda: bench.said("stopped", "r2"))
    assert not any(abs(twist.angular.z) > 0 for twist in bench.twists[moved:])

    bench.e_stop.publish(Bool(data=False))
    bench.until(lambda: bench.said("stopped", "r2", "released: publish an instruction"))
    bench.publish("find it")
    bench.until(lambda: bench.said("idle", "r2", "released"))
    bench.say("action: search;", "r3", instruction="find it")
    bench.until(lambda: bench.turning)
    bench.publish("stop")
    bench.until(lambda: bench.halted and bench.said("stopped", "r3", "told to stop"))

    bench.instruct("find it")
    bench.say("exception: cannot move forward small;", "r4", instruction="find it")
    bench.until(lambda: bench.said("idle", "r4", "refused: 'exception:"))
    bench.say("action: move forward small;", "r5", verified=False, instruction="find it")
    bench.until(lambda: bench.said("idle", "r5", "refused: its words are not verified"))
    bench.say("action: turn left large;", "r6", instruction="find another")
    bench.until(lambda: bench.said("idle", "r6", "refused: it was decided for another"))
    bench.until(lambda: len(bench.commands) >= 2)
    assert [command.request_id for command in bench.commands] == ["r1", "r3"]

    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=REPLY_TIMEOUT)
    assert process.returncode == 0 and "Traceback" not in errors


def test_a_stop_in_ones_own_words_is_heard_from_a_best_effort_publisher(
    bench: Bench, start_here: Any
) -> None:
    start_here({})
    bench.say("action: turn left large;", "r1")
    bench.until(lambda: bench.turning)
    lossy = bench.create_publisher(String, "instruction", SENSOR_DATA)
    stop = String(data="¡Alto, por favor!")  # lost until the navigator has found its publisher
    bench.until(
        lambda: bench.halted and bench.said("stopped", "r1", "told to stop"),
        meanwhile=lambda: lossy.publish(stop),
    )


def test_a_navigator_without_stop_words_does_not_start(
    domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruction, "share", lambda: tmp_path)
    instruction._stop_words.cache_clear()
    with node_here(NavigatorNode) as node, pytest.raises(UserError, match=r"stop_words\.yaml"):
        node.bring_up()


def test_a_latched_instruction_from_before_its_start_is_not_heard(
    bench: Bench, start_here: Any
) -> None:
    """Not even a stop, which shows best that it is heard; and one that comes afterwards is."""
    latched = bench.create_publisher(String, "instruction", LATCHED)
    latched.publish(String(data="stop"))
    start_here({})
    bench.until(lambda: latched.get_subscription_count() == len(EVERY_SENDER))
    bench.spin(0.5)
    assert bench.state.state == "idle"
    assert NavCode.TOLD_TO_STOP not in [status.code for status in bench.states]
    latched.publish(String(data="stop"))
    bench.until(lambda: bench.state.code is NavCode.TOLD_TO_STOP)


def test_the_action_that_was_parsed_moves_and_no_text_beside_it(
    bench: Bench, start_here: Any
) -> None:
    """Whatever the dialect: the drafter parses."""
    navid = load_dialect("uni_navid")
    start_here({"drive": "stop_and_go"})
    bench.say("left left forward", "cut", finish="length", dialect=navid)
    bench.until(lambda: bench.said("idle", "cut", "refused: 'left left forward' ends without"))
    bench.say("action: turn left large;", "ours", finish="end", dialect=navid)
    bench.until(lambda: bench.said("idle", "ours", "refused: 'action: turn left large;' is no"))
    for number, odd in enumerate((NavAction(verb="fly"), NavAction(verb="move", amount=1.0))):
        text = "action: turn left large;"
        message = VerifiedTokens(request_id=f"odd{number}", text=text, tokens=[1], action=odd)
        bench.words.publish(message)
    bench.say("left left forward", "r1", finish="end", dialect=navid)
    bench.until(lambda: bench.turning and bench.commands)
    (command,) = bench.commands
    assert (command.request_id, command.text) == ("r1", "turn left 48 degrees")
    assert math.degrees(command.magnitude) == pytest.approx(48.0)


def test_refusals_without_end_do_not_fill_the_log_nor_block_whom_nobody_reads(
    bench: Bench, start: Any
) -> None:
    process = start()  # its standard error is a pipe, and unread it takes 64 KB
    for number in range(300):
        bench.say(f"{'x' * 100};", f"bad{number}")
        if number % 8 == 7:  # not more at once than its queue holds
            bench.until(lambda n=number: bench.said("idle", f"bad{n}", "refused"))
    time.sleep(1.1)  # a second in which one more is written has begun, as a second is the least
    bench.say(f"{'x' * 100};", "last")
    bench.until(lambda: bench.said("idle", "last", "refused"))
    bench.say("action: turn left large;", "good")
    bench.until(lambda: bench.turning)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=REPLY_TIMEOUT)
    assert 0 < errors.count("moves nothing") < 300 and "more of these" in errors


@pytest.mark.parametrize(
    "numbers", [[signal.SIGTERM], [signal.SIGINT] * 3, [signal.SIGHUP, signal.SIGTERM] * 2]
)
def test_a_navigator_that_ends_in_motion_says_zero_last(
    bench: Bench, start: Any, numbers: list[signal.Signals]
) -> None:
    """However many signals end it; the next one counts its stops from elsewhere."""
    process = start()
    before = bench.state.stops
    bench.say("action: turn left large;", "r1")
    bench.until(lambda: bench.turning)
    for number in numbers:
        os.kill(process.pid, number)
    bench.until(lambda: process.poll() is not None and bench.still)
    assert process.returncode == 0
    bench.states.clear()
    start()
    assert bench.state.stops != before
    bench.say("action: turn left large;", "r2", stops=before, ahead=0.4)
    bench.until(lambda: bench.said("idle", "r2", "refused: its frame is from before"))
    assert len(bench.commands) == 1


@pytest.mark.parametrize("kind", [VerifiedTokens, Odometry])
def test_what_waits_for_the_lock_grows_older_meanwhile(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a frame from before an instruction would pass for one from after it."""
    heard, asked, age = list[Any](), threading.Event(), 1.0
    message = kind()
    message.header.stamp.sec = 1

    def now_and_age(stamp: int) -> tuple[float, float]:
        asked.set()
        return 100.0, age

    with node_here(NavigatorNode) as node:
        monkeypatch.setattr(node, "_now_and_age", now_and_age)
        monkeypatch.setattr(node._navigator, "on", lambda *told: heard.append(told) or [])
        callback = node._on_words if kind is VerifiedTokens else node._on_odometry
        thread = threading.Thread(target=callback, args=(message,))
        with node._lock:
            thread.start()
            asked.wait(0.5)
            age = 5.0
        thread.join()
    told = [(event.age, now) for event, now in heard if not isinstance(event, Tilt)]
    assert told == [(5.0, 100.0)]


def test_a_bad_parameter_at_the_start_is_told_and_holds_the_robot(
    bench: Bench, start_here: Any
) -> None:
    """And one that is set later is refused by its name."""
    start_here({"limits.speed": 9.0, "odometry": "maybe"})
    bench.until(lambda: "limits.speed must be" in bench.state.detail)
    assert bench.state.state == "stopped"
    assert "odometry must be one of" in bench.state.detail
    bench.say("action: turn left large;", "r1")
    bench.until(lambda: bench.said("stopped", "r1"))
    assert bench.commands == []
    for name, value, said in (
        ("limits.speed", 9.0, "limits.speed"),
        ("limits.speed", math.nan, "limits.speed"),
        ("odometry", "maybe", "odometry must be one of auto, required, off, not 'maybe'"),
        ("output.kind", "unitree_sport", "output.kind is read at the start only"),
        ("limits.speed", 1, ""),
        ("odometry", "off", ""),
    ):
        [why] = bench.set_parameters_of("navigator", {name: value})
        assert said in why and bool(said) == bool(why)
    bench.until(lambda: bench.said("stopped", "r1", "released: publish an instruction"))
    bench.instruct("find it")
    names = ["odometry", "output.kind", "limits.speed"]
    request = GetParameters.Request(names=names)
    odometry, kind, speed = bench.call(GetParameters, "navigator/get_parameters", request).values
    got = (odometry.string_value, kind.string_value, speed.integer_value)
    assert got == ("off", "twist", 1)
    asked = DescribeParameters.Request(names=["limits.speed"])
    [about] = bench.call(DescribeParameters, "navigator/describe_parameters", asked).descriptors
    assert about.floating_point_range[0].to_value == 1.5 and "m/s" in about.description


TURN, CUP = "action: turn left large;", "find the cup"
PROFILES = {"latched": LATCHED, "volatile": RELIABLE, "sensor": SENSOR_DATA}


def press(stop: Publisher, on: bool) -> None:
    """Again and again: best effort may lose one."""
    stop.publish(Bool(data=on))


def hold_and_release(bench: Bench, kind: str, heard: list[Event]) -> None:
    """An e_stop by a publisher of this kind, with an instruction that is heard before its
    release."""
    stop = bench.create_publisher(Bool, "e_stop", PROFILES[kind])
    bench.until(stop.get_subscription_count)
    commands = len(bench.commands)
    bench.until(lambda: press(stop, True) or bench.state.e_stopped)
    heard.clear()
    bench.publish(CUP)
    bench.until(lambda: any(isinstance(event, Instruction) for event in heard))
    bench.say(TURN, f"{kind}1", instruction=CUP)
    bench.until(lambda: bench.said("stopped", f"{kind}1"))
    bench.until(lambda: press(stop, False) or not bench.state.e_stopped)
    bench.say(TURN, f"{kind}2", instruction=CUP)
    bench.until(lambda: bench.said("stopped", f"{kind}2", "released: publish an instruction"))
    assert len(bench.commands) == commands
    bench.instruct(CUP)
    bench.say(TURN, f"{kind}3", instruction=CUP)
    bench.until(lambda: bench.said("moving", f"{kind}3"))
    bench.destroy_publisher(stop)


def test_an_instruction_during_e_stop_moves_nothing_at_its_release(
    bench: Bench, start_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Event] = []
    handle = Navigator.on

    def on(navigator: Navigator, event: Event, now: float) -> list[Effect]:
        effects = handle(navigator, event, now)
        heard.append(event)
        return effects

    monkeypatch.setattr(Navigator, "on", on)
    start_here({})
    bench.until(lambda: bench.state.state == "idle")
    for kind in PROFILES:
        hold_and_release(bench, kind, heard)
    before, stop = bench.state.stops, bench.create_publisher(Bool, "e_stop", LATCHED)
    bench.until(lambda: stop.get_subscription_count() >= 2)
    for on in (True, False) * 3:  # each press of a latched stop counts once
        was = bench.state.stops
        stop.publish(Bool(data=on))
        bench.until(lambda w=was: bench.state.stops > w)
    bench.instruct(CUP)
    assert bench.state.stops == before + 7


def test_a_navigator_that_starts_under_a_latched_stop_never_moves(
    bench: Bench, start_here: Any
) -> None:
    stop = bench.create_publisher(Bool, "e_stop", LATCHED)
    stop.publish(Bool(data=True))
    # On a loaded machine DDS takes seconds to match publishers: docs/safety.md on `listen`.
    start_here({"listen": 5.0}, ready=False)
    for number in range(200):  # words for the count of each status that was heard
        bench.say(TURN, f"r{number}", instruction=CUP)
        bench.executor_.spin_once(timeout_sec=0.02)
        if bench.state.e_stopped and number > 20:
            break
    bench.until(lambda: bench.state.e_stopped)
    assert not bench.commands
    assert not any(t.angular.z or t.linear.x > 0.005 for t in bench.twists)


def test_a_navigator_moves_nothing_before_it_has_found_its_drafter_whatever_the_topic_is_called(
    bench: Bench, launch: Any
) -> None:
    navigator = ["-m", "edge_cloud_spec.nodes.navigator"]
    launch(navigator, "-p", "listen:=0.2", "-r", "verified_tokens:=front/verified_tokens")
    bench.until(lambda: bench.states)
    bench.until(lambda: bench.count_publishers("cmd_vel"))
    bench.spin(2.0)  # more than it listens; its own topic is not the bench's
    assert {each.state for each in bench.states} == {"stopped"}
    bench.create_publisher(VerifiedTokens, "front/verified_tokens", 10)
    bench.until(lambda: bench.state.state == "idle")


def test_a_base_whose_clock_differs_is_allowed_for_and_said(bench: Bench, start_here: Any) -> None:
    """And what it says closes the loop: it stands where it is commanded to turn."""
    ahead = 3.0
    start_here({"odometry": "required", "odometry_timeout": 5.0})
    bench.hear_diagnostics()
    odometry = Odometry()
    odometry.pose.pose.orientation.w = 1.0

    def told() -> float:
        """Odometry's clock offset, as the navigator says it."""
        said = bench.values("/navigator").get("odometry_clock_offset_s", "unknown")
        return float(said.replace("unknown", "nan"))

    def publish() -> None:
        stamp = bench.get_clock().now() + Duration(seconds=ahead)
        odometry.header.stamp = stamp.to_msg()
        bench.odom.publish(odometry)

    timer = bench.create_timer(0.02, publish)
    bench.until(lambda: not math.isnan(told()))
    assert told() == pytest.approx(ahead, abs=1.0), "a loaded machine is late, not seconds late"
    bench.until(lambda: bench.state.state == "idle")
    bench.say("action: turn left small;", "r1", ahead=ahead, measured=ahead)
    bench.until(lambda: any("did not get where it should" in s.detail for s in bench.states))
    timer.cancel()


@pytest.mark.parametrize("length", [0.0, 1.5])
def test_an_orientation_that_is_no_unit_quaternion_is_named_and_moves_nothing(
    bench: Bench, start_here: Any, length: float
) -> None:
    start_here({})
    bench.hear_diagnostics()
    odometry = Odometry()
    odometry.pose.pose.orientation.z, odometry.pose.pose.orientation.w = 0.0, length

    def publish() -> None:
        odometry.header.stamp = bench.get_clock().now().to_msg()
        bench.odom.publish(odometry)

    timer = bench.create_timer(0.02, publish)
    bench.until(lambda: bench.says("/navigator", DiagnosticStatus.ERROR, "no unit quaternion"))
    bench.say(TURN, "r1")
    bench.until(lambda: bench.said("idle", "r1", "refused: odometry is missing"))
    odometry.pose.pose.orientation.w = 1.0
    bench.until(lambda: bench.values("/navigator").get("odometry_clock_offset_s") != "unknown")
    bench.say(TURN, "r2")
    bench.until(lambda: bench.turning)
    timer.cancel()


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


def test_markers_show_a_way_around_until_the_next_action_and_the_strip_as_wide_as_it_is() -> None:
    corners, now = ((0.0, 0.0), (0.25, 0.3), (0.9, 0.3)), Time(nanoseconds=10**9)
    line, strip = way_markers(GoAround(corners, 0.47), "base_link", now).markers
    for shown in (line, strip):
        assert [(point.x, point.y) for point in shown.points] == [*corners]
        assert (shown.ns, shown.type, shown.header.frame_id) == (
            "way",
            shown.LINE_STRIP,
            "base_link",
        )
    assert strip.scale.x == 0.47 > line.scale.x and 0.0 < strip.color.a < line.color.a
    gone = action_markers("move forward large", Goal(0.9), "base_link", now).markers[0]
    assert (gone.ns, gone.action) == ("way", gone.DELETEALL)
