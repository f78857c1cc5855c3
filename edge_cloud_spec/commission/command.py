"""The command ``commission``: its options, the terminal, and ROS around the trials."""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, check_installed, check_writable, exit_status
from ..nav.events import Tick
from ..nav.watchdog import PERIOD, Watchdog
from ..signals import signals_as_event
from .report import page_of, report_of, write_parameters, write_whole
from .trials import Abort, Answer, Ask, Commission, Ended, Event, Halt, Send, Settings

if TYPE_CHECKING:
    from .robot import Robot

GRACE = 0.3  # s after a command that this program did not renew, until it is stopped


def add_commission_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``commission``."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("robot.yaml"),
        metavar="FILE",
        help="robot.yaml, and a page beside it (%(default)s)",
    )
    parser.add_argument(
        "--speed", type=float, default=Settings.speed, help="m/s at most (%(default)s)"
    )
    parser.add_argument(
        "--turn-speed", type=float, default=Settings.turn_speed, help="rad/s at most (%(default)s)"
    )
    parser.add_argument(
        "--stops-within",
        type=float,
        default=Settings.stops_within,
        metavar="M",
        help="m in which it must stand after a fault (%(default)s); faster is refused",
    )
    parser.add_argument(
        "--bag", type=Path, help="no drive: the same figures as far as this bag has them"
    )
    parser.add_argument(
        "--cmd-vel", default="", metavar="TOPIC", help="of velocity commands (cmd_vel)"
    )
    parser.add_argument("--odom", default="", metavar="TOPIC", help="of odometry (odom)")
    parser.add_argument(
        "--camera", default="", metavar="TOPIC", help="of pictures (camera/image_raw/compressed)"
    )
    parser.add_argument("--namespace", default="", metavar="NS", help="of these topics")
    parser.add_argument(
        "--parameters",
        default="",
        metavar="FILE",
        help="as the launch's: output.* of its navigator is how commands are sent",
    )
    parser.set_defaults(ros_args=[])
    parser.add_argument("--yes", action="store_true", help="answer yes to all, in simulation only")


def run_commission(args: argparse.Namespace) -> int:
    """Drive and measure, or read a bag; 0 where nothing was refused, 1 otherwise.

    Raises UserError where nothing could be measured.
    """
    try:
        settings = Settings(args.speed, args.turn_speed, args.stops_within)
    except ValueError as error:
        raise UserError(f"{error}") from None
    if args.bag is not None:
        check_installed("rosbags", "commission --bag")
        from .bag import recording_of

        report = report_of(recording_of(args.bag, args.cmd_vel, args.odom, args.camera), settings)
        print(report)
        page = args.out.with_suffix(".html")
        write_whole(page, page_of(report, f"What {args.bag.name} tells of its robot"))
        print(f"curves: {page}")
        return int(bool(report.refused))
    check_writable(args.out.with_suffix(".html"))
    from .robot import Robot

    events: queue.Queue[tuple[float, Event]] = queue.Queue()
    robot = Robot(args, lambda event: events.put((time.monotonic(), event)))
    try:
        problem, commission = _drive(robot, Commission(settings), events, args.yes)
    finally:
        robot.close()
    report = report_of(commission.recording, settings)
    print(report)
    if problem:
        raise UserError(f"commission ended: {problem}; nothing was written")
    page = args.out.with_suffix(".html")
    write_whole(page, page_of(report, "What this robot does"))
    print(f"wrote {write_parameters(report, args.out)} and {page}")
    return int(bool(report.refused))


def _drive(
    robot: Robot, commission: Commission, events: queue.Queue[tuple[float, Event]], yes: bool
) -> tuple[str, Commission]:
    """Until it has ended and the stop was sent; why it ended, empty where it is whole."""
    problem: str | None = None
    watchdog = Watchdog(robot.output.stop, GRACE)
    watchdog.start()
    if not yes:
        threading.Thread(target=_listen, args=(events,), name="terminal", daemon=True).start()
    tick = at = time.monotonic()
    event: Event
    ended: float | None = None
    with signals_as_event() as came:
        while ended is None or time.monotonic() < ended + 1.0:
            now = time.monotonic()
            if now >= tick:
                tick, at, event = max(tick + PERIOD, now), now, Tick()
            else:
                try:
                    at, event = events.get(timeout=tick - now)
                except queue.Empty:
                    continue
            if came.is_set() and ended is None:
                event = Abort("it was interrupted")
            for effect in commission.on(event, at):
                if isinstance(effect, Send):
                    watchdog.feed(now + PERIOD)
                    robot.output.command(effect.velocity)
                elif isinstance(effect, Halt):
                    watchdog.calm()
                    robot.output.stop(effect.repeat)
                elif isinstance(effect, Ended):
                    problem, ended = effect.problem, now
                else:
                    print(effect.text, end="" if isinstance(effect, Ask) else "\n", flush=True)
                    if isinstance(effect, Ask) and yes:
                        print("y")
                        events.put((now, Answer("" if "tape" in effect.text else "y")))
    watchdog.close()
    return problem or "", commission


def _listen(events: queue.Queue[tuple[float, Event]]) -> None:
    for line in sys.stdin:
        events.put((time.monotonic(), Answer(line)))
    events.put((time.monotonic(), Abort("nobody can answer: its input has ended")))


def main() -> int:
    """``ros2 run edge_cloud_spec commission``, whose ``--ros-args`` rename topics, too."""
    parser = argparse.ArgumentParser(prog="commission", description=__doc__)
    add_commission_arguments(parser)
    cut = sys.argv.index("--ros-args") if "--ros-args" in sys.argv else len(sys.argv)
    args = parser.parse_args(sys.argv[1:cut])
    args.ros_args = sys.argv[cut:]
    return exit_status(lambda: run_commission(args))


if __name__ == "__main__":
    sys.exit(main())
