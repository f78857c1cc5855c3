"""The stop guard node: zero to the base when the navigator's pulse is silent while the robot moves.

``python -m edge_cloud_spec.nodes.stop_guard --ros-args ...``. It needs no model and no navigator.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

from rclpy.node import Node
from std_msgs.msg import Bool

from ..bounds import Bounded, bounded, described
from ..nav.watchdog import Watchdog
from .base_output import OutputSettings, make_output
from .health import Health, Level, RecentProblem
from .runtime.diagnostics import Diagnostics
from .runtime.parameters import Parameters
from .runtime.qos import RELIABLE
from .runtime.run import spin

TOLD_S = 30.0  # that a stop of the guard is told


@dataclass(frozen=True)
class GuardSettings(Bounded):
    """When it stops the base, and how; ``output`` and ``base_frame`` are the navigator's."""

    silence: float = bounded(0.1, 0.1, 0.5, "stop once the pulse is silent for so long, s", True)
    output: OutputSettings = field(default_factory=OutputSettings)
    base_frame: str = described("base_link", "frame of the base, for stamps", True)


class StopGuardNode(Node):
    """A ``Watchdog`` in a process of its own, fed by the navigator's ``pulse``.

    The navigator says true with each command that it gives, false once it has told the base to
    stand. What is on the base's own topic does not count: a joystick, the guard's own zeros and
    whoever floods it neither start the guard nor calm it.
    """

    def __init__(self, **options: Any) -> None:
        """``options``: rclpy's own of a node. Raises UserError."""
        super().__init__("stop_guard", **options)
        settings = Parameters(self, GuardSettings()).start_value()
        output = make_output(self, settings.output, settings.base_frame)
        self._silence, self._seen = settings.silence, 0
        self._problem = RecentProblem(TOLD_S)
        self._watchdog = Watchdog(output.stop, settings.silence)
        self._watchdog.start()
        self.create_subscription(Bool, "pulse", self._on_pulse, RELIABLE)
        Diagnostics(self).report(self._diagnose)

    def _on_pulse(self, moving: Bool) -> None:
        if moving.data:
            self._watchdog.feed(time.monotonic())
        else:
            self._watchdog.calm()

    def _diagnose(self) -> Health:
        fired, now = self._watchdog.fired, time.monotonic()
        if fired > self._seen:
            self._seen = fired
            said = f"the robot moved and the navigator was silent for {self._silence:g} s"
            self._problem.report(f"{said}: the guard stopped it", now)
        if problem := self._problem.text(now):
            advice = "see the navigator's log, and the machine's load"
            return Health(Level.WARN, problem, advice, {"fired": fired}, check="pulse")
        return Health(Level.OK, "it listens to the navigator's pulse", values={"fired": fired})

    def close(self) -> None:
        """End the thread; the navigator, which ends as well, says its own stop."""
        self._watchdog.close()


def main() -> int:
    """Run the node until a signal."""
    return spin(StopGuardNode)


if __name__ == "__main__":
    sys.exit(main())
