"""An action in RViz: an arrow from the base and the action's words above it."""

from __future__ import annotations

import math

from geometry_msgs.msg import Point, Vector3
from rclpy.time import Time
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

from ...nav.motion import Goal

TURN_ARROW = 0.5  # m


def action_markers(text: str, goal: Goal, frame: str, now: Time) -> MarkerArray:
    """Arrow and text of the action that begins ``now``, in the frame of the base."""
    if goal.angle:
        tip = (TURN_ARROW * math.cos(goal.angle), TURN_ARROW * math.sin(goal.angle))
    else:
        tip = (goal.distance, 0.0)
    arrow = _marker(0, Marker.ARROW, frame, now, Vector3(x=0.04, y=0.08, z=0.1))
    arrow.points = [Point(z=0.3), Point(x=tip[0], y=tip[1], z=0.3)]
    words = _marker(1, Marker.TEXT_VIEW_FACING, frame, now, Vector3(z=0.12))
    words.pose.position.z = 0.6
    words.text = text
    return MarkerArray(markers=[arrow, words] if any(tip) else [words])


def no_markers() -> MarkerArray:
    """Removes the markers of the last action."""
    return MarkerArray(markers=[Marker(ns="action", action=Marker.DELETEALL)])


def _marker(number: int, kind: int, frame: str, now: Time, scale: Vector3) -> Marker:
    marker = Marker(ns="action", id=number, type=kind, action=Marker.ADD, scale=scale)
    marker.header.frame_id, marker.header.stamp = frame, now.to_msg()
    marker.color = ColorRGBA(r=0.1, g=0.8, b=0.3, a=1.0)
    marker.pose.orientation.w = 1.0
    return marker
