"""What happens to an edge decoder, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass

from ..decoding.draft import Draft
from ..decoding.shape import Shape
from ..wire.messages import ClientMessage, ServerMessage


@dataclass(frozen=True)
class PromptReady:
    """The prompt stands on the robot. ``digest`` names it, ``spec_digest`` its specification.

    Tokens are below ``vocabulary``; unsaid, that is all that the wire can name.
    """

    digest: bytes
    spec_digest: bytes
    end_tokens: tuple[int, ...]
    max_tokens: int
    vocabulary: int = 2**32


@dataclass(frozen=True, eq=False)
class Drafted:
    """The draft model proposed ``tokens``; ``draft`` is all of it when it is whole.

    ``seconds`` is what the model took for them.
    """

    tokens: tuple[int, ...]
    draft: Draft | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Received:
    """A message came from the cloud."""

    message: ServerMessage


@dataclass(frozen=True)
class LinkLost:
    """The stream broke; the link tries again by itself."""

    reason: str


@dataclass(frozen=True)
class LinkUp:
    """A new stream stands after one was lost."""


@dataclass(frozen=True)
class Abort:
    """The decode is not wanted any more."""

    reason: str


@dataclass(frozen=True)
class Unusable:
    """The robot itself cannot make a prompt of the request; ``text`` says why."""

    text: str


@dataclass(frozen=True)
class Tick:
    """The decoder's deadline may have come."""


Event = PromptReady | Drafted | Received | LinkLost | LinkUp | Abort | Unusable | Tick


@dataclass(frozen=True)
class Send:
    """Send this to the cloud."""

    message: ClientMessage


@dataclass(frozen=True)
class Prepare:
    """Build the prompt of this specification (empty: the drafter's own) and prefill it."""

    spec: bytes


@dataclass(frozen=True)
class StartDraft:
    """Draft after the verified tokens ``prefix``, a Drafted event for each pass.

    It replaces the draft under way.
    """

    prefix: tuple[int, ...]
    shape: Shape


@dataclass(frozen=True)
class Emit:
    """Tokens of the answer, settled by a verdict (or by nobody, where ``verified`` is False)."""

    position: int
    tokens: tuple[int, ...]
    verified: bool


@dataclass(frozen=True)
class Finish:
    """The decode is over: end, length, aborted, or what went wrong."""

    reason: str
    text: str = ""


Action = Send | Prepare | StartDraft | Emit | Finish
