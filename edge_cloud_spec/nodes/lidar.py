"""Converts LaserScan and PointCloud2 messages to points around the base."""

from __future__ import annotations

import numpy as np
from sensor_msgs.msg import LaserScan, PointCloud2, PointField

from ..nav.footprint import Mount, ObstacleSettings, Points

AXES = ("x", "y", "z")
SIZES = {PointField.FLOAT32: "f4", PointField.FLOAT64: "f8"}


def points_of_scan(message: LaserScan, settings: ObstacleSettings, base_frame: str) -> Points:
    """Points [n, 2] in the base's frame, m; a return below the minimum range counts as at that
    range.

    Raises ValueError, with a sentence, if the message cannot be used.
    """
    _check_frame(message.header.frame_id, settings.scan_at, base_frame, "scan")
    ranges = np.asarray(message.ranges, np.float64)
    angles = message.angle_min + np.arange(len(ranges)) * message.angle_increment
    ranges = np.where(ranges == -np.inf, message.range_min, ranges)
    known = (ranges >= message.range_min) & (ranges <= message.range_max) & np.isfinite(angles)
    if not known.any():
        raise ValueError("no range of the scan is a number within its bounds; is it covered?")
    ranges, angles = ranges[known], angles[known]
    flat = np.stack([ranges * np.cos(angles), ranges * np.sin(angles), 0.0 * ranges], 1)
    return settings.scan_at.to_base(flat)[:, :2]


def points_of_cloud(message: PointCloud2, settings: ObstacleSettings, base_frame: str) -> Points:
    """Points [n, 2] in the base's frame, m, within the configured heights.

    Raises ValueError, with a sentence, if the message cannot be used.
    """
    _check_frame(message.header.frame_id, settings.points_at, base_frame, "points")
    places = _places(message)
    places = places[np.isfinite(places).all(1)]
    if not len(places):
        raise ValueError("none of the points is a number; is the lidar covered?")
    x, y, height = settings.points_at.to_base(places).T
    counts = (height >= settings.lowest) & (height <= settings.highest)
    return np.stack([x[counts], y[counts]], 1)


def _check_frame(frame: str, mount: Mount, base_frame: str, source: str) -> None:
    expected = mount.frame or base_frame
    if frame.lstrip("/") != expected.lstrip("/"):
        raise ValueError(
            f"its frame is {frame[:80]!r}, not {expected!r}; obstacles.{source}_at must say what "
            "frame it has, and where it is on the base"
        )


def _places(message: PointCloud2) -> Points:
    """x, y and z [n, 3] as stored in the message."""
    order = ">" if message.is_bigendian else "<"
    found = {field.name: field for field in message.fields if field.datatype in SIZES}
    size, rows = message.width * message.point_step, message.height
    if not all(axis in found for axis in AXES):
        raise ValueError("the points have no x, y and z as floating-point numbers")
    kinds = [order + SIZES[found[axis].datatype] for axis in AXES]
    offsets = [found[axis].offset for axis in AXES]
    ends = [at + np.dtype(kind).itemsize for at, kind in zip(offsets, kinds, strict=True)]
    data = np.frombuffer(message.data, np.uint8)
    if (
        max(ends) > message.point_step
        or size > message.row_step
        or len(data) < (rows * message.row_step)
    ):
        raise ValueError("the points are shorter than their message says")
    layout = np.dtype(
        {"names": AXES, "formats": kinds, "offsets": offsets, "itemsize": message.point_step}
    )
    data = data[: rows * message.row_step].reshape(rows, message.row_step)[:, :size]
    cloud = np.ascontiguousarray(data).reshape(-1).view(layout)
    return np.stack([cloud[axis].astype(np.float64) for axis in AXES], 1)
