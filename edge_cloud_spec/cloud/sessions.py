"""The sessions that a worker holds, and the streams on which robots listen."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..decoding.digest import PrefixDigest
from ..models.drafter import Drafter
from ..wire.codec import encode_server
from ..wire.messages import Close, Open, ServerMessage
from .verification import Verification

if TYPE_CHECKING:
    from ..models.session import Session

Outlet = Callable[[bytes | None], None]  # takes a message's bytes; None ends the stream


@dataclass(frozen=True)
class WorkerLimits:
    """How much the worker holds. A session outlives its stream by ``keep_s`` seconds; a stream

    that says nothing for ``idle_s`` seconds makes room when room is needed.
    """

    sessions: int = 64
    keep_s: float = 60.0
    idle_s: float = 120.0


class Stream:
    """One robot's connection; ``session`` is the one it opened or resumed."""

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self.session: Served | None = None
        self.waiting: deque[tuple[bytes, float]] = deque()  # messages, and when they came
        self.received = 0  # messages, counted where they come in
        self.handled = 0  # and by the worker, so that nobody can make it hold ever more

    def say(self, message: ServerMessage) -> None:
        """Send this to the robot; from any thread."""
        self.outlet(encode_server(message))


class Served:
    """A session as the worker holds it: its verification, its models' caches and who listens."""

    def __init__(
        self, verification: Verification, target: Session, opening: Open, arrived: float
    ) -> None:
        self.verification = verification
        self.base = verification.digest  # of the empty answer
        self.target = target
        self.opening = opening
        self.drafter: Drafter | None = None
        self.stream: Stream | None = None
        self.arrived = arrived  # the last word, or when its stream broke


class Sessions:
    """The sessions that are held. A stream has one session at most, and a session one stream."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._held: dict[str, Served] = {}  # by name

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, served: Served) -> bool:
        return self._held.get(served.verification.session) is served

    @property
    def full(self) -> bool:
        """Whether there is room for no more."""
        return len(self._held) >= self._limits.sessions

    @property
    def pooled(self) -> int:
        """Drafts of all sessions that wait for their place; from any thread."""
        return sum(served.verification.pooled for served in list(self._held.values()))

    def named(self, name: str) -> Served | None:
        """The session of this name."""
        return self._held.get(name)

    def of(self, base: PrefixDigest) -> Served | None:
        """The session that was opened with this request."""
        return next((served for served in self._held.values() if served.base == base), None)

    def attach(self, stream: Stream, served: Served) -> None:
        """Hold a session and bind it to this stream; the stream that it had is ended."""
        if stream.session is not None and stream.session is not served:
            self.drop(stream.session, Close())
        if served.stream is not None and served.stream is not stream:
            served.stream.session = None
            served.stream.outlet(None)
        served.stream, stream.session = stream, served
        self._held[served.verification.session] = served

    def leave(self, stream: Stream, now: float) -> None:
        """The stream is gone; its session is kept for a while."""
        served, stream.session = stream.session, None
        if served is not None and served.stream is stream:
            served.stream = None
            served.arrived = now
            served.verification.pause()

    def drop(self, served: Served, message: Close) -> None:
        """Forget a session; whoever listened is not bound to it any more."""
        served.verification.handle(message)
        self.lose(served)
        if served.stream is not None:
            served.stream.session = None
            served.stream = None

    def lose(self, served: Served) -> None:
        """Hold a session no more that cannot go on; its stream stays as it is."""
        self._held.pop(served.verification.session, None)

    def forget_old(self, now: float) -> None:
        """Forget sessions whose robots were silent for too long."""
        for served in list(self._held.values()):
            stream = served.stream
            kept = self._limits.keep_s if stream is None else self._limits.idle_s
            if now - served.arrived > kept:
                self.drop(served, Close())
                if stream is not None:
                    stream.outlet(None)
