"""The state of a node on the topic ``/diagnostics``."""

from __future__ import annotations

from collections.abc import Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

from .qos import RELIABLE


class Diagnostics:
    """Publishes one ``DiagnosticStatus`` under the node's name, whenever the node calls."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", RELIABLE)

    def publish(self, message: str, values: Mapping[str, object], warning: bool = False) -> None:
        """Publish this status; level WARN for a ``warning``, else OK."""
        level = DiagnosticStatus.WARN if warning else DiagnosticStatus.OK
        status = DiagnosticStatus(level=level, name=self._node.get_name(), message=message)
        status.values = [KeyValue(key=key, value=str(value)) for key, value in values.items()]
        array = DiagnosticArray(status=[status])
        array.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(array)
