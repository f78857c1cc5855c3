"""Converts LaserScan and PointCloud2 messages to the navigator's event, a lidar's rays around the
base."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from rclpy.time import Time
from sensor_msgs.msg import LaserScan, PointCloud2, PointField

from ..errors import refuse
from ..nav.events import Scan
from ..nav.floor import Floor
from ..nav.footprint import Mount, ObstacleSettings
from ..nav.sight import Rays, cloud_of, rays_of_scan

AXES = ("x", "y", "z")
MORE_THAN_ROUND = 7.0  # rad
COARSEST_RAD = math.radians(6)  # between two rays: a chair's leg is between them at half a metre
FLOAT32_RAD = 1e-6  # rad by which float32 rounds an angle at most
# Frames that stand while the base moves (REP 105; camera_init: of LOAM and its kin).
STANDING_FRAMES = frozenset({"odom", "map", "earth", "world", "camera_init"})
FLOAT_TYPES = {PointField.FLOAT32: "f4", PointField.FLOAT64: "f8"}


def scan_of(
    source: str, message: LaserScan | PointCloud2, settings: ObstacleSettings, base_frame: str
) -> Scan:
    """The event of a message, without its age; ``problem`` says why it cannot be used."""
    stamp, read = Time.from_msg(message.header.stamp).nanoseconds, LIDARS[source][1]
    try:
        rays, floor = read(message, settings, base_frame)
        return Scan(source, stamp, rays=rays, floor=floor)
    except ValueError as error:
        return Scan(source, stamp, problem=str(error))


def read_scan(message: LaserScan, settings: ObstacleSettings, base_frame: str) -> tuple[Rays, None]:
    """The rays [n, 3] of the scan in the base's frame; it tells nothing of the floor.

    Raises ValueError, with a sentence, if the message cannot be used.
    """
    _check_frame(message.header.frame_id, settings.scan_at, base_frame, "scan")
    ranges = np.asarray(message.ranges, np.float64)
    step = message.angle_increment
    refuse(
        (
            not 0.0 < abs(step) * len(ranges) < MORE_THAN_ROUND,
            f"{len(ranges)} ranges of the scan, {math.degrees(step):.3g} degrees apart, are no "
            "scan; correct angle_increment in its driver",
        ),
        (
            abs(step) > COARSEST_RAD + FLOAT32_RAD,
            f"the rays of the scan are {math.degrees(abs(step)):.3g} degrees apart, and a chair "
            "fits between them; it takes a lidar with 6 degrees at most",
        ),
        error=ValueError,
    )
    angles = message.angle_min + np.arange(len(ranges)) * step
    return rays_of_scan(ranges, angles, message.range_min, message.range_max, settings), None


def read_cloud(
    message: PointCloud2, settings: ObstacleSettings, base_frame: str
) -> tuple[Rays, Floor]:
    """The rays [n, 3] to the points of the cloud in the base's frame, and what it tells of the
    floor.

    Raises ValueError, with a sentence, if the message cannot be used.
    """
    _check_frame(message.header.frame_id, settings.points_at, base_frame, "points")
    return cloud_of(_places(message), settings)


def _check_frame(frame: str, mount: Mount, base_frame: str, source: str) -> None:
    expected = mount.frame or base_frame
    refuse(
        (
            frame.rpartition("/")[2] in STANDING_FRAMES,
            f"its frame is {frame[:80]!r}, which does not move with the base; take the topic that "
            "its driver publishes in the lidar's own frame",
        ),
        (
            frame.lstrip("/") != expected.lstrip("/"),
            f"its frame is {frame[:80]!r}, not {expected!r}; obstacles.{source}_at must say what "
            "frame it has, and where it is on the base",
        ),
        error=ValueError,
    )


def _places(message: PointCloud2) -> NDArray[np.float64]:
    """x, y and z [n, 3] as stored in the message."""
    order = ">" if message.is_bigendian else "<"
    found = {field.name: field for field in message.fields if field.datatype in FLOAT_TYPES}
    size, rows = message.width * message.point_step, message.height
    row = message.row_step or size  # some drivers leave it 0
    if not all(axis in found for axis in AXES):
        raise ValueError("the points have no x, y and z as floating-point numbers")
    kinds = [order + FLOAT_TYPES[found[axis].datatype] for axis in AXES]
    offsets = [found[axis].offset for axis in AXES]
    ends = [at + np.dtype(kind).itemsize for at, kind in zip(offsets, kinds, strict=True)]
    data = np.frombuffer(message.data, np.uint8)
    if max(ends) > message.point_step or size > row or len(data) < rows * row:
        raise ValueError("the points are shorter than their message says")
    layout = np.dtype(
        {"names": AXES, "formats": kinds, "offsets": offsets, "itemsize": message.point_step}
    )
    data = data[: rows * row].reshape(rows, row)[:, :size]
    cloud = np.ascontiguousarray(data).reshape(-1).view(layout)
    return np.stack([cloud[axis].astype(np.float64) for axis in AXES], 1)


LIDARS = {"scan": (LaserScan, read_scan), "points": (PointCloud2, read_cloud)}
"""By source, the type of its messages and what reads them."""
