"""What a stop is compared with: a bare rclpy message to another process, and its answer.

``python -m edge_cloud_spec.lab.bench.stop.bare_echo`` answers each Bool with an all-zero Twist, as
a navigator does that has nothing else to do.
"""

from __future__ import annotations

import sys
import time

import rclpy
from geometry_msgs.msg import Twist
from rclpy.node import Node
from std_msgs.msg import Bool

from ..ros_graph import RosGraph

PRESS, COMMAND = "bare/press", "bare/command"


class BareEcho:
    """The echo as a process of its own, and the benchmark's end of both topics."""

    def __init__(self, ros: RosGraph) -> None:
        self._ros = ros
        self._answers: list[float] = []  # when they arrived, s
        ros.node.create_subscription(
            Twist, COMMAND, lambda _: self._answers.append(time.time()), 100
        )
        self._press = ros.node.create_publisher(Bool, PRESS, 10)
        ros.start("bare_echo", [sys.executable, "-m", __name__])

    @property
    def ready(self) -> bool:
        """Whether the echo hears, and is heard."""
        return bool(self._ros.subscribers(PRESS)) and self._ros.node.count_publishers(COMMAND) > 0

    def round_trip(self) -> float:
        """Seconds from the message to its answer."""
        self._answers.clear()
        pressed = time.time()
        self._press.publish(Bool(data=True))
        self._ros.wait_for(lambda: self._answers, "the bare echo's answer")
        return self._answers[0] - pressed


def main() -> None:
    """Answer until it is killed."""
    rclpy.init(args=[])
    node = Node("bare_echo")
    commands = node.create_publisher(Twist, COMMAND, 100)
    node.create_subscription(Bool, PRESS, lambda _: commands.publish(Twist()), 10)
    rclpy.spin(node)


if __name__ == "__main__":
    main()
