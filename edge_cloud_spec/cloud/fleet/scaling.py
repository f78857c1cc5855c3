"""How many replicas a fleet should have, from what they hold: up soon, down late."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...errors import UserError
from .placement import ReplicaLoad


@dataclass(frozen=True)
class ScalingLimits:
    """From ``least`` to ``most`` replicas. Raises UserError.

    One more when the mean of sessions or of waiting passes is above its bound for ``up_s`` (s); one
    less when the sessions of all would be at most ``idle`` of the bound with one less, for
    ``down_s``.
    """

    least: int = 1
    most: int = 1
    sessions: float = 16.0
    waiting: float = 8.0
    idle: float = 0.5
    up_s: float = 3.0
    down_s: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UserError("--replicas must be at least 1, --max-replicas not below it")


class Scaling:
    """``wanted`` is how many there should be. Times are steady, in s."""

    def __init__(self, limits: ScalingLimits) -> None:
        self.wanted = limits.least
        self._limits = limits
        self._since: float | None = None  # since when it should change, and
        self._step = 0  # in which direction

    def look(self, loads: Collection[ReplicaLoad], now: float) -> int:
        """The replicas that take clients hold this; returns ``wanted``.

        While some of those that are wanted are still starting, it does not change.
        """
        limits, step = self._limits, self._due(loads)
        if step != self._step:
            self._step, self._since = step, now
        held = limits.up_s if step > 0 else limits.down_s
        if step and self._since is not None and now - self._since >= held:
            self.wanted += step
            self._step, self._since = 0, None
        return self.wanted

    def _due(self, loads: Collection[ReplicaLoad]) -> int:
        limits, count = self._limits, len(loads)
        if count != self.wanted:
            return 0
        sessions = sum(load.sessions for load in loads)
        waiting = sum(load.waiting for load in loads)
        busy = sessions > limits.sessions * count or waiting > limits.waiting * count
        if busy:
            return 1 if count < limits.most else 0
        fits = sessions <= limits.idle * limits.sessions * (count - 1)
        return -1 if count > limits.least and fits and not waiting else 0
