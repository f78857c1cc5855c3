"""The stop guard node: stops the base if the navigator's pulse falls silent while the robot moves.

``python -m edge_cloud_spec.nodes.stop_guard --ros-args ...``. It needs no model and no navigator.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rclpy.node import Node
from std_msgs.msg import Bool

from ..health import Health, Level
from ..nav.e_stop import EStops
from ..nav.watchdog import STOP_PERIOD_S, STOP_REPEATS
from ..options import Bounded, bounded, described
from ..throttle import Reports
from .base_output import OutputSettings, make_output
from .health import OUTPUT
from .runtime.diagnostics import Diagnostics
from .runtime.e_stop import publishers_of_e_stop, subscribe_e_stop
from .runtime.parameters import Parameters
from .runtime.qos import RELIABLE, STEADY
from .runtime.run import spin

SILENCE_ADVICE = "see the navigator's log, and the machine's load"
SILENCE_RECHECK, SILENCE_RECHECK_S = -1, 0.002  # s from the end of the silence to the stop


@dataclass(frozen=True)
class GuardSettings(Bounded):
    """When and how the guard stops the base; ``output`` and ``base_frame`` as for the navigator."""

    silence: float = bounded(0.1, 0.1, 0.5, "stop once the pulse is silent for so long, s", True)
    e_stop_timeout: float = bounded(
        0.0, 0.0, 10.0, "as the navigator's: e_stop silent for so long is on, s; 0: it may be", True
    )
    output: OutputSettings = field(default_factory=OutputSettings)
    base_frame: str = described("base_link", "frame of the base, for stamps", True)


class StopGuardNode(Node):
    """Stops the base when the navigator's ``pulse`` falls silent while the robot moves.

    The navigator publishes true with each command, and false once it has commanded standing.
    Messages on the base's own topic do not count, so a joystick, the guard's zeros or a flood of
    messages neither arm nor disarm the guard. While ``e_stop`` is on, a zero follows each command.
    """

    def __init__(self, **options: Any) -> None:
        """``options``: rclpy's options of a node. Raises UserError."""
        super().__init__("stop_guard", **options)
        settings = Parameters(self, GuardSettings()).start_value()
        self._settings, self._reports = settings, Reports(self.get_logger().warning)
        self._output = make_output(self, settings.output, settings.base_frame)
        self._repeat = 0  # next of the stop; SILENCE_RECHECK before it is reported
        self._timer = self.create_timer(settings.silence, self._on_silence, clock=STEADY)
        self._timer.cancel()
        self._e_stops = EStops(partial(publishers_of_e_stop, self), lambda: settings.e_stop_timeout)
        self._stops = subscribe_e_stop(
            self, lambda message: self._e_stops.receive(message, time.monotonic())
        )
        self.create_subscription(Bool, "pulse", self._on_pulse, RELIABLE)
        self._diagnostics = Diagnostics(self)
        self._diagnostics.report(self._diagnose)

    def _on_pulse(self, moving: Bool) -> None:
        self._timer.cancel()
        if moving.data:
            now = time.monotonic()
            if why := self._e_stops.why(now):
                self._output.stop(0)
                self._reports.add(f"the navigator moves the robot though {why}: zeros follow", now)
            self._repeat = SILENCE_RECHECK
            self._ring_in(self._settings.silence)

    def _ring_in(self, seconds: float) -> None:
        self._timer.timer_period_ns = round(seconds * 1e9)
        self._timer.reset()

    def _on_silence(self) -> None:
        if self._repeat == SILENCE_RECHECK:  # this process may have been silent, and a pulse waits
            self._ring_in(SILENCE_RECHECK_S)
        else:
            self._output.stop(self._repeat)
            self._ring_in(STOP_PERIOD_S)
        if self._repeat == 0:  # it is reported at once, and after the zeros
            self._reports.add(
                "the robot moved and the navigator was silent for "
                f"{self._settings.silence:g} s: the guard commanded zeros; {SILENCE_ADVICE}",
                time.monotonic(),
            )
            self._diagnostics.show(self._diagnose())
        self._repeat += 1
        if self._repeat == STOP_REPEATS:
            self._timer.cancel()

    def _diagnose(self) -> Health:
        settings = self._settings
        values = {"fired": self._reports.count, OUTPUT: settings.output.text(settings.base_frame)}
        if problem := self._reports.recent(time.monotonic()):
            # Without a check: it is logged already.
            return Health(Level.WARN, problem, values=values)
        return Health(Level.OK, "it listens to the navigator's pulse", values=values)

    def close(self) -> None:
        """Stop a moving base at once: when a launch ends all processes, the navigator may be dead
        already."""
        self._stops.close()
        if self._timer.is_canceled():
            return
        self._timer.cancel()
        for repeat in range(STOP_REPEATS):
            self._output.stop(repeat)
            time.sleep(STOP_PERIOD_S)
            if not self._timer.is_canceled():
                return  # a pulse: the navigator goes on


def main() -> int:
    """Run the node until a signal, with real-time priority if permitted."""
    with contextlib.suppress(OSError, AttributeError):  # no right to it (ulimit -r); not Linux
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    return spin(StopGuardNode)


if __name__ == "__main__":
    sys.exit(main())
