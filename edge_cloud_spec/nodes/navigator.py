"""The navigator node: verified words on a topic, velocity commands to the base.

``python -m edge_cloud_spec.nodes.navigator --ros-args ...``; ``nav.Navigator`` decides.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from geometry_msgs.msg import Point, Vector3
from nav_msgs.msg import Odometry as OdometryMsg
from rclpy.duration import Duration
from rclpy.time import Time
from sensor_msgs.msg import Imu
from std_msgs.msg import Bool, ColorRGBA, String
from visualization_msgs.msg import Marker, MarkerArray

from edge_cloud_spec.msg import (
    FreeSpace,
    InstructionStatus,
    NavCommand,
    NavStatus,
    VerifiedTokens,
)

from ..health import Health, Level, worst_of
from ..instruction import is_stop
from ..nav.budget import COMMAND_PERIOD_S
from ..nav.e_stop import EStopMessage, EStops
from ..nav.events import (
    Announce,
    EStop,
    Event,
    GoAround,
    Hold,
    Instruction,
    Odometry,
    Published,
    Report,
    Show,
    Tick,
    Tilt,
    Words,
)
from ..nav.navigator import Navigator
from ..nav.performer import Performer
from ..nav.pose import Velocity, pose_of, tilt_of
from ..nav.settings import NavigatorSettings
from ..nav.status import (
    BASE_HOLDS,
    INACTIVE_HOLD,
    OTHER_HOLD,
    START_HOLD,
    GoalStatus,
    NavCode,
    NavigatorStatus,
)
from ..nav.steps import Goal
from ..nav.watchdog import STOP_REPEATS, Watchdog
from ..options import bounded, described
from ..throttle import Reports
from .base_output import SPORT_TOPIC, Output, OutputSettings, make_output
from .endpoints import BASE, GUARD, base_and_guard, endpoints_of, full_name
from .health import OUTPUT, PublisherWatch
from .lidar import LIDARS, scan_of
from .nav_messages import reading_of, to_action, to_free_space, to_status
from .runtime.e_stop import publishers_of_e_stop
from .runtime.managed_node import ManagedNode
from .runtime.qos import DECODE, EACH_STATE, EVERY_SENDER, LATCHED, RELIABLE, SENSOR_DATA, STEADY
from .runtime.run import spin
from .runtime.subscription_thread import SubscriptionThread

NAVIGATOR_INACTIVE = "the navigator is not active"
DISCOVERY_S = 5.0  # that base and guard have to be found, before it is reported that one is not
ALONE_PERIOD_S = 0.25  # between two looks for who else commands the base
TURN_ARROW_M = 0.5  # m
NO_ORIENTATION = -1.0  # an Imu's first covariance, where it has none


@dataclass(frozen=True)
class NodeSettings(NavigatorSettings):
    """The navigator's settings and those of its node."""

    output: OutputSettings = field(default_factory=OutputSettings)
    watchdog: float = bounded(0.5, 0.1, 0.5, "stop this long after a command expired, s", True)
    base_frame: str = described("base_link", "frame of the base, for stamps and markers", True)
    imu: str = described(
        "", "topic of an Imu that tells how far the base leans, beside odometry; empty: none", True
    )
    guarded: bool = described(
        False, "move nothing before a stop guard receives the pulse and can stop the base", True
    )
    allowed_publishers: str = described(
        "", "other nodes that may publish on the base's topic, as the monitor's", fixed=True
    )
    e_stop_timeout: float = bounded(
        0.0, 0.0, 10.0, "stop if a publisher of e_stop is silent for so long, s; 0: it may be"
    )
    listen: float = bounded(
        1.0, 0.0, 60.0, "stand so long after the drafter was found, to receive an e_stop, s", True
    )


class NavigatorNode(ManagedNode):
    """Topics and threads around ``Navigator``, which a lock protects during each event.

    e_stop and ``stop`` have their own threads, so no other callback delays them; the watchdog has
    another, which needs neither the executor nor the lock. e_stop is received in every state of the
    node, from publishers of every durability, and nothing moves before there was time to receive
    it. After deactivation the robot needs another instruction to move.
    """

    def __init__(self) -> None:
        super().__init__("navigator")
        self._lock = threading.Lock()
        self._config = self.parameters(NodeSettings(), self._on_parameters)
        self._navigator = Navigator(self._config.value, secrets.randbits(32), NAVIGATOR_INACTIVE)
        self._output: Output | None = None  # in an unconfigured node
        self._repeat = STOP_REPEATS  # next of the stop in progress; STOP_REPEATS: none is
        self._reports = Reports(self.get_logger().warning)
        self._odometry_of = ""  # the frame that it locates
        self._unreachable = ""  # why commands or stops do not reach the base, as reported
        self._others, self._looks_at = "", -math.inf  # who else commands; when that is looked for
        self._e_stops = EStops(
            partial(publishers_of_e_stop, self), lambda: self._config.value.e_stop_timeout
        )
        self._e_stopped = ""  # why, as the navigator knows
        self.subscribe_e_stop(self._on_e_stop)

    def load(self) -> None:
        """Create the publishers of commands and reports, and the watchdog; raises UserError."""
        settings = self._config.value
        is_stop("")  # reads the stop words: a node that has none does not start
        self._base_frame = settings.base_frame
        self._commands = self.create_publisher(NavCommand, "nav_command", RELIABLE)
        self._status = self.create_publisher(NavStatus, "nav_status", LATCHED)
        self._markers = self.create_publisher(MarkerArray, "markers", RELIABLE)
        self._free_space = self.create_publisher(FreeSpace, "free_space", RELIABLE)
        self._pulse = self.create_publisher(Bool, "pulse", RELIABLE)
        output = make_output(self, settings.output, settings.base_frame)
        self._watchdog = Watchdog(output.stop, settings.watchdog)
        with self._lock:
            self._output = output
            self._performer = Performer(
                partial(self._command, output),
                partial(self._halt_base, output),
                self._publish,
                self._watchdog,
            )
            self._navigator.configure(settings, time.monotonic())
            self._publish(Show(self._navigator.status))
        self._watchdog.start()

    def begin(self) -> None:
        """Subscribe to words, odometry and instructions."""
        self._reached_since = time.monotonic()
        allowed = (full_name(self, name) for name in self._config.value.allowed_publishers.split())
        topics = [self.resolve_topic_name(topic) for topic in ("cmd_vel", "pulse")]
        me = (self.get_fully_qualified_name(),)
        self._publisher_watch = PublisherWatch(dict.fromkeys(topics, me), frozenset(allowed))
        self._finds_until = self._reached_since + DISCOVERY_S
        instructions = self.started.enter_context(closing(SubscriptionThread(self)))
        instructions.subscribe(String, "instruction", self._on_instruction, *EVERY_SENDER)
        self.create_subscription(
            InstructionStatus, "instruction_status", self._on_goal_status, EACH_STATE
        )
        self.create_subscription(VerifiedTokens, "verified_tokens", self._on_words, DECODE)
        self.create_subscription(OdometryMsg, "odom", self._on_odometry, SENSOR_DATA)
        if imu := self._config.value.imu:
            self.create_subscription(Imu, imu, self._on_imu, SENSOR_DATA)
        obstacles = self._config.value.obstacles
        for source, topic in obstacles.promised.items():
            on_lidar = partial(self._on_lidar, source)
            self.create_subscription(LIDARS[source][0], topic, on_lidar, SENSOR_DATA)
        self.create_timer(COMMAND_PERIOD_S, self._on_tick, clock=STEADY)
        self._on_parameters()
        self._handle(Hold("", INACTIVE_HOLD))
        instructions.start()

    def halt(self) -> None:
        """Stop the robot and block all motion."""
        assert self._output is not None
        self._output.stop(0)
        if self._lock.acquire(timeout=0.5):  # a callback that hangs must not prevent the rest
            try:
                for cause in (INACTIVE_HOLD, START_HOLD):  # base and guard are looked for again
                    self._run(Hold(NAVIGATOR_INACTIVE, cause))
                self._unreachable = self._others = ""
                for cause in (BASE, OTHER_HOLD):
                    self._run(Hold("", cause))
                self._repeat = STOP_REPEATS
                for repeat in range(3):
                    time.sleep(0.02)
                    self._output.stop(repeat)
            finally:
                self._lock.release()

    def unload(self) -> None:
        """Destroy the publishers, so that nothing is commanded any more; the watchdog ends here."""
        with self._lock:
            self._output = None
        self._watchdog.close()

    # Callbacks

    def _on_e_stop(self, message: EStopMessage) -> None:
        if message.data and (output := self._output) is not None:
            output.stop(0)  # at once, whichever thread holds the lock
        self._e_stops.receive(message, time.monotonic())
        with self._lock:
            self._look_at_e_stop(pressed=message.data)

    def _look_at_e_stop(self, pressed: bool = False) -> None:
        why = self._e_stops.why(time.monotonic())
        if pressed or why != self._e_stopped:
            self._e_stopped = why
            self._run(EStop(bool(why), why))

    def _on_instruction(self, message: String) -> None:
        self._handle(Instruction(message.data))

    def _on_goal_status(self, message: InstructionStatus) -> None:
        self._handle(GoalStatus.read(message))

    def _on_words(self, message: VerifiedTokens) -> None:
        stamp = Time.from_msg(message.header.stamp).nanoseconds
        try:
            reading = reading_of(message)
        except ValueError as error:
            self._reports.add(f"words were dropped: {error}", time.monotonic())
            return
        with self._lock:
            now, age = self._now_and_age(stamp)
            words = Words(
                request=message.request_id,
                position=message.position,
                tokens=tuple(message.tokens),
                text=message.text,
                verified=message.verified,
                finished=message.finished,
                stamp=stamp,
                age=age if stamp else math.inf,
                goal_id=message.goal_id,
                instruction=message.instruction,
                stops=message.stops,
                camera_offset=message.camera_clock_offset,
                finish_reason=message.finish_reason,
                answer=message.answer,
                reading=reading,
            )
            self._run(words, now)

    def _on_odometry(self, message: OdometryMsg) -> None:
        stamp = Time.from_msg(message.header.stamp).nanoseconds
        self._odometry_of = message.child_frame_id
        with self._lock:
            now, age = self._now_and_age(stamp)
            self._run(Odometry(pose_of(message.pose.pose), stamp, age), now)
            if self._config.value.odometry != "off":
                self._run(Tilt(tilt_of(message.pose.pose.orientation)))

    def _on_imu(self, message: Imu) -> None:
        if message.orientation_covariance[0] != NO_ORIENTATION:
            self._handle(Tilt(tilt_of(message.orientation)))

    def _on_lidar(self, source: str, message: Any) -> None:
        settings = self._config.value
        scan = scan_of(source, message, settings.obstacles, settings.base_frame)
        with self._lock:
            now, age = self._now_and_age(scan.stamp)
            self._run(replace(scan, age=age), now)
            if not self._free_space.get_subscription_count():
                return
            space = self._navigator.obstacles.free_space(now, around=True)
            clock = self._navigator.odometer.clock_offset
        at = self.get_clock().now().nanoseconds
        self._free_space.publish(to_free_space(replace(space, at=at, base_clock=clock)))

    def _now_and_age(self, stamp: int) -> tuple[float, float]:
        """The monotonic time, s, and by how much ``stamp`` (ns) is behind this computer's ROS time.

        Read in this order: whatever takes this thread's turn between them makes what the stamp is
        of seem older, never younger.
        """
        return time.monotonic(), (self.get_clock().now().nanoseconds - stamp) / 1e9

    def _on_tick(self) -> None:
        with self._lock:
            if self._output is not None and self._repeat < STOP_REPEATS:
                self._output.stop(self._repeat)
                self._repeat += 1
            self._look_at_e_stop()
            if time.monotonic() >= self._looks_at:
                self._check_alone()
            if START_HOLD in self._navigator.stop_latch.causes or self._unreachable:
                self._check_reach(self._unreached())
            self._run(Tick())

    def _check_reach(self, unreached: Sequence[Health]) -> None:
        """Release the hold at start-up, once an active e_stop would have been received, and hold
        what can move no base, or would not be stopped.

        The time counts from the discovery of a node that could move the robot: a slow machine or
        network discovers the e_stop's publisher late, too. A stop guard must receive the pulse
        before: two processes may need seconds to discover each other. A robot that drives is not
        held for its guard alone.
        """
        now, starting = time.monotonic(), START_HOLD in self._navigator.stop_latch.causes
        held = {BASE, GUARD} if starting or self._unreachable else {BASE}
        wrong = [each for each in unreached if each.level == Level.ERROR and each.check in held]
        why = "; ".join(map(str, wrong))
        problem = f"nothing moves: {why}" if why and now >= self._finds_until else ""
        if problem != self._unreachable:
            self._unreachable = problem
            if starting:
                self._run(Hold(problem or NAVIGATOR_INACTIVE, START_HOLD))
            stops = not starting or any(each.check == BASE for each in wrong)
            self._run(Hold(problem if stops else "", BASE))  # ended, it needs a newer instruction
        if why or not self.count_publishers(self.resolve_topic_name("verified_tokens")):
            self._reached_since = now
        if now >= self._reached_since + self._config.value.listen:
            self._run(Hold("", START_HOLD))

    def _check_alone(self) -> None:
        """Hold while another node commands the base, or plays this one; a guard does neither."""
        now = time.monotonic()
        self._looks_at = now + ALONE_PERIOD_S
        publishers = {
            topic: [e.node for e in endpoints_of(self, [topic]) if e.publishes and not e.is_guard]
            for topic in self._publisher_watch.owners
        }
        why = "; ".join(map(str, self._publisher_watch.look(publishers, now).values()))
        if why != self._others:
            self._others = why
            self._run(Hold(why and f"nothing moves: {why}", OTHER_HOLD))

    def _unreached(self) -> list[Health]:
        """Why this node's commands, or its guard's stops, do not reach the base."""
        topics = map(self.resolve_topic_name, ("cmd_vel", SPORT_TOPIC, "pulse"))
        name, guarded = self.get_fully_qualified_name(), self._config.value.guarded
        found = base_and_guard(name, [*endpoints_of(self, topics)])
        return [each for each in found if guarded or each.check != GUARD]

    def _on_parameters(self, names: frozenset[str] = frozenset()) -> None:
        why = "; ".join(self._config.problems.values())
        with self._lock:
            if self._output is None:
                return  # read when it is configured
            now = time.monotonic()
            self._performer.carry_out(self._navigator.configure(self._config.value, now))
            self._run(Hold(f"parameter {why}" if why else ""))

    # Effects

    def _handle(self, event: Event) -> None:
        with self._lock:
            self._run(event)

    def _run(self, event: Event, now: float | None = None) -> None:
        effects = self._navigator.on(event, time.monotonic() if now is None else now)
        if self._output is not None:
            self._performer.carry_out(effects)

    def _command(self, output: Output, velocity: Velocity) -> None:
        self._repeat = STOP_REPEATS
        self._pulse.publish(Bool(data=True))  # first, so that no command goes out unguarded
        output.command(velocity)

    def _halt_base(self, output: Output) -> None:
        output.stop(0)
        self._pulse.publish(Bool(data=False))
        self._repeat = 1

    def _publish(self, effect: Published) -> None:
        match effect:
            case Report(problem):
                self._reports.add(problem, time.monotonic())
            case Show(status):
                message = to_status(status)
                message.header.stamp = self.get_clock().now().to_msg()
                self._status.publish(message)
                if status.state in ("idle", "stopped"):  # the last action's are removed
                    gone = [_gone(space) for space in ("action", "way")]
                    self._markers.publish(MarkerArray(markers=gone))
            case Announce():
                self._announce(effect)
            case GoAround():
                self._markers.publish(way_markers(effect, self._base_frame, self.get_clock().now()))

    def _announce(self, announce: Announce) -> None:
        goal, now = announce.goal, self.get_clock().now()
        message = NavCommand(
            request_id=announce.request,
            goal_id=announce.goal_id,
            action=to_action(announce.action),
            magnitude=goal.angle or goal.distance,
            expiry=(now + Duration(seconds=announce.lasts)).to_msg(),
            verified=announce.verified,
            text=str(announce.action),
            aside=announce.aside,
        )
        message.header.stamp = Time(nanoseconds=announce.stamp).to_msg()
        message.header.frame_id = self._base_frame
        self._commands.publish(message)
        self._markers.publish(action_markers(str(announce.action), goal, self._base_frame, now))

    def diagnose(self) -> Health:
        """The navigator's status, and counts of what was dropped."""
        unreached, settings = self._unreached(), self._config.value
        with self._lock:
            self._check_reach(unreached)
            navigator, now = self._navigator, time.monotonic()
            status, offset = navigator.status, navigator.odometer.clock_offset
            missing, slow = navigator.odometer.problem(now), navigator.odometer.slow(now)
            unseen = navigator.obstacles.missing(now)
            sees_edges = navigator.obstacles.sees_edges
            held = not navigator.stop_latch.causes.isdisjoint(BASE_HOLDS)
            counts = {**navigator.counts, "watchdog": self._watchdog.fired}
        return navigator_health(
            status,
            self.resolve_topic_name("odom"),
            missing,
            unseen,
            held=held,
            slow=slow,
            frame=self._odometry_of if self._odometry_of != self._base_frame else "",
            held_by=self._e_stops.holders(),
            timed=offset is None and settings.odometry == "auto",
            problem=self._reports.recent(now),
            parameters="; ".join(self._config.problems.values()),
            unreached=unreached if now >= self._finds_until else (),
            values={
                **counts,
                "reports": self._reports.count,
                "drive": settings.drive,
                OUTPUT: settings.output.text(self._base_frame),
                "stops_before": " ".join(settings.obstacles.promised.values()) or "nothing",
                "edges": "seen" if sees_edges else "not seen: no lidar has shown the floor ahead",
                "odometry_clock_offset_s": "unknown" if offset is None else offset,
            },
        )


def action_markers(text: str, goal: Goal, frame: str, now: Time) -> MarkerArray:
    """An arrow and the text of the action that begins ``now``, in the base's frame."""
    if goal.angle:
        tip = (TURN_ARROW_M * math.cos(goal.angle), TURN_ARROW_M * math.sin(goal.angle))
    else:
        tip = (goal.distance, 0.0)
    arrow = _marker(0, Marker.ARROW, frame, now, Vector3(x=0.04, y=0.08, z=0.1))
    arrow.points = [Point(z=0.3), Point(x=tip[0], y=tip[1], z=0.3)]
    words = _marker(1, Marker.TEXT_VIEW_FACING, frame, now, Vector3(z=0.12))
    words.pose.position.z = 0.6
    words.text = text
    return MarkerArray(markers=[_gone("way"), *([arrow] if any(tip) else []), words])


def way_markers(way: GoAround, frame: str, now: Time) -> MarkerArray:
    """The way around that a move takes from ``now`` on, in the base's frame, and the strip that was
    clear."""
    widths = Vector3(x=0.04), Vector3(x=way.width)
    line, strip = (
        _marker(number, Marker.LINE_STRIP, frame, now, width, "way")
        for number, width in enumerate(widths)
    )
    line.points = strip.points = [Point(x=ahead, y=left, z=0.05) for ahead, left in way.corners]
    strip.color.a = 0.25
    return MarkerArray(markers=[line, strip])


def _gone(space: str) -> Marker:
    """Removes the markers of this namespace."""
    return Marker(ns=space, action=Marker.DELETEALL)


def _marker(
    number: int, kind: int, frame: str, now: Time, scale: Vector3, space: str = "action"
) -> Marker:
    marker = Marker(ns=space, id=number, type=kind, action=Marker.ADD, scale=scale)
    marker.header.frame_id, marker.header.stamp = frame, now.to_msg()
    marker.color = ColorRGBA(r=0.1, g=0.8, b=0.3, a=1.0)
    marker.pose.orientation.w = 1.0
    return marker


def navigator_health(
    status: NavigatorStatus,
    topic: str,
    missing: str = "",
    unseen: str = "",
    held: bool = False,
    held_by: str = "",
    slow: str = "",
    frame: str = "",
    timed: bool = False,
    problem: str = "",
    parameters: str = "",
    unreached: Sequence[Health] = (),
    values: Mapping[str, object] | None = None,
) -> Health:
    """The worst of: what holds the robot, missing sensors, and the last problem.

    ``topic``: odometry's. ``missing``: why required odometry cannot be used; ``unseen``: why a
    lidar cannot; empty if they can. ``held``: the base has fallen or does not do what it is
    commanded, which e_stop ends only by its release. ``held_by``: who holds e_stop.
    ``slow``: why odometry comes too seldom.
    ``frame``: whose pose odometry has, if it is not the base's frame.
    ``timed``: there was never odometry, so motions are timed. ``problem``: a recent problem.
    ``parameters``: what is wrong with parameters. ``unreached``: why commands or stops do not reach
    the base.
    """
    found = (
        (
            parameters,
            Health(
                Level.ERROR,
                f"nothing moves: parameter {parameters}",
                "set it again (ros2 param set)",
            ),
        ),
        (
            status.code is NavCode.E_STOP,
            Health(
                Level.WARN,
                f"{status.detail}, by {held_by}" if held_by else status.detail,
                "release it (publish false on e_stop), then publish the instruction again",
            ),
        ),
        (
            held,
            Health(Level.ERROR, f"nothing moves: {status.detail}"),
        ),
        (
            missing,
            Health(
                Level.ERROR,
                f"{missing} ({topic})",
                f"see the base's driver, or what publishes {topic}; nothing moves without it",
                check="odometry",
            ),
        ),
        (
            timed and not missing,
            Health(
                Level.WARN,
                f"no odometry on {topic}: motions are timed, not measured",
                "start it, launch with odom:=, or set the parameter odometry to off",
                check="odometry",
            ),
        ),
        (slow, Health(Level.WARN, slow, f"see {topic}'s publisher", check="odometry rate")),
        (
            frame,
            Health(
                Level.WARN,
                f"odometry has the pose of {frame!r:.80} (child_frame_id), not of base_frame",
                "set base_frame to it if it is the base: TF may not know ours",
                check="odometry frame",
            ),
        ),
        (
            unseen,
            Health(
                Level.ERROR,
                unseen,
                "see the driver of the lidar; nothing moves without it",
                check="lidar",
            ),
        ),
        (problem, Health(Level.WARN, problem, values={"last problem": problem})),
    )
    well = Health(Level.OK, status.text, values=values or {})
    return worst_of([well, *unreached, *(health for is_so, health in found if is_so)])


main = partial(spin, NavigatorNode)  # runs it until a signal

if __name__ == "__main__":
    main()
