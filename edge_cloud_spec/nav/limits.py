"""What may be commanded of a base, and how it responds."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..options import Bounded, bounded

REACTION_S = 0.2  # s from a fault to a zero command: a period, the guard's silence, a message


@dataclass(frozen=True)
class Axis(Bounded):
    """How a base responds to commands along one axis, in m (moves) or rad (turns).

    ``edge-cloud-spec commission`` measures it. Raises ValueError naming a field out of its range.
    """

    response: float = bounded(0.1, 0.0, 1.0, "time constant with which it speeds up, s")
    braking: float = bounded(0.1, 0.0, 1.5, "time constant with which it slows down, s")
    slowest: float = bounded(0.0, 0.0, 1.0, "slowest speed that moves it, m/s or rad/s")
    overshoot: float = bounded(0.0, 0.0, 1.0, "covered beyond what was commanded at most, m or rad")
    drift: float = bounded(0.0, 0.0, 0.5, "speed when it is commanded to stand, m/s or rad/s")

    def stopping(self, speed: float, reaction: float = REACTION_S) -> float:
        """The farthest it moves after a fault at this speed until it stands; m or rad."""
        return abs(speed) * (reaction + self.braking) + self.overshoot if speed else 0.0


@dataclass(frozen=True)
class Limits(Bounded):
    """The largest commands allowed, and how the base responds to commands.

    Raises ValueError naming a field out of its range.
    """

    speed: float = bounded(0.6, 0.05, 1.5, "speed over ground at most, m/s")
    lateral_speed: float = bounded(
        0.2, 0.0, 0.5, "sideways speed to hold a line at most, m/s; 0: the base cannot"
    )
    turn_speed: float = bounded(1.2, 0.1, 2.5, "turning speed at most, rad/s")
    acceleration: float = bounded(2.0, 0.1, 5.0, "speeding up and braking, m/s^2")
    turn_acceleration: float = bounded(6.0, 0.2, 20.0, "speeding up and braking a turn, rad/s^2")
    stops_within: float = bounded(
        0.0, 0.0, 5.0, "m; slower, so that it stands within so far of a fault; 0: no bound"
    )
    # As for a base with legs, which makes no smaller step and does not stop at once.
    move: Axis = field(default_factory=lambda: Axis(slowest=0.1, overshoot=0.1))
    turn: Axis = field(default_factory=lambda: Axis(slowest=0.2, overshoot=0.2))
    strafe: Axis = field(default_factory=lambda: Axis(slowest=0.1, overshoot=0.1))

    @property
    def top_speed(self) -> float:
        """The move speed from which the base stops within ``stops_within``, m/s."""
        if not self.stops_within:
            return self.speed
        room = max(0.0, self.stops_within - self.move.overshoot)
        return min(self.speed, room / (REACTION_S + self.move.braking))
