"""What a mission took; times in seconds of the robot's clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..trace import ModelPass, Trace


@dataclass(eq=False)
class DecisionRecord:
    """One decision: when its frame was taken, what it said, and what the robot did on it.

    ``said``: when which words were emitted. ``settled``: when the navigator took its action, or
    refused it.
    """

    begun: float
    jpeg: bytes = b""
    said: list[tuple[float, str]] = field(default_factory=list)
    tokens: tuple[int, ...] = ()
    action: str = ""
    settled: float = 0.0
    ended: float = 0.0

    @property
    def first_word(self) -> float:
        """When the first words came; without any, when it ended."""
        return self.said[0][0] if self.said else self.ended


@dataclass(eq=False)
class MissionRecord:
    """One room: how it ended and what was spent on it, by the robot's and by the cloud's models.

    ``stopped_at``: the thing that the robot stood at in the end. Bytes are those of messages.
    """

    room: int
    begun: float
    ended: float = 0.0
    state: str = ""
    success: bool = False
    stopped_at: str = ""
    first_motion: float | None = None
    moves: list[tuple[float, float]] = field(default_factory=list)
    contacts: int = 0
    decisions: list[DecisionRecord] = field(default_factory=list)
    target_passes: int = 0
    target_busy_s: float = 0.0
    draft_busy_s: float = 0.0
    up_bytes: int = 0
    down_bytes: int = 0

    @property
    def seconds(self) -> float:
        """From the instruction until the robot stands where it decided to stop."""
        return self.ended - self.begun

    @property
    def moving_s(self) -> float:
        """How long the base moved."""
        return sum(max(0.0, min(end, self.ended) - begin) for begin, end in self.moves)


class MissionTrace:
    """The passes of both machines and the messages between them, for pictures."""

    def __init__(self) -> None:
        self.robot: list[ModelPass] = []
        self.cloud: list[ModelPass] = []
        self.link = Trace()
