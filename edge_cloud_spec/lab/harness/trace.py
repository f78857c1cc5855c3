"""What happened in a decode in virtual time, for pictures of it; times in seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...models.draft_model import Drafted
from ...wire.messages import ClientMessage, ServerMessage
from .scripted.model import OnPass


@dataclass(frozen=True)
class DraftPass:
    """A pass of the robot's draft model, and what it added to which drafts.

    ``verified``: verified tokens when it began. A pass that was interrupted has grown nothing.
    """

    start: float
    end: float
    nodes: int
    verified: int
    grown: tuple[Drafted, ...]


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
    """Passes and messages in the order in which they began; it grows for as long as it is used.

    ``robot``: those of its draft model, with what each added to the drafts; ``drafter``: the same
    passes by their kind, where somebody asked for them.
    """

    def __init__(self) -> None:
        self.robot: list[DraftPass] = []
        self.drafter: list[ModelPass] = []
        self.cloud: list[ModelPass] = []
        self.hops: list[Hop] = []

    def drafted(
        self, start: float, end: float, nodes: int, verified: int, grown: Sequence[Drafted]
    ) -> None:
        """The robot's draft model has made a pass."""
        self.robot.append(DraftPass(start, end, nodes, verified, tuple(grown)))

    def cut(self, now: float) -> None:
        """The link is lost, with all that is in flight."""
        self.hops = [hop for hop in self.hops if hop.arrived <= now]


def record_passes(into: list[ModelPass], clock: Callable[[], float]) -> OnPass:
    """What notes the passes of a model there; the clock gives when one has ended."""

    def passed(kind: str, ms: float, drafted: int) -> None:
        end = clock()
        into.append(ModelPass(end - ms / 1e3, end, kind, drafted))

    return passed
