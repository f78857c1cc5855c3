"""What a bystander sees on the topics. Times are seconds of the machine's clock, when published."""

from __future__ import annotations

from dataclasses import dataclass

from ....wire.messages import DraftMessage, Opened
from ....wire.messages import Verdict as WireVerdict


@dataclass(frozen=True)
class Asked:
    """A decode began: for which instruction, on the frame of which stamp (ns)."""

    at: float
    request: str
    instruction: str
    stamp: int


@dataclass(frozen=True)
class FromRobot:
    """A draft, as its bytes say."""

    at: float
    request: str
    message: DraftMessage


@dataclass(frozen=True)
class FromCloud:
    """The session's first digest, or a verdict, as their bytes say."""

    at: float
    request: str
    message: Opened | WireVerdict


@dataclass(frozen=True)
class PublishedWords:
    """Words that the navigator was given; ``finished``: nothing follows."""

    at: float
    request: str
    position: int
    tokens: tuple[int, ...]
    finished: bool


@dataclass(frozen=True)
class Command:
    """An action of the navigator; ``moves`` is false for ``stop``."""

    at: float
    request: str
    text: str
    stamp: int
    expiry: float
    verified: bool
    moves: bool


@dataclass(frozen=True)
class BaseCommand:
    """A Twist. ``foreign``: the bench's own, published as a hostile neighbour's."""

    at: float
    moves: bool
    foreign: bool = False


@dataclass(frozen=True)
class BaseMotion:
    """Whether the base truly moves, by the simulator's own odometry."""

    at: float
    moves: bool


@dataclass(frozen=True)
class Instructed:
    """What the operator said."""

    at: float
    text: str


@dataclass(frozen=True)
class Reported:
    """A sentence that people read: the topic (a node's name on /diagnostics), and the text."""

    at: float
    topic: str
    text: str


Event = (
    Asked
    | FromRobot
    | FromCloud
    | PublishedWords
    | Command
    | BaseCommand
    | BaseMotion
    | Instructed
    | Reported
)
