"""What drafter and navigator send each other, as ROS messages; ``nav`` reads them, without ROS."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rclpy.time import Time

from edge_cloud_spec.msg import FreeSpace as FreeSpaceMsg
from edge_cloud_spec.msg import NavAction, NavStatus, VerifiedTokens

from ..nav.answer import NO_ACTION, Action, Reading
from ..nav.free_space import FreeSpace
from ..nav.status import NavigatorStatus


def to_action(action: Action | None) -> NavAction:
    """An action, or none, as a part of other messages."""
    return NavAction(**asdict(action or NO_ACTION))


def to_status(status: NavigatorStatus) -> NavStatus:
    """For the topic ``nav_status``; the sender sets the header."""
    return NavStatus(**{**status.fields, "action": to_action(status.action)})


def to_free_space(space: FreeSpace) -> FreeSpaceMsg:
    """For the topic ``free_space``, and the request whose prompt tells it."""
    message = FreeSpaceMsg(**space.fields)
    message.header.stamp = Time(nanoseconds=space.at).to_msg()
    return message


def to_reading(reading: Reading) -> dict[str, Any]:
    """The fields of ``VerifiedTokens`` that say what the answer so far means."""
    fields = {"action_end": reading.end, "no_action": reading.problem}
    return {**fields, "action": to_action(reading.action)}


def reading_of(message: VerifiedTokens) -> Reading:
    """The inverse of ``to_reading``. Raises ValueError for what is no action."""
    return Reading(Action.read(message.action), message.action_end, message.no_action)
