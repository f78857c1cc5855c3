"""The command ``doctor``: its options, the order of its checks, its report."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from ..edge.link.route import ClientSettings
from ..errors import UserError
from ..health import Health, Level
from ..models import EMBEDDED
from ..options import add_options, from_options
from .graph import check_live
from .machine import (
    check_cloud,
    check_libraries,
    check_model,
    check_plugins,
    check_python,
    check_ros,
    check_threads,
)

STATE_NAMES = {Level.OK: "ok", Level.WARN: "warn", Level.ERROR: "fail", Level.STALE: "fail"}
Check = Callable[[], Iterable[Health]]
NO_VERIFIER = ClientSettings(cloud="")  # no verifier is looked for unless one is named


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``doctor``."""
    add_options(parser, NO_VERIFIER)
    parser.add_argument("--live", action="store_true", help="look at the running ROS graph, too")
    about = "with --live: the one robot to look at (all that are found)"
    parser.add_argument("--namespace", metavar="NAMESPACE", help=about)
    parser.add_argument("--seconds", type=float, default=5.0, help="with --live: how long to look")
    parser.add_argument("--target", default=str(EMBEDDED / "target"), help="model directory")
    parser.add_argument("--drafter", default=str(EMBEDDED / "drafter"), help="model directory")


def run_doctor(args: argparse.Namespace) -> int:
    """Print all findings; returns 0 if nothing failed, else 1."""
    failed = False
    for check in _checks(args):
        for finding in check():
            advice = f"\n      {finding.advice}" if finding.advice else ""
            state = STATE_NAMES[finding.level]
            failed |= state == "fail"
            print(f"{state:4}  {finding.check}: {finding.message}{advice}", flush=True)
    return int(failed)


def _checks(args: argparse.Namespace) -> list[Check]:
    checks: list[Check] = [
        lambda: [check_python()],
        lambda: [check_libraries()],
        check_ros,
        check_plugins,
        lambda: [check_model("target", args.target)],
        lambda: [check_model("drafter", args.drafter)],
        lambda: [check_threads()],
    ]
    if args.cloud:
        settings = from_options(NO_VERIFIER, args)
        settings.check()
        checks.append(lambda: [check_cloud(settings)])
    if args.live:
        if not 1.0 <= args.seconds <= 600.0:
            raise UserError(f"--seconds must be from 1 to 600, not {args.seconds:g}")
        checks.append(lambda: check_live(args.seconds, args.namespace))
    return checks
