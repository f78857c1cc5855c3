"""The reference of a step: a trapezoid of speed over time."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """A trapezoid of speed with area ``length`` >= 0, from rest to rest."""

    length: float
    speed: float
    acceleration: float

    @property
    def peak(self) -> float:
        return min(self.speed, math.sqrt(self.length * self.acceleration))

    @property
    def duration(self) -> float:
        return self.length / self.peak + self.peak / self.acceleration if self.length else 0.0

    def at(self, time: float) -> tuple[float, float]:
        """(covered, speed) at ``time`` seconds after the start."""
        ramp, total = self.peak / self.acceleration, self.duration
        if time <= 0.0:
            return 0.0, 0.0
        if time >= total:
            return self.length, 0.0
        if time > total - ramp:
            left = total - time
            return (
                self.length - self.acceleration * left * left / 2,
                self.acceleration * left,
            )
        if time < ramp:
            return self.acceleration * time * time / 2, self.acceleration * time
        return self.peak * (time - ramp / 2), self.peak

    def time_of_last(self, length: float) -> float:
        """How long before its end so much of it is left, s; ``duration`` if it is no longer."""
        if length >= self.length:
            return self.duration
        if length > self.length / 2:  # as long after the start as the other part before the end
            return self.duration - self.time_of_last(self.length - length)
        braking = self.peak * self.peak / (2 * self.acceleration)
        if length <= braking:
            return math.sqrt(2 * length / self.acceleration)
        return self.peak / self.acceleration + (length - braking) / self.peak
