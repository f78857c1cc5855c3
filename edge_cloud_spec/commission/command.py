"""The command ``commission``: its options, measurements and files."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

from ..errors import UserError, check_writable, exit_status, how_to_install
from ..options import add_options, from_options
from ..plugins import load_plugins
from ..share import path_of
from ..signals import signals_as_event
from .figures import TrialMeasurements
from .report import report_of, write_parameters
from .trials import Commission, TrialSettings


def add_commission_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``commission``."""
    parser.add_argument(
        "--out",
        type=path_of,
        default=Path("robot.yaml"),
        metavar="FILE",
        help="the parameters (%(default)s)",
    )
    add_options(parser, TrialSettings())
    parser.add_argument(
        "--bag", type=path_of, help="no drive: the same figures as far as this bag has them"
    )
    for topic, about in (
        ("--cmd-vel", "of velocity commands (cmd_vel)"),
        ("--odom", "of odometry (odom)"),
        ("--camera", "of pictures (camera/image_raw/compressed)"),
        ("--scan", "as the launch's scan:="),
        ("--points", "as the launch's points:="),
    ):
        parser.add_argument(topic, default="", metavar="TOPIC", help=about)
    parser.add_argument("--namespace", default="", metavar="NS", help="of these topics")
    parser.add_argument(
        "--parameters",
        default="",
        metavar="FILE",
        help="as the launch's: output.* of its navigator is how commands are sent, obstacles.* "
        "which lidar is looked at",
    )
    parser.set_defaults(ros_args=[])
    parser.add_argument("--yes", action="store_true", help="answer yes to all, in simulation only")


def run_commission(args: argparse.Namespace) -> int:
    """Drive and measure, or read a bag; returns 0 if nothing was refused, else 1.

    Raises UserError if nothing could be measured.
    """
    settings = from_options(TrialSettings(), args)
    if args.bag is not None:
        if (recording_of := next(load_plugins("drives"), None)) is None:
            lab = how_to_install("edge_cloud_spec_lab")
            raise UserError(f"commission --bag needs the lab, which reads bags: {lab}")
        recording, problem = recording_of(args.bag, args.cmd_vel, args.odom, args.camera), ""
    else:
        check_writable(args.out)
        recording, problem = _drive(args, settings)
    if problem:
        raise UserError(f"commission ended: {problem}; nothing was written")
    report = report_of(recording, settings)
    print(report)
    if args.bag is None:
        print(f"wrote {write_parameters(report, args.out)}")
    return int(bool(report.refused))


def _drive(args: argparse.Namespace, settings: TrialSettings) -> tuple[TrialMeasurements, str]:
    """Drive the trials; returns the recording, and why they ended early, if they did."""
    from .robot import RosRobot

    robot = RosRobot(args)
    commission = Commission(robot, settings)
    commission.recording.obstacles = robot.obstacles
    with signals_as_event() as robot.interrupted, closing(robot):
        return commission.recording, commission.run()


def main() -> int:
    """Entry point of ``ros2 run edge_cloud_spec commission``, whose ``--ros-args`` may rename
    topics."""
    parser = argparse.ArgumentParser(
        prog="commission", description="Measures a base, its odometry and its camera."
    )
    add_commission_arguments(parser)
    cut = sys.argv.index("--ros-args") if "--ros-args" in sys.argv else len(sys.argv)

    def run() -> int:
        args = parser.parse_args(sys.argv[1:cut])
        args.ros_args = sys.argv[cut:]
        return run_commission(args)

    return exit_status(run)


if __name__ == "__main__":
    sys.exit(main())
