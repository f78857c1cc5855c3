"""The two Go2 drivers in use, as far as their behaviour was read or reported; a base behind each.

``FakeSdk`` is go2_ros2_sdk (read at commit 7f005bb): a Twist of zeros is dropped, another is
rounded to 0.01 before it is sent, frames and odometry are stamped as they arrive. Its users report
stamps that freeze, pictures that come seconds late, and that it goes silent when another client
takes the robot. ``FakeSport`` is the sport service that unitree_ros2 talks to. Neither base has a
timeout of its own, which is the worst that a base may do.
"""

from __future__ import annotations

import json
import math
from collections import deque
from typing import Any

from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rclpy.context import Context
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.time import Time
from sensor_msgs.msg import Image

PERIOD = 0.02  # s, of the odometry


class Base:
    """Follows its last velocity for as long as no other comes."""

    def __init__(self) -> None:
        self.x = self.y = self.yaw = 0.0
        self.velocity = (0.0, 0.0, 0.0)

    @property
    def still(self) -> bool:
        return self.velocity == (0.0, 0.0, 0.0)

    def go_on(self, seconds: float) -> None:
        vx, vy, wz = self.velocity
        self.x += (vx * math.cos(self.yaw) - vy * math.sin(self.yaw)) * seconds
        self.y += (vx * math.sin(self.yaw) + vy * math.cos(self.yaw)) * seconds
        self.yaw += wz * seconds


class FakeSdk(Node):
    """go2_ros2_sdk's node; twist_mux, which passes ``cmd_vel`` on, is left out."""

    def __init__(self, context: Context) -> None:
        super().__init__("go2_driver_node", context=context)
        self.base = Base()
        self.received = 0  # messages on cmd_vel
        self.connected = True  # False: another client has the robot
        self.frozen: Time | None = None  # the stamp of all odometry from now on
        self.lag = 0.0  # s that a picture is on its way before it is stamped
        self._pictures: deque[tuple[float, float]] = deque()
        self._began = self._went_on = self._seconds
        self._odom = self.create_publisher(Odometry, "odom", QoSProfile(depth=10))
        self._camera = self.create_publisher(Image, "camera/image_raw", QoSProfile(depth=1))
        self.create_subscription(Twist, "cmd_vel", self._on_twist, QoSProfile(depth=10))
        self.create_timer(PERIOD, self._on_timer)

    @property
    def _seconds(self) -> float:
        return self.get_clock().now().nanoseconds / 1e9

    def _on_twist(self, message: Twist) -> None:
        x, y, z = message.linear.x, message.linear.y, message.angular.z
        self.received += 1
        if self.connected and (x != 0.0 or y != 0.0 or z != 0.0):
            self.base.velocity = (round(x, 2), round(y, 2), round(z, 2))

    def _on_timer(self) -> None:
        now = self._seconds
        self.base.go_on(now - self._went_on)
        self._went_on = now
        self._pictures.append((now, self.base.yaw))
        if self.connected:
            self._publish_odometry()
            while self._pictures and self._pictures[0][0] <= now - self.lag:
                self._publish_picture(self._pictures.popleft()[1])

    def _publish_odometry(self) -> None:
        message = Odometry()
        message.header.stamp = (self.frozen or self.get_clock().now()).to_msg()
        message.pose.pose.position.x, message.pose.pose.position.y = self.base.x, self.base.y
        message.pose.pose.orientation.z = math.sin(self.base.yaw / 2)
        message.pose.pose.orientation.w = math.cos(self.base.yaw / 2)
        self._odom.publish(message)

    def _publish_picture(self, yaw: float) -> None:
        """A grey picture whose shade tells where the robot looked when it was taken."""
        shade = bytes([round(math.degrees(yaw)) % 256])
        message = Image(height=8, width=8, encoding="bgr8", step=24, data=shade * 192)
        message.header.stamp = self.get_clock().now().to_msg()
        self._camera.publish(message)


class FakeSport:
    """The Go2's sport service: takes requests as ``unitree_api`` has them, in JSON."""

    MOVE, STOP = 1008, 1003

    def __init__(self) -> None:
        self.base = Base()

    def publish(self, request: Any) -> None:
        """In place of the publisher of ``/api/sport/request``."""
        if request.header.identity.api_id == self.STOP:
            self.base.velocity = (0.0, 0.0, 0.0)
        elif request.header.identity.api_id == self.MOVE:
            asked = json.loads(request.parameter)
            self.base.velocity = (asked["x"], asked["y"], asked["z"])
