"""The bases that drive in a room: what the node and an episode need of one, and the choice."""

from __future__ import annotations

from typing import Any, Protocol

from .camera import Eye
from .legs import Legs
from .room import Pose, Room
from .scene import Scene
from .world import OdometryReading, World

IDEAL, GO2 = "ideal", "go2"
BASES = (IDEAL, GO2)


class Base(Protocol):
    """A robot's base in a room, as ``World`` and ``Legs`` are one; used by one thread.

    ``mount`` is the camera's place in its frame (m), ``still`` the m/s and rad/s below which it
    stands.
    """

    model: Any
    data: Any
    mount: tuple[float, float, float]
    still: float

    def command(self, vx: float, vy: float, wz: float) -> None:
        """Follow this velocity (m/s, m/s, rad/s) until the next, or its time-out."""

    def step(self, dt: float) -> None:
        """Let ``dt`` seconds pass."""

    @property
    def time(self) -> float:
        """Simulated seconds since the start."""

    @property
    def pose(self) -> Pose:
        """Where it truly is, in the room's frame."""

    @property
    def velocity(self) -> tuple[float, float, float]:
        """How fast it truly goes: m/s forward, m/s left, rad/s."""

    @property
    def odometry(self) -> OdometryReading:
        """What it reports of itself."""

    @property
    def contact(self) -> bool:
        """Whether it touches what is not the floor."""

    @property
    def eye(self) -> Eye:
        """Where its camera is and looks."""


def make_base(name: str, room: Room, people: int = 0, drift: float = 0.0) -> Base:
    """A base of BASES at the room's start; UserError where the package of it is missing."""
    if name == GO2:
        return Legs(room, people, drift)
    return World(Scene(room, people), drift)
