"""Observes the robot: the commands to its base, its odometry, its decisions."""

from __future__ import annotations

import time

from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.time import Time
from std_msgs.msg import Bool, String

from edge_cloud_spec.msg import DecodeRequest, DecodeStats, NavCommand, VerifiedTokens

from ....nav.status import Status
from ....nodes.runtime.qos import LATCHED, SENSOR_DATA

STANDING = (0.02, 0.02)  # m/s, rad/s under which the base stands, as the simulator has it
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
