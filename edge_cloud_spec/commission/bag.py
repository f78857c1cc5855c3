"""A recording from a bag of a drive."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..nav.pose import yaw_of
from ..nodes.drafting.camera import encode_frame
from ..observe.bag import Bag
from .camera import Frame, frame_of
from .figures import NONE, SILENT, Recording

ODOMETRY = ("nav_msgs/msg/Odometry",)
CAMERA = ("sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Image")
COMMANDS = ("geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped")
SILENCE = 0.3  # s without commands, after which it is told nothing


def recording_of(path: Path, cmd_vel: str = "", odom: str = "", camera: str = "") -> Recording:
    """What of a drive is in a bag; topics are found by their types. Raises UserError."""
    bag, recording = Bag(path), Recording()
    odom = topic_of(bag, odom, ODOMETRY, "--odom")
    others = {
        topic_of(bag, name, kinds, option): kinds
        for name, kinds, option in ((cmd_vel, COMMANDS, "--cmd-vel"), (camera, CAMERA, "--camera"))
        if name or any(kind in kinds for kind in bag.topics.values())
    }
    commanded, yaw = math.inf, 0.0
    for received, topic, _, message in bag.read([n.lstrip("/") for n in (odom, *others)]):
        now = received / 1e9
        if topic == odom.lstrip("/"):
            stamp, at = _stamp(message), message.pose.pose.position
            yaw += math.remainder(yaw_of(message.pose.pose.orientation) - yaw, 2 * math.pi)
            recording.poses.append((now, at.x, at.y, yaw))
            recording.stamps.append((stamp, now))
        elif others[f"/{topic}" if f"/{topic}" in others else topic] is CAMERA:
            recording.frames.append(frame_from(message, now))
        else:
            twist = getattr(message, "twist", message)
            moves = recording.commands and any(
                abs(value) >= least
                for value, least in zip(recording.commands[-1][1:], NONE, strict=True)
            )
            if moves and now - commanded > SILENCE:
                recording.command(commanded, SILENT, SILENT)
            commanded = now
            recording.command(now, twist.linear.x, twist.angular.z)
    if len(recording.poses) < 2:
        raise UserError(f"{path} has too little odometry to measure anything by")
    return recording


def topic_of(bag: Bag, given: str, kinds: tuple[str, ...], option: str) -> str:
    """The one topic of these kinds, or what was given; raises UserError naming the option."""
    found = [given] if given in bag.topics else []
    found = found or [name for name, kind in bag.topics.items() if kind in kinds and not given]
    if len(found) != 1:
        there = ", ".join(found or bag.topics) or "nothing"
        raise UserError(f"{option} must name a topic of the bag, which has {there}")
    return found[0]


def frame_from(message: Any, came: float) -> Frame:
    """The frame of a message with a picture."""
    jpeg = bytes(message.data) if hasattr(message, "format") else encode_frame(message)
    return frame_of(jpeg, _stamp(message), came)


def _stamp(message: Any) -> float:
    return float(message.header.stamp.sec + message.header.stamp.nanosec / 1e9)
