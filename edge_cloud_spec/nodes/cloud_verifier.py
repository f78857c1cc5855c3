"""The verifier as an executable of the package, for `ros2 run` and launch: no node, no ROS."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """`edge-cloud-spec serve` with these arguments, but for those that launch adds for nodes."""
    from ..cli import main as command_line

    arguments = sys.argv[1:]
    if "--ros-args" in arguments:
        arguments = arguments[: arguments.index("--ros-args")]
    status = command_line(["serve", *arguments])
    # A launch may send SIGINT twice; the second must not interrupt the interpreter's shutdown.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return status


if __name__ == "__main__":
    sys.exit(main())
