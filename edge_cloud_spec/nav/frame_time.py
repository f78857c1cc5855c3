"""When a decision's frame was taken, by this computer's clocks, and whether it may still count."""

from __future__ import annotations

from dataclasses import dataclass

from .answer_assembler import Settled
from .clock_offset import camera_clock, clock_problem
from .settings import Settings

FUTURE = 0.5  # s that a frame's stamp may lie ahead of the clock


@dataclass(frozen=True)
class FrameTime:
    """``at`` is the instant, ns of this computer's ROS clock, to compare with odometry's.

    ``taken`` (steady seconds) is to tell whether the frame is old. A clock ahead is allowed for in
    both. One that is behind is not in ``taken``: it may be a driver that lags, whose frames must
    not pass for fresh ones. ``ahead`` is the camera's clock, s.
    """

    at: int
    taken: float
    ahead: float

    @classmethod
    def of(cls, settled: Settled, base_offset: float | None) -> FrameTime:
        """Of a decision's frame; ``base_offset`` is that of odometry's clock, None: not known."""
        ahead = camera_clock(settled.camera_offset, base_offset)
        return cls(settled.stamp - round(ahead * 1e9), settled.frame_time - max(0.0, ahead), ahead)

    def problem(self, settings: Settings, now: float) -> str:
        """Why it does not count at ``now``; empty if it does."""
        age = now - self.taken
        if problem := clock_problem("the camera's", self.ahead, settings.clock_offset_limit):
            return problem
        if not age >= -FUTURE:
            return f"its frame's stamp is {-age:.1f} s ahead; synchronize the clocks"
        if not age <= settings.frame_age:
            return f"its frame is {age:.1f} s old (parameter frame_age)"
        return ""
