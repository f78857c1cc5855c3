"""The navigator's settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ..errors import refuse
from ..options import Bounded, bounded, chosen, described
from .footprint import ObstacleSettings
from .limits import Limits
from .steps import Goal, Steps

DRIVE_CHOICES = CONTINUOUS, STOP_AND_GO = "continuous", "stop_and_go"


@dataclass(frozen=True)
class Unverified(Bounded):
    """Limits of motion on unverified words. Raises ValueError naming a field."""

    speed: float = bounded(0.2, 0.05, 1.5, "speed at most on unverified words, m/s")
    turn_speed: float = bounded(0.6, 0.1, 2.5, "turning speed at most on unverified words, rad/s")
    move: float = bounded(0.25, 0.02, 3.0, "longest move on unverified words, m")

    def limits(self, limits: Limits) -> Limits:
        """``limits``, lowered to these bounds."""
        return replace(
            limits,
            speed=min(limits.speed, self.speed),
            turn_speed=min(limits.turn_speed, self.turn_speed),
        )

    def goal(self, goal: Goal) -> Goal:
        """``goal``, with a longer move shortened to the limit."""
        if abs(goal.distance) <= self.move:
            return goal
        return replace(goal, distance=math.copysign(self.move, goal.distance))


@dataclass(frozen=True)
class NavigatorSettings(Bounded):
    """How the navigator behaves. Raises ValueError naming a field that is out of its range."""

    limits: Limits = field(default_factory=Limits)
    steps: Steps = field(default_factory=Steps)
    obstacles: ObstacleSettings = field(default_factory=ObstacleSettings)
    allow_unverified: bool = described(
        False, "move on words that nobody has verified (preset edge_only)"
    )
    unverified: Unverified = field(default_factory=Unverified)
    odometry: str = chosen(
        "auto",
        ("auto", "required", "off"),
        "auto: timed until odometry was seen, needed from then on; required; off: always timed",
    )
    odometry_timeout: float = bounded(
        0.5, 0.1, 10.0, "odometry whose stamps have not gone on for so long is missing, s"
    )
    clock_offset_limit: float = bounded(
        5.0, 0.0, 1e10, "stamps of a clock that is further off move nothing, s"
    )
    tilt_limit: float = bounded(
        0.436, 0.1, 3.2, "rad that the base leans at most; beyond, it has fallen (3.2: never)"
    )
    frame_age: float = bounded(10.0, 0.1, 600.0, "a decision on an older frame is refused, s")
    command_lifetime: float = bounded(5.0, 0.5, 30.0, "a command expires at the latest after, s")
    drive: str = chosen(
        CONTINUOUS,
        DRIVE_CHOICES,
        "continuous: decide while driving; stop_and_go: decide standing",
    )
    look_period: float = bounded(
        0.2, 0.0, 5.0, "s at least between the beginnings of decisions while it drives"
    )
    around: bool = described(
        False, "a verified move goes around what a lidar sees in its way, within its budget"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.around:
            refuse(
                (
                    not self.obstacles.promised,
                    "around needs a lidar: give scan:=TOPIC or points:=TOPIC, or unset it",
                ),
                (
                    self.odometry == "off",
                    "around needs odometry, which is off; set one of both otherwise",
                ),
                (
                    not self.limits.lateral_speed,
                    "around needs a base that goes sideways: set limits.lateral_speed, or unset it",
                ),
                error=ValueError,
            )
