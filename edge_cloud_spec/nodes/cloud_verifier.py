"""The verifier as an executable of the package, for `ros2 run` and launch: no node, no ROS."""

from __future__ import annotations

import argparse
import sys

from ..cloud.command import add_serve_arguments, run_serve
from ..errors import exit_status
from .runtime.parent import end_with_launch, leave


def main() -> int:
    """`edge-cloud-spec serve` with these arguments, without those that launch adds for nodes."""
    end_with_launch()
    arguments = sys.argv[1:]
    if "--ros-args" in arguments:
        arguments = arguments[: arguments.index("--ros-args")]
    parser = argparse.ArgumentParser(prog="cloud_verifier", description="Run the cloud verifier.")
    add_serve_arguments(parser)
    args = parser.parse_args(arguments)
    leave(exit_status(lambda: run_serve(args)))


if __name__ == "__main__":
    sys.exit(main())
