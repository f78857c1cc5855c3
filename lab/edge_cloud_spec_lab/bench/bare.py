"""``python -m edge_cloud_spec_lab.bench.bare``: a minimal rclpy node, the baseline of ``bench
stop``.

It answers a message with another, like a navigator that has nothing else to do.
"""

from __future__ import annotations

import rclpy
from geometry_msgs.msg import Twist
from rclpy.node import Node
from std_msgs.msg import Bool

PRESS_TOPIC, COMMAND_TOPIC = "bare/press", "bare/command"


def main() -> None:
    """Answer each Bool with an all-zero Twist, until killed."""
    rclpy.init(args=[])
    node = Node("bare_echo")
    commands = node.create_publisher(Twist, COMMAND_TOPIC, 100)
    node.create_subscription(Bool, PRESS_TOPIC, lambda _: commands.publish(Twist()), 10)
    rclpy.spin(node)


if __name__ == "__main__":
    main()
