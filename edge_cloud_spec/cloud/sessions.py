"""The sessions that a worker holds, and the streams on which robots listen."""

from __future__ import annotations

import hmac
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..decoding.digest import PrefixDigest
from ..decoding.draft import MAX_DRAFTED
from ..models.drafter import Drafter
from ..wire.codec import encode_server
from ..wire.messages import Close, Open, ServerMessage, key_of
from .turns import Line
from .verification import Verification

if TYPE_CHECKING:
    from ..models.session import Session

Outlet = Callable[[bytes | None], None]  # takes a message's bytes; None ends the stream


@dataclass(frozen=True)
class WorkerLimits:
    """How much the worker holds. A session outlives its stream by ``keep_s`` seconds, as long as

    no new one needs its place; a stream that says nothing for ``idle_s`` seconds makes room when
    room is needed. ``draft_tokens``: of a draft at most. ``queue_bytes``: that wait in a stream,
    each way; a robot that is behind is not read from, and one that does not read is let go.
    """

    sessions: int = 64
    keep_s: float = 60.0
    idle_s: float = 120.0
    draft_tokens: int = MAX_DRAFTED
    queue_bytes: int = 8 * 2**20


class RobotStream:
    """One robot's connection; ``session`` is the one it opened or resumed."""

    def __init__(self, transport: Outlet) -> None:
        self.transport = transport
        self.session: CloudSession | None = None
        self.gone = False  # nobody is there any more
        self.line = Line()
        self.waiting: deque[tuple[bytes, float]] = deque()  # messages, and when they came
        # Messages and bytes, counted where they come in, and again where they are taken.
        self._received, self._taken = [0, 0], [0, 0]

    def receive(self, data: bytes, now: float) -> None:
        """Let a message wait that came in."""
        self.waiting.append((data, now))
        self._received[0] += 1
        self._received[1] += len(data)

    def take(self) -> tuple[bytes, float]:
        """The next message, and when it came."""
        data, arrived = self.waiting.popleft()
        self._taken[0] += 1
        self._taken[1] += len(data)
        return data, arrived

    @property
    def backlog(self) -> tuple[int, int]:
        """How many messages wait, and how many bytes they have; from any thread."""
        (messages, size), (taken, taken_size) = self._received, self._taken
        return messages - taken, size - taken_size

    def say(self, message: ServerMessage) -> None:
        """Send this to the robot; from any thread."""
        self.transport(encode_server(message))


class CloudSession:
    """A session as the worker holds it: its verification, its models' caches and who listens.

    ``prefill`` reads the prompt, which takes its time, at the first use of ``target``.
    """

    def __init__(
        self,
        verification: Verification,
        prefill: Callable[[], Session],
        opening: Open,
        arrived: float,
    ) -> None:
        self.verification = verification
        self.base = verification.digest  # of the empty answer
        self._prefill = prefill
        self.opening = opening
        self.drafter: Drafter | None = None
        self.stream: RobotStream | None = None
        self.line = Line()  # of its stream
        self.arrived = arrived  # the last word, or when its stream broke

    @cached_property
    def target(self) -> Session:
        """The target after the prompt and what is verified."""
        return self._prefill()

    def admits(self, secret: bytes) -> bool:
        """Whether this is the secret of the robot that opened it."""
        return hmac.compare_digest(key_of(secret), self.opening.key)


class Sessions:
    """The sessions that are held. A stream has one session at most, and a session one stream."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._held: dict[str, CloudSession] = {}  # by name

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, served: CloudSession) -> bool:
        return self._held.get(served.verification.session) is served

    @property
    def pushed(self) -> int:
        """Drafts of all sessions that wait for their place; from any thread."""
        return sum(served.verification.pushed for served in list(self._held.values()))

    def named(self, name: str) -> CloudSession | None:
        """The session of this name."""
        return self._held.get(name)

    def of(self, base: PrefixDigest, key: bytes) -> CloudSession | None:
        """The session that was opened with this request and key."""
        held = (served for served in self._held.values() if served.base == base)
        return next((served for served in held if served.opening.key == key), None)

    def make_room(self, now: float) -> bool:
        """Whether there is room for one more; the session that nobody listens to for longest goes

        where that is needed.
        """
        self._forget_old(now)
        if len(self._held) >= self._limits.sessions:
            abandoned = [served for served in self._held.values() if served.stream is None]
            if not abandoned:
                return False
            self.drop(min(abandoned, key=lambda served: served.arrived), Close())
        return True

    def attach(self, stream: RobotStream, served: CloudSession) -> None:
        """Hold a session and bind it to this stream; the stream that it had is ended."""
        if stream.session is not None and stream.session is not served:
            self.drop(stream.session, Close())
        if served.stream is not None and served.stream is not stream:
            served.stream.session = None
            served.stream.transport(None)
        served.stream, stream.session = stream, served
        served.line = stream.line
        self._held[served.verification.session] = served

    def leave(self, stream: RobotStream, now: float) -> None:
        """The stream is gone; its session is kept for a while."""
        served, stream.session = stream.session, None
        if served is not None and served.stream is stream:
            served.stream = None
            served.arrived = now
            served.verification.pause()

    def drop(self, served: CloudSession, message: Close) -> None:
        """Forget a session; whoever listened is not bound to it any more."""
        served.verification.handle(message)
        self.lose(served)
        if served.stream is not None:
            served.stream.session = None
            served.stream = None

    def lose(self, served: CloudSession) -> None:
        """Hold a session no more that cannot go on; its stream stays as it is."""
        self._held.pop(served.verification.session, None)

    def _forget_old(self, now: float) -> None:
        """Forget sessions whose robots were silent for too long."""
        for served in list(self._held.values()):
            stream = served.stream
            kept = self._limits.keep_s if stream is None else self._limits.idle_s
            if now - served.arrived > kept:
                self.drop(served, Close())
                if stream is not None:
                    stream.transport(None)
