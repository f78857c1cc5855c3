"""The navigator's input events and its effects. Times are the caller's monotonic clock, s."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .answer import NOTHING_READ, Action, Reading
from .e_stop import E_STOP_ON
from .floor import Floor
from .pose import Pose, Velocity
from .status import PARAMETER_HOLD, GoalStatus, NavigatorStatus
from .steps import Goal


@dataclass(frozen=True)
class Words:
    """A piece of an answer, as a verdict added it, and the action in the answer so far.

    ``position`` of its ``tokens`` counts from the prompt's end; ``stamp`` is the camera frame's, in
    nanoseconds of ROS time, and ``age`` the seconds since then at arrival. ``goal_id`` names the
    instruction that the answer is for, and ``stops`` is the navigator's count of stops that the
    drafter had received before the frame came. ``camera_offset``: how far the camera's stamps are
    ahead of this computer's clock, s, measured where its frames arrive (``camera_clock``).
    ``reading``: what ``answer``, all text so far, says; the texts themselves are for people.
    """

    request: str
    position: int
    tokens: tuple[int, ...]
    text: str
    verified: bool
    finished: bool
    stamp: int
    age: float = math.inf
    goal_id: str = ""
    instruction: str = ""  # of that goal, for people
    stops: int = 0
    camera_offset: float = 0.0
    finish_reason: str = ""  # of the last words: a code of wire.messages, or a fault's
    answer: str = ""
    reading: Reading = NOTHING_READ


@dataclass(frozen=True)
class Odometry:
    """The base's pose; ``stamp`` in nanoseconds of the base's clock.

    ``age``: seconds from the stamp to this computer's ROS time at arrival.
    """

    pose: Pose
    stamp: int
    age: float = 0.0


@dataclass(frozen=True, eq=False)
class Scan:
    """A lidar's scan, as ``sight.Rays`` [n, 3].

    ``source``: one of ``SOURCES``. ``stamp`` and ``age`` as those of odometry. ``problem``: why the
    scan cannot be used, in one sentence; empty: it can. ``floor``: what it tells of that; None: it
    is level.
    """

    source: str
    stamp: int
    age: float = 0.0
    rays: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 3)))
    problem: str = ""
    floor: Floor | None = None


@dataclass(frozen=True)
class Tilt:
    """How far the base leans from upright, rad, by its odometry or IMU; NaN: unknown."""

    angle: float


@dataclass(frozen=True)
class EStop:
    """The emergency stop was pressed (``on``, and ``why``) or released."""

    on: bool
    why: str = E_STOP_ON


@dataclass(frozen=True)
class Instruction:
    """The operator's latest instruction; the word ``stop`` stops."""

    text: str


@dataclass(frozen=True)
class Hold:
    """Forbid motion because of ``why`` (a wrong parameter, say); an empty text ends the hold.

    Each ``cause`` has its own hold.
    """

    why: str
    cause: str = PARAMETER_HOLD


@dataclass(frozen=True)
class Tick:
    """A tick of the clock, at 20 Hz."""


Event = Words | Odometry | Scan | Tilt | EStop | Instruction | GoalStatus | Hold | Tick
"""``GoalStatus``: the drafter follows that."""


@dataclass(frozen=True)
class Drive:
    """Effect: command this velocity now; it is valid until ``until``, at most a period ahead.

    ``stop_by``: when this command alone would carry the base past the bounds of its step.
    """

    velocity: Velocity
    until: float
    stop_by: float = math.inf


@dataclass(frozen=True)
class Halt:
    """Effect: command standing still now."""


@dataclass(frozen=True)
class Announce:
    """Effect: publish that an action begins; it ends within ``lasts`` seconds.

    ``aside``: how far to either side of its line it may go around something, m.
    """

    request: str
    action: Action
    goal: Goal
    stamp: int
    lasts: float
    verified: bool
    goal_id: str = ""
    aside: float = 0.0


@dataclass(frozen=True)
class GoAround:
    """Effect: publish the way that the move takes from now on, since something stands on its line.

    ``corners``: metres ahead of the base and to its left now. ``width``: of the strip that was
    clear, m.
    """

    corners: tuple[tuple[float, float], ...]
    width: float


@dataclass(frozen=True)
class Report:
    """Effect: log this sentence for the user."""

    problem: str


@dataclass(frozen=True)
class Show:
    """Effect: publish this new status."""

    status: NavigatorStatus


Published = Announce | GoAround | Report | Show
Effect = Drive | Halt | Published
