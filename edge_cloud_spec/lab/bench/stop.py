"""``bench stop``: how fast the robot stops after each event, and whether it then moves again.

Prints percentiles in ms, and whether the robot recovered; all nodes are real processes.
``e_stop``: from the stop to a zero command; ``bare_ms``: a bare rclpy message to another process
and its answer, just before it; ``load``: of the machine, on average over the last minute.
``cloud_killed``: from the end of the command under way to standing still. ``navigator_killed``:
from the kill to standing still.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.time import Time
from std_msgs.msg import Bool, String

from edge_cloud_spec.msg import DecodeRequest, DecodeStats, NavCommand, VerifiedTokens

from ...bringup.graph import GraphSettings
from ...errors import UserError
from ...models import EMBEDDED
from ...nav.mission import STARTED
from ...nav.status import Status
from ...nodes.runtime.qos import LATCHED, SENSOR_DATA
from ..harness.random_checkpoint import TINY, make_pair
from ..harness.server import VerifierProcess
from ..sim.room import make_room
from . import bare
from .command import Options, Row
from .ros_graph import STANDING, RosGraph, node_command

MOVING = (0.1, 0.2)  # m/s, rad/s from which it certainly moves


class RobotProbe:
    """Subscriptions and publishers of the benchmark's node. Times: s, system clock."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.zero_commands: list[float] = []  # when all-zero Twists arrived, since ``reset``
        self.last_motion_command = 0.0  # when the last Twist that moves arrived
        self.standing_since: float | None = None  # by odometry, after motion
        self.moving = False  # by odometry
        self.odometry_stamp = 0.0  # of the last odometry
        self.expiry = 0.0  # of the last action, after which it is no longer carried out
        self.opened: list[str] = []  # requests that the drafter began to decode
        self.stats: list[DecodeStats] = []
        self.instruction_status = ""
        self.nav_status = ""
        self._last_instruction = ""
        node.create_subscription(Twist, "cmd_vel", self._on_twist, 100)
        node.create_subscription(Odometry, "odom", self._on_odometry, SENSOR_DATA)
        node.create_subscription(NavCommand, "nav_command", self._on_command, 10)
        node.create_subscription(DecodeRequest, "decode_request", self._on_request, 100)
        node.create_subscription(DecodeStats, "decode_stats", self.stats.append, 10)
        node.create_subscription(String, "instruction_status", self._on_instruction, LATCHED)
        node.create_subscription(String, "nav_status", self._on_status, LATCHED)
        self._e_stop = node.create_publisher(Bool, "e_stop", 10)
        self._instruction = node.create_publisher(String, "instruction", 10)
        self._words = node.create_publisher(VerifiedTokens, "verified_tokens", 100)

    @property
    def refused(self) -> bool:
        """Whether the drafter said, since ``reset``, that it follows no instruction."""
        return self.instruction_status.startswith(("failed", "idle"))

    def reset(self) -> None:
        """Forget what was received, and what the drafter said."""
        self.instruction_status = ""
        for received in (self.zero_commands, self.opened, self.stats):
            received.clear()

    def set_e_stop(self, on: bool) -> float:
        """Press the emergency stop, or release it; returns when."""
        now = time.time()
        self._e_stop.publish(Bool(data=on))
        return now

    def instruct(self, text: str) -> None:
        """Publish this instruction."""
        self._last_instruction = text
        self._instruction.publish(String(data=text))

    def publish_answer(self, request: str, text: str) -> None:
        """Publish a complete verified answer to the instruction, on a frame stamped now."""
        message = VerifiedTokens(request_id=request, text=text, answer=text, tokens=[1])
        message.verified = message.finished = True
        message.instruction = self._last_instruction
        message.stops = Status.parse(self.nav_status).stops
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._words.publish(message)

    def _on_twist(self, message: Twist) -> None:
        now, linear, turn = time.time(), message.linear, message.angular.z
        if linear.x == linear.y == turn == 0.0:
            self.zero_commands.append(now)
        elif max(abs(linear.x), abs(linear.y)) > STANDING[0] or abs(turn) > STANDING[1]:
            self.last_motion_command = now

    def _on_odometry(self, message: Odometry) -> None:
        twist = message.twist.twist
        speed, turn = max(abs(twist.linear.x), abs(twist.linear.y)), abs(twist.angular.z)
        self.odometry_stamp = Time.from_msg(message.header.stamp).nanoseconds / 1e9
        if speed > MOVING[0] or turn > MOVING[1]:
            self.moving, self.standing_since = True, None
        elif self.moving and speed < STANDING[0] and turn < STANDING[1]:
            self.moving, self.standing_since = False, self.odometry_stamp

    def _on_command(self, message: NavCommand) -> None:
        self.expiry = Time.from_msg(message.expiry).nanoseconds / 1e9

    def _on_request(self, message: DecodeRequest) -> None:
        if message.kind == DecodeRequest.OPEN:
            self.opened.append(message.request_id)

    def _on_instruction(self, message: String) -> None:
        self.instruction_status = message.data

    def _on_status(self, message: String) -> None:
        self.nav_status = message.data


INSTRUCTION = "find the silver bottle"
ANSWERS = ("action: turn left large;", "action: turn right large;")  # there is room for a turn
TOKENS = 1024  # of an answer: no decode reaches its end during a trial
TRIES = 30  # of one trial: on a busy machine the decode may end before the stop arrives


class BareEcho:
    """The echo as a process of its own, and the benchmark's end of both topics."""

    def __init__(self, ros: RosGraph) -> None:
        self._ros = ros
        self._answers: list[float] = []  # when they arrived, s
        ros.node.create_subscription(
            Twist, bare.COMMAND, lambda _: self._answers.append(time.time()), 100
        )
        self._press = ros.node.create_publisher(Bool, bare.PRESS, 10)
        ros.start("bare_echo", [sys.executable, "-m", bare.__name__, "echo"])

    @property
    def ready(self) -> bool:
        """Whether the echo hears, and is heard."""
        return (
            bool(self._ros.subscribers(bare.PRESS))
            and self._ros.node.count_publishers(bare.COMMAND) > 0
        )

    def round_trip(self) -> float:
        """Seconds from the message to its answer."""
        self._answers.clear()
        pressed = time.time()
        self._press.publish(Bool(data=True))
        self._ros.wait_for(lambda: self._answers, "the bare echo's answer")
        return self._answers[0] - pressed


@dataclass(frozen=True)
class StopTimes:
    """Ms of each trial: of the stop, and of a bare message and its answer just before it."""

    ours: list[float]
    bare: list[float]


def measure(trials: int, seed: int) -> StopTimes:
    """From the stop to a zero command at the base, for each trial. Raises UserError.

    The drafter decodes long answers of a random pair, on a topic that the navigator does not
    subscribe to; the answers that move the robot are published here. A trial counts when the
    decode ended with ``aborted``.
    """
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target, drafter = make_pair(folder, TINY, TINY, seed=seed)
        options = ["--target", str(target), "--threads", "1", "--max-tokens", str(TOKENS)]
        with VerifierProcess(options) as cloud, RosGraph(folder / "logs") as ros:
            settings = GraphSettings(cloud=cloud.address, drafter=str(drafter), seed=seed)
            for node in ("simulator", "cloud_bridge", "navigator"):
                ros.start(node, node_command(node, settings))
            remapped = ["-r", "verified_tokens:=endless_tokens", "-r", "nav_status:=no_status"]
            endless = {"mission__failed_after": 10_000, "mission__max_decisions": 100_000}
            argv = node_command("drafter", settings, retry=0.1, max_tokens=TOKENS, **endless)
            ros.start("drafter", [*argv, *remapped])
            probe, echo = RobotProbe(ros.node), BareEcho(ros)
            ros.wait_for(
                lambda: (
                    {"drafter", "navigator"} <= ros.subscribers("e_stop")
                    and {"drafter", "navigator"} <= ros.subscribers("instruction")
                    and probe.nav_status
                    and probe.instruction_status == f"idle {STARTED}"
                    and probe.odometry_stamp
                    and echo.ready
                ),
                "the nodes are up",
            )
            ros.spin(1.0)
            times = StopTimes([], [])
            for trial in range(trials):
                pause = float(rng.uniform(0.05, 0.35))
                ours, theirs = _trial(ros, probe, echo, trial, pause)
                times.ours.append(1e3 * ours)
                times.bare.append(1e3 * theirs)
                if (trial + 1) % 20 == 0:
                    medians = f"{np.median(times.ours):.1f} ms, bare {np.median(times.bare):.1f} ms"
                    print(f"e_stop {trial + 1}/{trials}: {medians}", flush=True)
        return times


def _trial(
    ros: RosGraph, probe: RobotProbe, echo: BareEcho, trial: int, pause: float
) -> tuple[float, float]:
    for attempt in range(TRIES):
        probe.set_e_stop(False)
        ros.wait_for(lambda: "e_stop is on" not in probe.nav_status, "the stop is released")
        probe.reset()
        probe.instruct(INSTRUCTION)
        ros.wait_for(lambda: not probe.nav_status.startswith("stopped"), "the robot may move")
        ros.wait_for(lambda: probe.opened or probe.refused, "a decode begins, or is refused")
        if not probe.opened:
            continue  # the instruction overtook the stop or its release at the drafter
        probe.stats.clear()  # of the decode before
        probe.last_motion_command = 0.0
        if not _moves(ros, probe, f"bench-{trial}-{attempt}", ANSWERS[trial % 2]):
            continue  # as where odometry came late
        ros.spin(pause)
        echoed = echo.round_trip()
        moving = probe.moving
        probe.zero_commands.clear()
        pressed = probe.set_e_stop(True)
        ros.wait_for(lambda: probe.zero_commands, "a stop command")
        took = probe.zero_commands[0] - pressed
        ros.wait_for(
            lambda: probe.nav_status.startswith("stopped"), "the navigator reports the stop"
        )
        ros.wait_for(lambda: probe.stats, "the decode's end")
        if moving and probe.stats[0].finish_reason == "aborted" and probe.stats[0].rounds:
            return took, echoed
    raise UserError("no decode was under way when the stop came; is the machine too busy?")


def _moves(ros: RosGraph, probe: RobotProbe, request: str, answer: str) -> bool:
    """Whether the robot moves on this answer; the navigator may refuse it."""
    probe.publish_answer(request, answer)
    ros.wait_for(
        lambda: (
            (probe.last_motion_command and probe.moving)
            or probe.nav_status.startswith(f"idle {request} ")
        ),
        "the robot moves, or the answer is refused",
    )
    return probe.moving


OBSERVED = 1.5  # s after the standstill in which nothing may move
RECOVERY_TIMEOUT = 60.0  # s in which the robot must move again by itself
MAX_ROOMS = 20  # for one trial: in some the object is near, and nothing moves


@dataclass(frozen=True)
class Kill:
    """One trial: ``ms`` to the standstill, counted from what each measurement names."""

    ms: float
    stayed: bool  # nothing moved until the killed process was started again
    recovered: bool


@dataclass(frozen=True)
class RobotDrive:
    """The whole graph in a simulated room, and the probe that observes it."""

    ros: RosGraph
    probe: RobotProbe
    cloud: VerifierProcess
    settings: GraphSettings


@contextmanager
def driving(target: str, drafter: str) -> Iterator[RobotDrive]:
    """The graph with this pair; each trial enters a room. Raises UserError."""
    options = ["--target", target, "--threads", "1", "--max-tokens", "48"]
    with tempfile.TemporaryDirectory() as name, VerifierProcess(options) as cloud:
        settings = GraphSettings(cloud=cloud.address, drafter=drafter)
        with RosGraph(Path(name) / "logs") as ros:
            for node in ("cloud_bridge", "navigator", "drafter"):
                ros.start(node, node_command(node, settings))
            probe = RobotProbe(ros.node)
            ros.wait_for(lambda: probe.nav_status and probe.instruction_status, "the nodes are up")
            yield RobotDrive(ros, probe, cloud, settings)


def kill_cloud(drive: RobotDrive, rooms: Iterator[int], rng: np.random.Generator) -> Kill:
    """``ms`` counts from the last command that moves, or from its action's expiry before that."""
    _start_motion(drive, rooms, rng)
    drive.cloud.kill()
    probe = drive.probe
    return _measure(drive, lambda: min(probe.last_motion_command, probe.expiry), drive.cloud.start)


def kill_navigator(drive: RobotDrive, rooms: Iterator[int], rng: np.random.Generator) -> Kill:
    """``ms`` counts from the kill: what the base's own timeout takes, and its braking."""
    _start_motion(drive, rooms, rng)
    killed = time.time()
    drive.ros.kill("navigator")
    argv = node_command("navigator", drive.settings)
    return _measure(drive, lambda: killed, lambda: drive.ros.start("navigator", argv))


def _measure(drive: RobotDrive, since: Callable[[], float], restart: Callable[[], object]) -> Kill:
    ros, probe = drive.ros, drive.probe
    ros.wait_for(lambda: probe.standing_since is not None, "the robot stands still")
    assert probe.standing_since is not None
    seconds = probe.standing_since - since()
    ros.spin(OBSERVED)
    stayed = not probe.moving
    restart()
    return Kill(1e3 * seconds, stayed, _recovers(drive))


def _recovers(drive: RobotDrive) -> bool:
    try:
        drive.ros.wait_for(lambda: drive.probe.moving, "the robot moves again", RECOVERY_TIMEOUT)
    except UserError:
        return False
    return True


def _start_motion(drive: RobotDrive, rooms: Iterator[int], rng: np.random.Generator) -> None:
    """Enter new rooms until the robot is moving."""
    ros, probe = drive.ros, drive.probe
    pause = float(rng.uniform(0.0, 0.3))
    for _ in range(MAX_ROOMS):
        _enter_room(drive, next(rooms))
        ros.wait_for(
            lambda: probe.moving or not probe.instruction_status.startswith("following"),
            "a decision that moves, or the end of its mission",
        )
        ros.spin(pause)
        if probe.moving:
            return
    raise UserError(f"the robot moved in none of {MAX_ROOMS} rooms; is the pair trained?")


def _enter_room(drive: RobotDrive, room: int) -> None:
    """Another room: a new simulator, and the room's instruction."""
    ros, probe = drive.ros, drive.probe
    probe.instruct("stop")
    ros.wait_for(lambda: probe.instruction_status.startswith("idle"), "the drafter is idle")
    if "simulator" in ros.running:
        ros.kill("simulator", signal.SIGINT)
    probe.moving, probe.standing_since, probe.odometry_stamp = False, None, 0.0
    settings = GraphSettings(cloud=drive.cloud.address, seed=room)
    ros.start("simulator", node_command("simulator", settings))
    ros.wait_for(lambda: probe.odometry_stamp, "the simulator is up")
    ros.spin(0.5)
    probe.reset()
    probe.instruct(make_room(room).instruction)
    ros.wait_for(lambda: probe.instruction_status.startswith("following"), "the drafter follows")


Trial = Callable[[RobotDrive, Iterator[int], np.random.Generator], Kill]
KILLS: dict[str, Trial] = {"cloud_killed": kill_cloud, "navigator_killed": kill_navigator}
EVENTS = ("e_stop", *KILLS)


OPTIONS: Options = {
    "--trials": {"type": int, "default": 200, "help": "of e_stop (default %(default)s)"},
    "--kills": {"type": int, "default": 8, "help": "of either (default %(default)s)"},
    "--events": {"default": ",".join(EVENTS), "help": "(default %(default)s)"},
    "--target": {"default": str(EMBEDDED / "target")},
    "--drafter": {"default": str(EMBEDDED / "drafter")},
}


def run(args: argparse.Namespace) -> list[Row]:
    """A row an event."""
    events = args.events.split(",")
    if unknown := set(events) - set(EVENTS):
        raise UserError(f"--events has {', '.join(sorted(unknown))}; there are {', '.join(EVENTS)}")
    if args.trials < 1 or args.kills < 1:
        raise UserError("--trials and --kills must be 1 or more")
    rows = []
    if "e_stop" in events:
        times = measure(args.trials, args.seed)
        echoed = {f"bare_{name}": value for name, value in _percentiles(times.bare).items()}
        load = os.getloadavg()[0]
        rows.append({"event": "e_stop", **_times(times.ours), **echoed, "load": load})
    kills = [event for event in events if event in KILLS]
    if kills:
        rooms = count(args.seed * 1_000_003 % 2**30)
        rng = np.random.default_rng(args.seed)
        with driving(args.target, args.drafter) as drive:
            for event in kills:
                rows.append(_killed(event, args.kills, lambda t: t(drive, rooms, rng)))
    return rows


def _killed(event: str, trials: int, attempt: Callable[[Trial], Kill]) -> Row:
    done: list[Kill] = []
    for trial in range(trials):
        done.append(attempt(KILLS[event]))
        print(f"{event} {trial + 1}/{trials}: {done[-1]}", flush=True)
    return {
        "event": event,
        **_times([kill.ms for kill in done]),
        "recovered": all(kill.recovered for kill in done),
        "stayed": all(kill.stayed for kill in done),
    }


def _times(ms: Sequence[float]) -> Row:
    return {"trials": len(ms), **_percentiles(ms)}


def _percentiles(ms: Sequence[float]) -> Row:
    return {f"ms_p{p}": float(np.percentile(ms, p)) for p in (50, 99)}
