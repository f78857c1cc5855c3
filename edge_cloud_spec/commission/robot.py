"""The robot under test and the person at the terminal: converts topics and answers to events, and
sends commands to the driver."""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from nav_msgs.msg import Odometry as OdometryMsg
from rclpy.time import Time
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Bool

from ..bringup.parameter_file import ParameterFile, full_name
from ..errors import UserError
from ..nav.budget import COMMAND_PERIOD_S
from ..nav.events import EStop, Hold, Instruction, Odometry, Tick
from ..nav.pose import Velocity, pose_of
from ..nav.watchdog import Watchdog
from ..nodes.base_output import SPORT_TOPIC, make_output
from ..nodes.drafting.camera import COMPRESSED, RAW, encode_frame
from ..nodes.lidar import LIDARS, scan_of
from ..nodes.navigator import NodeSettings
from ..nodes.runtime.node_thread import NodeThread
from ..nodes.runtime.qos import EVERY_PUBLISHER, SENSOR_DATA
from ..nodes.runtime.subscription_thread import SubscriptionThread
from ..options import changed
from ..signals import SignalEvent
from .camera import frame_of
from .lidar import EVERY
from .trials import Event

SIMULATED = "sim/outcome"  # what simulators publish, and no robot
ODOMETRY_FOUND_S, ODOMETRY_LOOKS = 10.0, 50  # s to find odometry, and how often it is looked for
MORE_S = 1.5  # s more, to find who else is there
OURS = ("output.", "obstacles.", "base_frame")  # of the navigator's parameters
GRACE_S = 0.3  # s after a command that this program did not renew, until it is stopped


class RosRobot:
    """A ``trials.Robot``. Raises UserError if it must not be driven.

    ``interrupted`` is set when the program must end.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.interrupted, self._yes, self._kind = SignalEvent(), args.yes, ""
        self._events: queue.SimpleQueue[tuple[float, Event]] = queue.SimpleQueue()
        given = {"cmd_vel": args.cmd_vel, "odom": args.odom, COMPRESSED: args.camera}
        if args.camera and not args.camera.endswith("/compressed"):
            given |= {COMPRESSED: args.camera + "/compressed", RAW: args.camera}
        names = {name: topic for name, topic in given.items() if topic}
        self._thread = NodeThread("commission", args.namespace, None, names, args.ros_args)
        self._node, node = self._thread.node, self._thread.node
        try:
            file = ParameterFile.read(Path(args.parameters)) if args.parameters else None
            values = file.of(full_name(args.namespace, "navigator")) if file else {}
            given = {name: value for name, value in values.items() if name.startswith(OURS)}
            given |= {f"obstacles.{s}": topic for s in LIDARS if (topic := getattr(args, s))}
            settings = changed(NodeSettings(), given)
            self.obstacles, self._base_frame = settings.obstacles, settings.base_frame
            self.output = make_output(node, settings.output, settings.base_frame)
            self._check_alone()
        except (TypeError, ValueError) as error:
            raise UserError(f"{args.parameters}: {error}") from None
        self._stops, self._pictures = SubscriptionThread(node), SubscriptionThread(node)
        self._looked = dict.fromkeys(LIDARS, 0.0)
        for source, topic in self.obstacles.promised.items():
            on_lidar = partial(self._on_lidar, source)
            self._pictures.subscribe(LIDARS[source][0], topic, on_lidar, SENSOR_DATA)
        self._stops.subscribe(Bool, "e_stop", self._on_e_stop, *EVERY_PUBLISHER)
        self._pictures.subscribe(CompressedImage, COMPRESSED, self._on_picture, SENSOR_DATA)
        self._pictures.subscribe(Image, RAW, self._on_picture, SENSOR_DATA)
        node.create_subscription(OdometryMsg, "odom", self._on_odometry, SENSOR_DATA)
        self._watchdog = Watchdog(self.output.stop, GRACE_S)
        if not self._yes:
            threading.Thread(target=self._read_answers, name="terminal", daemon=True).start()
        for thread in (self._watchdog, self._thread, self._stops, self._pictures):
            thread.start()

    def close(self) -> None:
        """Close the subscriptions."""
        for thread in (self._stops, self._pictures, self._thread, self._watchdog):
            thread.close()

    def command(self, velocity: Velocity) -> None:
        self._watchdog.feed(time.monotonic() + COMMAND_PERIOD_S)
        self.output.command(velocity)

    def stop(self, repeat: int) -> None:
        self._watchdog.calm()
        self.output.stop(repeat)

    def keep_silent(self, seconds: float) -> None:
        self._watchdog.feed(time.monotonic() + seconds)

    def report(self, text: str) -> None:
        print(text, flush=True)

    def ask(self, text: str) -> None:
        answer = "y\n" if "[y/n]" in text else "\n"  # no tape measured anything
        print(text, end=answer if self._yes else "", flush=True)
        if self._yes:
            self._receive(Instruction(answer))

    def period(self) -> Iterator[tuple[float, Event]]:
        end = time.monotonic() + COMMAND_PERIOD_S
        while (left := end - time.monotonic()) > 0:
            with suppress(queue.Empty):
                yield self._events.get(timeout=left)
        yield time.monotonic(), Hold("it was interrupted") if self.interrupted.is_set() else Tick()

    def _receive(self, event: Event) -> None:
        self._events.put((time.monotonic(), event))

    def _read_answers(self) -> None:
        for line in sys.stdin:
            self._receive(Instruction(line))
        self._receive(Hold("nobody can answer: its input has ended"))

    def _check_alone(self) -> None:
        """Refuse to drive beside another publisher, or with ``--yes`` outside of a simulator."""
        node = self._node
        for _ in range(ODOMETRY_LOOKS):
            if node.count_publishers(node.resolve_topic_name("odom")):
                break
            time.sleep(ODOMETRY_FOUND_S / ODOMETRY_LOOKS)
        time.sleep(MORE_S)
        for topic in ("cmd_vel", SPORT_TOPIC):
            others = node.count_publishers(node.resolve_topic_name(topic)) - (topic == "cmd_vel")
            if others > 0:
                raise UserError(
                    f"another node publishes {topic}: stop the launch and all that drives the robot"
                )
        if self._yes and not node.count_publishers(node.resolve_topic_name(SIMULATED)):
            raise UserError(f"--yes is for a simulation: nobody publishes {SIMULATED}")

    def _now(self) -> float:
        return float(self._node.get_clock().now().nanoseconds) / 1e9

    def _on_e_stop(self, message: Bool) -> None:
        if message.data:
            self.output.stop(0)
        self._receive(EStop(message.data))

    def _on_odometry(self, message: OdometryMsg) -> None:
        stamp = Time.from_msg(message.header.stamp).nanoseconds
        self._receive(Odometry(pose_of(message.pose.pose), stamp, self._now() - stamp / 1e9))

    def _on_lidar(self, source: str, message: Any) -> None:
        if time.monotonic() - self._looked[source] >= EVERY:
            self._looked[source] = time.monotonic()
            self._receive(scan_of(source, message, self.obstacles, self._base_frame))

    def _on_picture(self, message: Any) -> None:
        came, kind = self._now(), type(message).__name__
        if self._kind in ("", kind):  # a camera that publishes both is heard once
            self._kind = kind
            jpeg = encode_frame(message)
            self._receive(
                frame_of(jpeg, Time.from_msg(message.header.stamp).nanoseconds / 1e9, came)
            )
