"""Sends velocity commands to a base: as Twist, or as requests to the Go2's sport service.

Both outputs have the methods ``command(velocity)`` and ``stop(repeat)``, for any thread: a stop is
``stop(0)``, ``stop(1)``, and so on (an odd number of times).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeAlias

from geometry_msgs.msg import Twist, TwistStamped
from rclpy.node import Node

from ..errors import UserError
from ..nav.pose import Velocity
from ..options import bounded, chosen, described
from .runtime.qos import RELIABLE

API_MOVE, API_STOP = 1008, 1003  # unitree_api/msg/Request, header.identity.api_id
SPORT_TOPIC = "/api/sport/request"


@dataclass(frozen=True)
class OutputSettings:
    """How velocity commands are sent to the base."""

    kind: str = chosen("twist", ("twist", "unitree_sport"), "what the base takes", fixed=True)
    stamped: bool = described(False, "twist: send TwistStamped", fixed=True)
    stop_nudge: float = bounded(
        0.001, 0.0, 0.004, "twist: every other Twist of a stop moves ahead at this, m/s", fixed=True
    )

    def text(self, base_frame: str) -> str:
        """These settings and the frame, for ``health.output_health``."""
        return f"{self.kind}, stamped {self.stamped}, stop_nudge {self.stop_nudge}, {base_frame}"


class TwistOutput:
    """Publishes Twist (or TwistStamped) on ``cmd_vel``.

    A stop is several zero Twists and then silence, so that a base's own timeout acts as well. The
    widely used go2_ros2_sdk drops all-zero Twists but rounds the others to 0.01 before it sends
    them, so every other Twist of a stop is ``nudge`` (m/s, below 0.005) ahead: there it arrives as
    zero, elsewhere it moves nothing. The first and the last are true zeros.
    """

    def __init__(self, node: Node, stamped: bool, frame: str, nudge: float) -> None:
        self._node, self._frame, self._nudge = node, frame, nudge
        kind = TwistStamped if stamped else Twist
        self._publisher = node.create_publisher(kind, "cmd_vel", RELIABLE)
        self._stamped = stamped

    def command(self, velocity: Velocity) -> None:
        twist = Twist()
        twist.linear.x, twist.linear.y = velocity.vx, velocity.vy
        twist.angular.z = velocity.wz
        if not self._stamped:
            self._publisher.publish(twist)
            return
        stamped = TwistStamped(twist=twist)
        stamped.header.stamp = self._node.get_clock().now().to_msg()
        stamped.header.frame_id = self._frame
        self._publisher.publish(stamped)

    def stop(self, repeat: int) -> None:
        self.command(Velocity(vx=self._nudge if repeat % 2 else 0.0))


class SportOutput:
    """Sends Move and StopMove requests to the Go2's sport service (``unitree_api``)."""

    def __init__(self, node: Node) -> None:
        try:
            from unitree_api.msg import Request
        except ImportError:
            raise UserError(
                "output.kind is unitree_sport, but the package unitree_api is not installed; "
                "build it from unitree_ros2, or set output.kind to twist"
            ) from None
        self._request = Request
        self._publisher = node.create_publisher(Request, SPORT_TOPIC, RELIABLE)

    def command(self, velocity: Velocity) -> None:
        self._send(API_MOVE, {"x": velocity.vx, "y": velocity.vy, "z": velocity.wz})

    def stop(self, repeat: int) -> None:
        self._send(API_STOP, None)

    def _send(self, api: int, parameter: dict[str, float] | None) -> None:
        request = self._request()
        request.header.identity.api_id = api
        request.parameter = "" if parameter is None else json.dumps(parameter)
        self._publisher.publish(request)


Output: TypeAlias = TwistOutput | SportOutput


def make_output(node: Node, settings: OutputSettings, base_frame: str) -> Output:
    """Make the output for these settings; raises UserError."""
    if settings.kind == "unitree_sport":
        return SportOutput(node)
    return TwistOutput(node, settings.stamped, base_frame, settings.stop_nudge)
