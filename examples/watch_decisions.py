"""Print the decisions of a running graph: the verified words, and the motion that follows them.

    ros2 launch edge_cloud_spec go2_nav.launch.py      # or a robot's own graph
    python examples/watch_decisions.py

Ends on Ctrl-C. It only listens: no message of it reaches any node.
"""

from __future__ import annotations

import math

from edge_cloud_spec.errors import imports

with imports():
    import rclpy
    from rclpy.executors import ExternalShutdownException
    from rclpy.node import Node

    from edge_cloud_spec.msg import NavAction, NavCommand, VerifiedTokens


class DecisionWatcher(Node):
    """Subscribes to what the drafter settles and to what the navigator makes of it."""

    def __init__(self) -> None:
        super().__init__("decision_watcher")
        # Both topics are reliable. Topic names are relative, so that remappings and a namespace
        # (--ros-args -r __ns:=/go2) work as they do for the package's own nodes.
        self.create_subscription(VerifiedTokens, "verified_tokens", self._on_words, 100)
        self.create_subscription(NavCommand, "nav_command", self._on_command, 10)

    def _on_words(self, message: VerifiedTokens) -> None:
        """A verdict settled some words; the last message of a decision holds all of them."""
        if not message.finished:
            return
        # False only under the preset edge_only, where no target verifies anything.
        mark = "verified" if message.verified else "NOT VERIFIED"
        print(f"{message.request_id} {mark}, {message.finish_reason}: {message.answer}", flush=True)

    def _on_command(self, message: NavCommand) -> None:
        """An action is complete, often before its answer: the robot begins to move, or stops."""
        verb, size = message.action.verb, f"{message.magnitude:+.2f} m"  # forward is positive
        if verb in (NavAction.TURN, NavAction.SEARCH):
            size = f"{math.degrees(message.magnitude):+.0f} degrees"  # left is positive
        elif verb == NavAction.STOP:
            size = ""
        print(f"{message.request_id} {verb} {size}".rstrip(), flush=True)


def main() -> None:
    rclpy.init()
    node = DecisionWatcher()
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
