"""Measure how much older a camera's pictures are than their stamps say: the parameter `camera_lag`.

    ros2 bag record -o turns /camera/image_raw/compressed /odom
    python examples/camera_lag.py turns

Meanwhile let the robot turn left and right on its spot for 20 seconds, with irregular pauses and at
half of its speed, where there is much to see and nobody walks. `edge-cloud-spec commission --bag`
tells this and more of a drive.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from edge_cloud_spec.errors import UserError, imports

with imports():
    from edge_cloud_spec.commission.bag import recording_of
    from edge_cloud_spec.commission.camera import lag_of
    from edge_cloud_spec.commission.figures import odometry_of


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the lag of a camera from a bag of turns.")
    parser.add_argument("bag", type=Path)
    parser.add_argument("--camera", default="", help="its topic, if there are several")
    parser.add_argument("--odom", default="", help="the topic of odometry, if there are several")
    args = parser.parse_args()
    try:
        recording = recording_of(args.bag, odom=args.odom, camera=args.camera)
        lag, fit, _ = lag_of(recording.frames, *odometry_of(recording))
    except UserError as error:
        parser.exit(1, f"error: {args.bag}: {error}\n")
    print(f"camera_lag: {max(0.0, lag):.2f}   # s; its pictures fit odometry to {fit:.2f}")
    if lag < -0.05:
        print(f"The stamps are {-lag:.2f} s ahead: synchronize the clocks (chrony).")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
