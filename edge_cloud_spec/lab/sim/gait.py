"""How a trot shakes the head: pitch, roll and heave of the camera while the legs move."""

from __future__ import annotations

import math
from dataclasses import dataclass

STRIDE = 2.4
"""Strides per second of the trot."""

_PITCH, _ROLL, _HEAVE = math.radians(1.4), math.radians(2.0), 0.008
_LEAN = math.radians(0.6)  # nose up per m/s^2 of acceleration
_SETTLE = 0.15  # s with which the shaking grows and fades


@dataclass(frozen=True)
class Attitude:
    """Pitch (up) and roll (to the right) in radians, heave in metres."""

    pitch: float = 0.0
    roll: float = 0.0
    heave: float = 0.0


class Gait:
    """Advances with the body's speed; stands still where the body does."""

    def __init__(self) -> None:
        self._phase = self._effort = self._lean = self._speed = 0.0

    def step(self, dt: float, speed: float, turn: float) -> None:
        """``dt`` seconds at ``speed`` (m/s, forward) and ``turn`` (rad/s)."""
        fade = 1 - math.exp(-dt / _SETTLE)
        effort = min(1.0, (abs(speed) + 0.3 * abs(turn)) / 0.5)
        self._effort += (effort - self._effort) * fade
        acceleration = (speed - self._speed) / dt
        self._lean += (acceleration * _LEAN - self._lean) * fade
        self._speed = speed
        self._phase = (self._phase + STRIDE * dt) % 1.0

    @property
    def attitude(self) -> Attitude:
        """How the camera is tilted and lifted now."""
        angle, effort = 2 * math.pi * self._phase, self._effort
        return Attitude(
            self._lean + effort * _PITCH * math.sin(2 * angle),
            effort * _ROLL * math.sin(angle),
            effort * _HEAVE * math.cos(2 * angle),
        )
