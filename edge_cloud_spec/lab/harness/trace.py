"""A record of passes and messages in virtual time; times in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...wire.messages import ClientMessage, ServerMessage
from .scripted.model import OnPass


@dataclass(frozen=True)
class ModelPass:
    """A model's pass. kind: ``prefill``, ``draft``, or ``verify`` (over ``drafted`` tokens)."""

    start: float
    end: float
    kind: str
    drafted: int = 0


@dataclass(frozen=True)
class Hop:
    """A message's way over the link; ``size`` in bytes."""

    left: float
    arrived: float
    size: int
    message: ClientMessage | ServerMessage


class Trace:
    """The cloud's passes, and messages, each in the order of their start."""

    def __init__(self) -> None:
        self.cloud: list[ModelPass] = []
        self.hops: list[Hop] = []

    def cut(self, now: float) -> None:
        """Drop the messages that are in flight when the link is lost."""
        self.hops = [hop for hop in self.hops if hop.arrived <= now]


def record_passes(into: list[ModelPass], clock: Callable[[], float]) -> OnPass:
    """A callback that appends each pass to ``into``; ``clock`` gives the time of its end."""

    def passed(kind: str, ms: float, drafted: int) -> None:
        end = clock()
        into.append(ModelPass(end - ms / 1e3, end, kind, drafted))

    return passed
