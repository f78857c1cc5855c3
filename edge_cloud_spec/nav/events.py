"""The navigator's input events and its effects. Times are the caller's monotonic clock, s."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .answer import Action
from .motion import Goal
from .pose import Pose, Velocity
from .status import GoalStatus, Status

ENDED = "end"  # the finish reason of an answer that its model ended itself


@dataclass(frozen=True)
class Words:
    """A piece of an answer, as settled by a verdict.

    ``position`` of its ``tokens`` counts from the prompt's end; ``stamp`` is the camera frame's, in
    nanoseconds of ROS time, and ``age`` the seconds since then when the words are received.
    ``goal_id`` names the instruction that the answer is for, and ``stops`` is the navigator's count
    that was heard before the frame came.
    ``camera_offset`` is how far the camera's stamps are ahead of this computer's clock, measured
    where its frames arrive, s (``ClockOffset``).
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
    finish_reason: str = ""  # of finished words: end, length, aborted, or a fault's code
    answer: str = ""  # all text so far


@dataclass(frozen=True)
class Odometry:
    """Where the base is; ``stamp`` in nanoseconds of its clock.

    ``age``: seconds by which the stamp is behind this computer's ROS time as the message comes.
    """

    pose: Pose
    stamp: int
    age: float = 0.0


@dataclass(frozen=True, eq=False)
class Scan:
    """What a lidar saw: ``points`` [n, 2], m ahead of the base and to its left.

    ``source``: of ``SOURCES``. ``stamp`` and ``age`` as those of odometry. ``problem``: why nothing
    is known from it, in one sentence; empty: it is a scan.
    """

    source: str
    stamp: int
    age: float = 0.0
    points: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 2)))
    problem: str = ""


@dataclass(frozen=True)
class EStop:
    """The emergency stop was pressed (``on``) or released."""

    on: bool


@dataclass(frozen=True)
class Instruction:
    """The operator's latest instruction; the word ``stop`` stops."""

    text: str


@dataclass(frozen=True)
class Hold:
    """Nothing may move because of ``why`` (a wrong parameter, say); an empty text ends that.

    Each ``cause`` has a hold of its own.
    """

    why: str
    cause: str = "parameter"


@dataclass(frozen=True)
class Tick:
    """A tick of the clock, at 20 Hz."""


Event = Words | Odometry | Scan | EStop | Instruction | GoalStatus | Hold | Tick
"""``GoalStatus``: the drafter follows that."""


@dataclass(frozen=True)
class Drive:
    """Command this velocity now; it is valid until ``until``, which is at most a period ahead.

    ``stop_by`` is when it would carry the base past the bounds of its step, if nothing else came.
    """

    velocity: Velocity
    until: float
    stop_by: float = math.inf


@dataclass(frozen=True)
class Halt:
    """Command standing still now."""


@dataclass(frozen=True)
class Announce:
    """Publish that an action begins; it ends ``lasts`` seconds from now at the latest."""

    request: str
    action: Action
    goal: Goal
    stamp: int
    lasts: float
    verified: bool
    goal_id: str = ""


@dataclass(frozen=True)
class Report:
    """Log this sentence for people."""

    problem: str


@dataclass(frozen=True)
class Show:
    """Publish this status: it changed."""

    status: Status


Effect = Drive | Halt | Announce | Report | Show
