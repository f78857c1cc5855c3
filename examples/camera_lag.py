"""Measure how much older a camera's pictures are than their stamps say: the parameter `camera_lag`.

    ros2 bag record -o turns /camera/image_raw/compressed /odom
    python examples/camera_lag.py turns

Meanwhile let the robot turn left and right on its spot for 20 seconds, with irregular pauses and at
half of its speed, where there is much to see and nobody walks. Pictures move sideways as the robot
turns; the lag is the one under which that fits odometry best.
"""

from __future__ import annotations

import argparse
import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from edge_cloud_spec.errors import UserError, imports

with imports():
    from edge_cloud_spec.nodes.drafting.camera import encode_frame
    from edge_cloud_spec.observe.bag import Bag

ODOMETRY = ("nav_msgs/msg/Odometry",)
CAMERA = ("sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Image")
WIDE = 192  # columns of a picture
FARTHEST = WIDE // 4  # that one picture is moved against the one before
LAGS = np.arange(-0.2, 6.0, 0.01)  # s
FITS = 0.8  # correlation from which on a lag is believed
TURNED = np.radians(120)  # in all, without which there is nothing to fit


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the lag of a camera from a bag of turns.")
    parser.add_argument("bag", type=Path)
    parser.add_argument("--camera", default="", help="its topic, if there are several")
    parser.add_argument("--odom", default="", help="the topic of odometry, if there are several")
    args = parser.parse_args()
    try:
        lag, fit = measure(args.bag, args.camera, args.odom)
    except UserError as error:
        parser.exit(1, f"error: {error}\n")
    print(f"camera_lag: {max(0.0, lag):.2f}   # s; its pictures fit odometry to {fit:.2f}")
    if lag < -0.05:
        print(f"The stamps are {-lag:.2f} s ahead: synchronize the clocks (chrony).")
    return 0


def measure(path: Path, camera: str = "", odom: str = "") -> tuple[float, float]:
    """The lag in seconds, and the correlation under it, 0 to 1; raises UserError."""
    bag = Bag(path)
    names = [_topic(bag, camera, CAMERA, "--camera"), _topic(bag, odom, ODOMETRY, "--odom")]
    pictures: list[tuple[float, np.ndarray]] = []
    turns: list[tuple[float, float, float]] = []  # stamp, when it was received, yaw
    for received, topic, _, message in bag.read([name.lstrip("/") for name in names]):
        stamp = message.header.stamp.sec + message.header.stamp.nanosec / 1e9
        if topic == names[0].lstrip("/"):
            pictures.append((stamp, _columns(message)))
        else:
            turns.append((stamp, received / 1e9, _yaw(message.pose.pose.orientation)))
    if len(pictures) < 20 or len(turns) < 20:
        raise UserError(f"{path} has too few pictures or too little odometry: record 20 seconds")
    stamps, times, yaws = np.array(turns).T
    at, yaw = stamps + (times - stamps).min(), np.unwrap(yaws)  # as the navigator has it
    if np.abs(np.diff(yaw)).sum() < TURNED:
        raise UserError(f"in {path} the robot hardly turns: turn left and right on its spot")
    taken = np.array([stamp for stamp, _ in pictures])
    moved = np.array([_moved(a, b) for (_, a), (_, b) in pairwise(pictures)])
    inside = taken[1:] - LAGS[-1] > at[0]  # of the same pictures for every lag, where there are any
    inside = inside if inside.sum() > 20 else np.ones(len(moved), bool)
    fits = [
        np.nan_to_num(np.corrcoef(moved[inside], np.diff(np.interp(taken - lag, at, yaw))[inside]))
        for lag in LAGS
    ]
    best = int(np.argmax([fit[0, 1] for fit in fits]))
    if (fit := float(fits[best][0, 1])) < FITS:
        raise UserError(
            f"the pictures of {path} fit its odometry to {fit:.2f} only: turn left and right, "
            "slower, and where there is more to see"
        )
    return float(LAGS[best]), fit


def _topic(bag: Bag, given: str, kinds: tuple[str, ...], option: str) -> str:
    found = [given] if given in bag.topics else []
    found = found or [name for name, kind in bag.topics.items() if kind in kinds and not given]
    if len(found) != 1:
        there = ", ".join(found or bag.topics) or "nothing"
        raise UserError(f"{option} must name a topic of the bag, which has {there}")
    return found[0]


def _columns(message: Any) -> np.ndarray:
    """The mean brightness of each column of a picture."""
    jpeg = bytes(message.data) if hasattr(message, "format") else encode_frame(message)
    picture = Image.open(io.BytesIO(jpeg)).convert("L").resize((WIDE, WIDE))
    columns = np.asarray(picture, np.float64).mean(axis=0)
    return np.asarray(columns - columns.mean())


def _moved(before: np.ndarray, after: np.ndarray) -> int:
    """Columns by which a picture has moved to the right: the robot has turned to the left."""
    shifts = range(-FARTHEST, FARTHEST + 1)
    errors = [
        np.square(after[max(0, s) : WIDE + min(0, s)] - before[max(0, -s) : WIDE - max(0, s)])
        for s in shifts
    ]
    return shifts[int(np.argmin([error.mean() for error in errors]))]


def _yaw(q: Any) -> float:
    return float(np.arctan2(2 * (q.w * q.z + q.x * q.y), 1 - 2 * (q.y * q.y + q.z * q.z)))


if __name__ == "__main__":
    raise SystemExit(main())
