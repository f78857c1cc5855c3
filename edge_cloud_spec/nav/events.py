"""What the navigator hears and what it answers with. Times are the caller's steady seconds."""

from __future__ import annotations

from dataclasses import dataclass

from .action import Action
from .motion import Goal, Pose, Velocity
from .status import Status


@dataclass(frozen=True)
class Words:
    """A piece of an answer, as settled by a verdict.

    ``position`` and ``count`` are in tokens after the prompt; ``stamp`` is the camera frame's, in
    nanoseconds of ROS time, and ``age`` the seconds since then.
    """

    request: str
    position: int
    count: int
    text: str
    verified: bool
    finished: bool
    stamp: int
    age: float


@dataclass(frozen=True)
class Odometry:
    """Where the base is; ``stamp`` in nanoseconds of ROS time, as the camera's."""

    pose: Pose
    stamp: int


@dataclass(frozen=True)
class EStop:
    """The emergency stop was pressed (``on``) or released."""

    on: bool


@dataclass(frozen=True)
class Instruction:
    """What the operator said last; the word ``stop`` stops."""

    text: str


@dataclass(frozen=True)
class Hold:
    """Nothing may move because of ``why`` (a wrong parameter, say); an empty text ends that."""

    why: str


@dataclass(frozen=True)
class Tick:
    """Time went on; at 20 Hz."""


Event = Words | Odometry | EStop | Instruction | Hold | Tick


@dataclass(frozen=True)
class Drive:
    """Command this velocity now; it is valid until ``until``."""

    velocity: Velocity
    until: float


@dataclass(frozen=True)
class Halt:
    """Command standing still now."""


@dataclass(frozen=True)
class Announce:
    """An action begins; ``lasts`` seconds from now it is not carried out any more."""

    request: str
    action: Action
    goal: Goal
    stamp: int
    lasts: float
    verified: bool


@dataclass(frozen=True)
class Report:
    """Something that a person should know, in one sentence."""

    problem: str


@dataclass(frozen=True)
class Show:
    """The status changed."""

    status: Status


Effect = Drive | Halt | Announce | Report | Show
