"""The stop guard in a process of its own, beside real navigators that are killed and stopped."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import Twist, TwistStamped, Vector3
from helpers.graph.managed import Manager
from helpers.graph.nodes_here import node_here
from helpers.graph.peer import Peer
from helpers.navigator_bench import Bench
from rcl_interfaces.srv import GetParameters
from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock
from std_msgs.msg import Bool

from edge_cloud_spec.nav.watchdog import STOP_REPEATS
from edge_cloud_spec.nodes import navigator as navigator_module
from edge_cloud_spec.nodes.base_output import OutputSettings
from edge_cloud_spec.nodes.runtime import diagnostics
from edge_cloud_spec.nodes.stop_guard import GuardSettings, StopGuardNode

GUARD = ["-m", "edge_cloud_spec.nodes.stop_guard"]
LONG, SHORT = 180.0, 15.0  # degrees of a turn that is to be interrupted, or to come to its end
STRANGER = 0.25  # m/s upward, by which a stranger's Twists are known
SILENCE = GuardSettings().silence
REFUSED = """
import os

def refuse(*given):
    raise PermissionError

os.sched_setscheduler = refuse
from edge_cloud_spec.nodes.stop_guard import main

main()
"""


class Pulses(Peer):
    """The navigator's side of the guard, a stranger on the base's topic, and the base."""

    def __init__(self, namespace: str = "") -> None:
        super().__init__("pulses", namespace)
        self.base = self.collect(Twist, "cmd_vel", QoSProfile(depth=1000))
        self.pulse = self.create_publisher(Bool, "pulse", 10)
        self.stranger = self.create_publisher(Twist, "cmd_vel", 10)
        self.clock = self.create_publisher(Clock, "/clock", 10)
        self.hear_diagnostics()

    @property
    def stops(self) -> list[float]:
        """What the guard has commanded: speeds ahead."""
        return [twist.linear.x for twist in self.base if twist.linear.z != STRANGER]

    def known(self) -> object:
        return self.stops

    def meet(self) -> None:
        """Wait until the guard hears the pulse, and is heard."""
        self.until(lambda: self.pulse.get_subscription_count())
        self.until(lambda: self.count_publishers("cmd_vel") > 1)
        self.match("stop_guard")
        self.pulse.publish(Bool(data=True))
        self.until(lambda: self.stops)
        self.pulse.publish(Bool(data=False))
        self.settle()
        self.spin(2 * SILENCE)
        self.base.clear()

    def settle(self) -> None:
        """Wait until the guard has taken the last two pulses: it takes one before each answer."""
        for _ in range(2):
            self.call(GetParameters, "stop_guard/get_parameters", GetParameters.Request())

    def flood(self) -> None:
        for speed in (0.0, math.nan, math.inf, 0.5):
            self.stranger.publish(Twist(linear=Vector3(x=speed, z=STRANGER)))


@pytest.fixture
def pulses(launch: object) -> Iterator[Pulses]:
    with Pulses() as pulses:
        yield pulses


@pytest.fixture(scope="module")
def guard(launch_once: Any) -> Any:
    """A guard for tests that do not end it, where no other robot hears it, in simulated time."""
    return launch_once(GUARD, "-r", "__ns:=/apart", "-p", "use_sim_time:=true")


@pytest.fixture(scope="module")
def guarded(guard: object) -> Iterator[Pulses]:
    """Beside that guard, which hears them."""
    with Pulses("apart") as pulses:
        pulses.meet()
        yield pulses


def fired(peer: Peer) -> int:
    """The stops of the guard, as it says them itself."""
    return int(peer.values("/stop_guard").get("fired", -1))


def test_a_silent_pulse_is_a_stop_and_then_silence_and_so_is_the_next(guarded: Pulses) -> None:
    """Whatever others publish on the base's topic, a joystick, a flood of zeros, NaN: nothing of it
    is a pulse, and neither wakes the guard nor calms it."""
    for flood in (lambda: None, guarded.flood):
        guarded.base.clear()
        guarded.pulse.publish(Bool(data=True))
        guarded.until(lambda: len(guarded.stops) >= STOP_REPEATS, meanwhile=flood)
        for _ in range(20):
            flood()
            guarded.spin(0.25 * SILENCE)
        assert len(guarded.stops) == STOP_REPEATS  # and the base's own timeout acts as well
        assert guarded.stops[::2] == [0.0] * (STOP_REPEATS // 2 + 1)
        assert all(0 < speed < 0.005 for speed in guarded.stops[1::2])


def test_the_guard_says_that_it_stopped_a_robot_at_once_and_once(
    domain: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not with its next heartbeat, which is put off here, nor when a warning has lasted."""
    monkeypatch.setattr(diagnostics, "PERIOD_S", 3600.0)
    with node_here(StopGuardNode) as guard, Pulses() as pulses:

        def spin() -> None:
            rclpy.spin_once(guard, timeout_sec=0.0)

        pulses.until(lambda: pulses.pulse.get_subscription_count(), meanwhile=spin)
        pulses.until(lambda: guard.count_subscribers("/diagnostics"), meanwhile=spin)
        pulses.pulse.publish(Bool(data=True))
        pulses.until(
            lambda: pulses.says("/stop_guard", DiagnosticStatus.WARN, "commanded zeros"),
            meanwhile=spin,
        )
        pulses.until(lambda: len(pulses.stops) == STOP_REPEATS, meanwhile=spin)
    assert capfd.readouterr().err.count("the guard commanded zeros; see the navigator's log") == 1


@pytest.mark.parametrize("moves", [True, False])
def test_one_that_ends_with_its_launch_stops_first_what_moves(
    pulses: Pulses, launch: Any, moves: bool
) -> None:
    """The navigator's death is the end of all, sooner than its pulse is silent for long. One that
    was told to stand is left alone."""
    guard = launch(["-c", REFUSED], "-p", "silence:=0.5")  # without real-time priority, too
    pulses.meet()
    pulses.pulse.publish(Bool(data=True))
    pulses.pulse.publish(Bool(data=moves))
    pulses.settle()
    guard.send_signal(signal.SIGTERM)
    pulses.until(lambda: guard.poll() is not None and len(pulses.stops) >= STOP_REPEATS * moves)
    pulses.spin(0.2)
    assert len(pulses.stops) == STOP_REPEATS * moves and guard.returncode == 0


def test_a_clock_that_jumps_neither_stops_the_robot_nor_keeps_the_stop_away(
    guarded: Pulses,
) -> None:
    guarded.until(guarded.clock.get_subscription_count)
    guarded.base.clear()
    late, last = 0, time.monotonic()
    for number in range(100):
        clock = Clock()
        clock.clock.sec = 10**9 + 3600 * number * (-1) ** number  # ahead, and back
        guarded.pulse.publish(Bool(data=True))
        guarded.clock.publish(clock)
        late += time.monotonic() - last > 0.8 * SILENCE  # of this process, not of the guard
        last = time.monotonic()
        guarded.spin(0.02)
    assert late or not guarded.stops
    guarded.base.clear()
    guarded.pulse.publish(Bool(data=True))
    guarded.until(lambda: len(guarded.stops) == STOP_REPEATS)  # silence, and the clock stands still


def test_a_guard_that_slept_hears_what_came_meanwhile_before_it_stops_anybody(
    guarded: Pulses, guard: Any
) -> None:
    took = SILENCE
    while took > 0.8 * SILENCE:  # on a busy machine the guard may stop the robot before it sleeps
        guard.send_signal(signal.SIGCONT)
        guarded.pulse.publish(Bool(data=False))
        guarded.spin(2 * SILENCE)
        guarded.base.clear()
        began = time.monotonic()
        guarded.pulse.publish(Bool(data=True))
        guarded.spin(0.02)
        guard.send_signal(signal.SIGSTOP)
        took = time.monotonic() - began
    guarded.spin(3 * SILENCE)  # its timer is overdue
    guarded.pulse.publish(Bool(data=False))
    guarded.spin(SILENCE)
    guard.send_signal(signal.SIGCONT)
    guarded.spin(5 * SILENCE)
    assert not guarded.stops


def turn(bench: Bench) -> None:
    """Have the robot begin to turn, again where a message was not heard yet."""
    bench.twists.clear()
    requests = iter(f"r{number}" for number in range(id(bench) % 10**6, 10**9))

    def say() -> None:
        if bench.state.state != "moving":
            bench.say("action: turn left large;", next(requests))

    bench.until(lambda: bench.turning, meanwhile=say)


def set_turn(bench: Bench, degrees: float) -> None:
    assert bench.set_parameters_of("navigator", {"steps.turn_large": degrees}) == [""]


def zeros(bench: Bench) -> int:
    """Zeros since the last command that moves."""
    count = 0
    for twist in reversed(bench.twists):
        if abs(twist.angular.z) > 0.1 or abs(twist.linear.x) > 0.01:
            break
        count += 1
    return count


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, start_here: Any) -> Any:
    """Starts a navigator that waits less for others to be found."""
    monkeypatch.setattr(navigator_module, "DISCOVERY_S", 1.0)
    return start_here


def test_a_navigator_that_is_to_be_guarded_moves_nothing_without_a_guard(
    bench: Bench, impatient: Any
) -> None:
    bench.hear_diagnostics()
    impatient({"guarded": True}, ready=False)
    bench.until(lambda: "no stop guard" in getattr(bench.last.get("/navigator"), "message", ""))
    bench.say("action: turn left large;", "r1")
    bench.until(lambda: bench.said("stopped", "r1"))
    bench.spin(0.5)
    assert not bench.twists or zeros(bench) == len(bench.twists)


UNFIT = (
    (("-p", "output.stamped:=true"), "it sends TwistStamped on /cmd_vel"),
    (("-r", "cmd_vel:=/other/cmd_vel"), "it sends nothing on /cmd_vel"),
    (("-r", "__ns:=/other"), "no stop guard receives the pulse"),
    (("-r", "__ns:=/other", "-r", "pulse:=/pulse"), "it sends nothing on /cmd_vel"),
)


def test_a_guard_that_cannot_stop_the_base_is_named_and_counts_as_none(
    bench: Bench, impatient: Any, launch: Any
) -> None:
    """The navigator waits for one that can; what came before moves nothing."""
    for turn, (given, said) in enumerate(UNFIT):
        unfit = launch(GUARD, *given)
        if not turn:
            impatient({"guarded": True}, ready=False)
        bench.until(lambda said=said: said in bench.state.detail)
        for number in range(5):
            bench.publish("find it")
            bench.say("action: turn left large;", f"r{turn}{number}", instruction="find it")
            bench.spin(0.1)
        assert said in bench.state.detail and not any(twist.angular.z for twist in bench.twists)
        unfit.send_signal(signal.SIGTERM)
        bench.until(lambda said=said: said not in bench.state.detail or "receives" in said)
    launch(GUARD)
    bench.until(lambda: bench.state.state == "idle")
    bench.say("action: turn left large;", "r9", instruction="find it")
    bench.until(lambda: bench.turning)


def test_after_a_configuration_of_its_own_the_guard_is_looked_at_again(
    bench: Bench, impatient: Any, launch: Any
) -> None:
    """Cleaned up, set and configured again, as the refusal of a change says."""
    launch(GUARD)
    impatient({"guarded": True})
    turn(bench)
    manager = Manager("navigator", bench)
    for stamped in (True, False):
        assert manager.change("deactivate") and manager.change("cleanup")
        assert bench.set_parameters_of("navigator", {"output.stamped": stamped}) == [""]
        assert manager.change("configure") and manager.change("activate")
        if stamped:
            bench.until(lambda: "this node TwistStamped" in bench.state.detail)
    bench.until(lambda: bench.state.detail.startswith("released: publish an instruction"))
    bench.instruct("find it")
    bench.say("action: turn left large;", "r9", instruction="find it")
    bench.until(lambda: bench.turning)


def test_a_base_that_takes_the_other_type_is_named_before_the_first_step(
    bench: Bench, impatient: Any
) -> None:
    """That, and one that comes later, is a stop, as others are, which nobody ends who listens."""
    (twists,) = (each for each in bench.subscriptions if each.topic_name == "/cmd_vel")
    bench.destroy_subscription(twists)
    stamped = bench.create_subscription(TwistStamped, "cmd_vel", print, 10)
    bench.hear_diagnostics()
    impatient({}, ready=False)
    said = "/bench receives no /cmd_vel: it takes TwistStamped, not Twist"
    for _ in range(2):
        bench.until(lambda: said in bench.state.detail)
        bench.until(lambda: bench.says("/navigator", b"\2", said))
        bench.publish("find it")
        with Peer("watcher") as watcher:
            watcher.create_subscription(Twist, "cmd_vel", print, 10)
            bench.until(lambda: bench.count_subscribers("cmd_vel") == 2)
            bench.spin(1.5)
            assert said in bench.state.detail, "neither an instruction nor a listener ends it"
        bench.destroy_subscription(stamped)
        bench.until(lambda: bench.state.detail.startswith("released: publish an instruction"))
        bench.until(lambda: bench.says("/navigator", b"\1", "nobody subscribes to /cmd_vel"))
        stamped = bench.create_subscription(TwistStamped, "cmd_vel", print, 10)


def test_without_a_guard_nobody_stops_what_a_killed_navigator_commanded(
    bench: Bench, start: Any
) -> None:
    navigator = start()
    turn(bench)
    navigator.kill()
    bench.spin(1.0)
    assert zeros(bench) == 0


def test_a_stopped_navigator_is_stopped_and_moves_again_when_it_goes_on(
    bench: Bench, start: Any, launch: Any
) -> None:
    bench.hear_diagnostics()
    launch(GUARD)
    bench.until(lambda: fired(bench) == 0)
    navigator = start("-p", f"steps.turn_large:={LONG}", "-p", "guarded:=true")
    bench.until(lambda: bench.count_publishers("cmd_vel") == 2)
    turn(bench)
    output = OutputSettings().text("base_link")
    for name in ("/navigator", "/stop_guard"):
        bench.until(lambda name=name: bench.values(name).get("output") == output)
    navigator.send_signal(signal.SIGSTOP)
    bench.until(lambda: zeros(bench) == STOP_REPEATS)
    navigator.send_signal(signal.SIGCONT)
    bench.until(lambda: bench.state.state == "idle")  # its step is not taken up again
    set_turn(bench, SHORT)
    turn(bench)
    bench.until(lambda: zeros(bench) == STOP_REPEATS)  # its own, at the step's end


def test_a_guard_that_hangs_or_is_killed_disturbs_nobody_and_its_successor_guards(
    bench: Bench, start: Any, launch: Any
) -> None:
    first = launch(GUARD)
    navigator = start("-p", f"steps.turn_large:={SHORT}")
    bench.until(lambda: bench.count_subscribers("pulse"))
    turn(bench)
    for end in (signal.SIGSTOP, signal.SIGKILL):
        first.send_signal(end)
        turn(bench)
        bench.until(lambda: zeros(bench) == STOP_REPEATS)  # the navigator's own, at the step's end
        assert bench.state.state == "idle" and not bench.state.detail.startswith("gave up")
    bench.hear_diagnostics()
    launch(GUARD)
    bench.until(lambda: fired(bench) == 0)
    turn(bench)  # to its end, so that both have found each other
    bench.until(lambda: zeros(bench) == STOP_REPEATS)
    set_turn(bench, LONG)
    turn(bench)
    navigator.kill()
    bench.until(lambda: zeros(bench) == STOP_REPEATS)
    bench.until(lambda: fired(bench) >= 1)
    assert "silent" in bench.last["/stop_guard"].message


def test_on_a_busy_machine_it_goes_first_where_it_may(guarded: Pulses, guard: Any) -> None:
    policy = os.sched_getscheduler(guard.pid)
    try:
        os.sched_setscheduler(guard.pid, os.SCHED_FIFO, os.sched_param(2))
    except PermissionError:
        pytest.skip("no real-time priority for this user")
    assert policy == os.SCHED_FIFO
