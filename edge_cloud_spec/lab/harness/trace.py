"""What happened in a decode in virtual time; times in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...wire.messages import ClientMessage, ServerMessage
from .scripted.model import OnPass


@dataclass(frozen=True)
class ModelPass:
    """A pass of a model. kind: ``prefill``, ``draft``, or ``verify`` over so many ``drafted``."""

    start: float
    end: float
    kind: str
    drafted: int = 0


@dataclass(frozen=True)
class Hop:
    """A message in flight; ``size`` in bytes."""

    left: float
    arrived: float
    size: int
    message: ClientMessage | ServerMessage


class Trace:
    """The cloud's passes, and messages, in the order in which they began."""

    def __init__(self) -> None:
        self.cloud: list[ModelPass] = []
        self.hops: list[Hop] = []

    def cut(self, now: float) -> None:
        """The link is lost, with all that is in flight."""
        self.hops = [hop for hop in self.hops if hop.arrived <= now]


def record_passes(into: list[ModelPass], clock: Callable[[], float]) -> OnPass:
    """A callback that appends each pass of a model to ``into``; ``clock`` tells when it ended."""

    def passed(kind: str, ms: float, drafted: int) -> None:
        end = clock()
        into.append(ModelPass(end - ms / 1e3, end, kind, drafted))

    return passed
