"""Reads the recording of a drive from a bag."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from edge_cloud_spec.commission.camera import frame_of
from edge_cloud_spec.commission.figures import NO_MESSAGE, TrialMeasurements, is_still
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nav.pose import pose_of, wrap
from edge_cloud_spec.nodes.drafting.camera import TYPES, encode_frame
from edge_cloud_spec.nodes.endpoints import TWISTS
from edge_cloud_spec.observe.word_log import seconds_of

from .bag import Bag
from .topics import topic_of

ODOMETRY_TYPES = ("nav_msgs/msg/Odometry",)
COMMAND_GAP_S = 0.3  # s without commands, after which nothing is commanded


def recording_of(
    path: Path, cmd_vel: str = "", odom: str = "", camera: str = ""
) -> TrialMeasurements:
    """The recording of a drive from a bag; topics are found by their types. Raises UserError."""
    bag, recording = Bag(path), TrialMeasurements()
    topics = {
        "odom": topic_of(bag.topics, odom, ODOMETRY_TYPES, "--odom"),
        "camera": topic_of(bag.topics, camera, TYPES.values(), "--camera"),
        "cmd_vel": topic_of(bag.topics, cmd_vel, TWISTS, "--cmd-vel"),
    }
    commanded, yaw, problem = math.inf, 0.0, ""
    for received, name, message in bag.read(topics):
        now = received / 1e9
        if name == "odom":
            pose = pose_of(message.pose.pose)
            if pose.problem:
                problem = f": it {pose.problem}"
                continue
            yaw += wrap(pose.yaw - yaw)
            recording.poses.append((now, pose.x, pose.y, yaw))
            recording.stamps.append((seconds_of(message.header.stamp), now))
        elif name == "camera":
            jpeg = encode_frame(message)
            recording.frames.append(frame_of(jpeg, seconds_of(message.header.stamp), now))
        else:
            if now - commanded > COMMAND_GAP_S and not is_still(recording.commands[-1][1:]):
                recording.command(commanded, NO_MESSAGE, NO_MESSAGE)
            commanded = now
            twist: Any = getattr(message, "twist", message)
            recording.command(now, twist.linear.x, twist.angular.z, twist.linear.y)
    if len(recording.poses) < 2:
        raise UserError(f"{path} has too little odometry to measure anything by{problem}")
    return recording
