"""Publishes a node's state on ``/diagnostics`` once a second, which is also its heartbeat."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rcl_interfaces.msg import ParameterDescriptor
from rclpy.node import Node

from ...health import Health, Level
from ..health import HealthConsole
from .qos import RELIABLE, STEADY

PERIOD_S = 1.0
INSTANCE = "instance"  # the key of a number that each start of a node draws anew


class Diagnostics:
    """Publishes a node's health under its fully qualified name, when the node calls.

    It declares the parameter ``hardware_id``, the robot's name; empty: the namespace without its
    first slash or, without a namespace, the host's name.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        about = ParameterDescriptor(
            description="which robot this is, in diagnostics; empty: the namespace, or the host"
        )
        node.declare_parameter("hardware_id", "", about)
        self._console = HealthConsole()
        self._instance = os.urandom(4).hex()
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", RELIABLE)

    def report(self, health: Callable[[], Health]) -> None:
        """Publish the result of ``health()`` once a second, in the executor."""
        self._node.create_timer(PERIOD_S, lambda: self.show(health()), clock=STEADY)

    def show(self, health: Health, others: Mapping[str, Health] | None = None) -> None:
        """Publish this health, and log its changes.

        ``others`` are published with it as ``<node>: <key>``.
        """
        self._log(health)
        name = self._node.get_fully_qualified_name()
        named = [(name, health), *((f"{name}: {k}", h) for k, h in (others or {}).items())]
        array = DiagnosticArray(status=[self._status(name, health) for name, health in named])
        array.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(array)

    def _log(self, health: Health) -> None:
        logger = self._node.get_logger()
        for level, line in self._console.look(health.parts or (health,), time.monotonic()):
            match level:  # rclpy wants one severity for each line of code
                case Level.OK:
                    logger.info(line)
                case Level.WARN:
                    logger.warning(line)
                case _:
                    logger.error(line)

    def _status(self, name: str, health: Health) -> DiagnosticStatus:
        given = str(self._node.get_parameter("hardware_id").value)
        robot = given or self._node.get_namespace().strip("/") or socket.gethostname()
        status = DiagnosticStatus(
            level=bytes([health.level]), name=name, message=str(health), hardware_id=robot
        )
        values = {**health.values, INSTANCE: self._instance}
        status.values = [KeyValue(key=key, value=str(value)) for key, value in values.items()]
        return status
