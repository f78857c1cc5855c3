"""The events that an edge decoder handles, and the actions that it returns."""

from __future__ import annotations

from dataclasses import dataclass

from ..decoding.shape import Branch
from ..models.draft_model import Drafted as Drafted
from ..wire.messages import COMPLETE, ClientMessage, ServerMessage

CUT = "cut"  # how a decode finishes of which the robot has heard enough
ANSWERED = (*COMPLETE, CUT)  # how decodes finish that have an answer


@dataclass(frozen=True)
class PromptReady:
    """The robot has made the prompt. ``digest`` names it, ``spec_digest`` its specification.

    Tokens are below ``vocabulary``; the default is all that the wire can name. ``prefilled``: the
    draft model has read it, too; else ``Prefilled`` is due.
    """

    digest: bytes
    spec_digest: bytes
    end_tokens: tuple[int, ...]
    max_tokens: int
    vocabulary: int = 2**32
    prefilled: bool = True


@dataclass(frozen=True)
class Prefilled:
    """The draft model has read the prompt that was made last: it can draft."""


@dataclass(frozen=True)
class Received:
    """A message arrived from the cloud."""

    message: ServerMessage


@dataclass(frozen=True)
class LinkLost:
    """The stream broke; the transport reconnects by itself."""

    reason: str


@dataclass(frozen=True)
class LinkUp:
    """A new stream is connected after one was lost; ``moved``: to another verifier."""

    moved: bool = False


@dataclass(frozen=True)
class Abort:
    """The decode is not wanted any more."""

    reason: str


@dataclass(frozen=True)
class Cut:
    """What is verified is enough of an answer; the rest is not wanted."""


@dataclass(frozen=True)
class Unusable:
    """The robot itself cannot make a prompt of the request; ``text`` is why."""

    text: str


@dataclass(frozen=True)
class TimePassed:
    """The decoder's deadline may have passed."""


Event = (
    PromptReady
    | Prefilled
    | Drafted
    | Received
    | LinkLost
    | LinkUp
    | Abort
    | Cut
    | Unusable
    | TimePassed
)


@dataclass(frozen=True)
class Send:
    """Send this to the cloud."""

    message: ClientMessage


@dataclass(frozen=True)
class Prepare:
    """Make the prompt of this specification (empty: the drafter's own), then prefill it."""

    spec: bytes


@dataclass(frozen=True)
class Work:
    """Draft these branches in this order, several in a pass; a Drafted event for each and pass.

    They replace those of the Work before. ``verified``: the answer so far, which all extend.
    """

    verified: tuple[int, ...]
    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class Emit:
    """Tokens of the answer, settled by a verdict (where ``verified`` is False, by none)."""

    position: int
    tokens: tuple[int, ...]
    verified: bool


@dataclass(frozen=True)
class Finish:
    """The decode is over: end, length, cut, aborted, or what went wrong.

    ``retry_after_s``: when the cloud may be asked again, where it has no room; else 0.
    """

    reason: str
    text: str = ""
    retry_after_s: float = 0.0


Action = Send | Prepare | Work | Emit | Finish
