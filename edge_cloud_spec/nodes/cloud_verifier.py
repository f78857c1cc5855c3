"""The verifier as an executable of the package, for `ros2 run` and launch: no node, no ROS."""

from __future__ import annotations

import sys


def main() -> int:
    """`edge-cloud-spec serve` with these arguments; what launch adds for nodes is left out."""
    from ..cli import main as command_line

    arguments = sys.argv[1:]
    if "--ros-args" in arguments:
        arguments = arguments[: arguments.index("--ros-args")]
    return int(command_line(["serve", *arguments]) or 0)


if __name__ == "__main__":
    sys.exit(main())
