"""The verifier as an executable for `ros2 run` and launch; it is no node and needs no ROS."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress

from ..cloud.command import add_serve_arguments, run_serve
from ..errors import exit_status
from ..signals import signals_as_interrupt
from .runtime.parent import end_with_launch, leave


def main() -> int:
    """Run `edge-cloud-spec serve`, ignoring the arguments that launch adds for nodes."""
    end_with_launch()
    arguments = sys.argv[1:]
    if "--ros-args" in arguments:
        arguments = arguments[: arguments.index("--ros-args")]
    parser = argparse.ArgumentParser(prog="cloud_verifier", description="Run the cloud verifier.")
    add_serve_arguments(parser)

    def run() -> int:
        args = parser.parse_args(arguments)
        with suppress(KeyboardInterrupt), signals_as_interrupt():  # while its models load
            return run_serve(args)
        return 0

    leave(exit_status(run))


if __name__ == "__main__":
    sys.exit(main())
