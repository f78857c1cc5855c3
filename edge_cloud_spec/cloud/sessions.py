"""The sessions that a worker holds, and the streams of their robots."""

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

SendBytes = Callable[[bytes | None], None]  # sends a message's bytes; None ends the stream


@dataclass(frozen=True)
class WorkerLimits:
    """How much the worker holds.

    A session outlives its stream by ``keep_s`` seconds, unless a new one needs its place; the
    session of a stream that sent nothing for ``idle_s`` seconds is dropped when room is needed.
    ``draft_tokens``: of a draft at most. ``queue_bytes``: that wait in a stream, each way; a robot
    that is behind is not read from, and the stream of one that does not read is ended.
    """

    sessions: int = 64
    keep_s: float = 60.0
    idle_s: float = 120.0
    draft_tokens: int = MAX_DRAFTED
    queue_bytes: int = 8 * 2**20


class RobotStream:
    """One robot's connection; ``session`` is the one it opened or resumed."""

    def __init__(self, send_bytes: SendBytes) -> None:
        self.send_bytes = send_bytes
        self.session: CloudSession | None = None
        self.gone = False  # the robot has left
        self.line = Line()
        self.waiting: deque[tuple[bytes, float]] = deque()  # messages, and when they arrived
        # Messages and bytes, counted where they arrive, and again where they are taken.
        self._received, self._taken = [0, 0], [0, 0]

    def receive(self, data: bytes, now: float) -> None:
        """Queue a message that arrived at the time ``now`` (s)."""
        self.waiting.append((data, now))
        self._received[0] += 1
        self._received[1] += len(data)

    def take(self) -> tuple[bytes, float]:
        """The next message, and when it arrived (s)."""
        data, arrived = self.waiting.popleft()
        self._taken[0] += 1
        self._taken[1] += len(data)
        return data, arrived

    @property
    def backlog(self) -> tuple[int, int]:
        """How many messages wait, and how many bytes they have; from any thread."""
        (messages, size), (taken, taken_size) = self._received, self._taken
        return messages - taken, size - taken_size

    def send(self, message: ServerMessage) -> None:
        """Send this to the robot; from any thread."""
        self.send_bytes(encode_server(message))

    def end(self) -> None:
        """End the stream after what was sent; from any thread."""
        self.send_bytes(None)


class CloudSession:
    """A session as the worker holds it: its verification, its models' caches and its stream.

    ``prefill`` is called at the first use of ``target``.
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
        self.arrived = arrived  # when the last message arrived, or its stream broke, s

    @cached_property
    def target(self) -> Session:
        """The target after the prompt and what is verified."""
        return self._prefill()

    def admits(self, secret: bytes) -> bool:
        """Whether this is the secret of the robot that opened it."""
        return hmac.compare_digest(key_of(secret), self.opening.key)


class Sessions:
    """The sessions by name. A stream has one session at most, and a session one stream."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._sessions: dict[str, CloudSession] = {}  # by name

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session: CloudSession) -> bool:
        return self._sessions.get(session.verification.session) is session

    @property
    def pushed(self) -> int:
        """Drafts of all sessions that wait for their place; from any thread."""
        return sum(session.verification.pushed for session in list(self._sessions.values()))

    def named(self, name: str) -> CloudSession | None:
        """The session of this name."""
        return self._sessions.get(name)

    def of(self, base: PrefixDigest, key: bytes) -> CloudSession | None:
        """The session that was opened with this request and key."""
        matching = (session for session in self._sessions.values() if session.base == base)
        return next((session for session in matching if session.opening.key == key), None)

    def make_room(self, now: float) -> bool:
        """Whether there is room for one more session.

        Where it is needed, the session without a stream for longest is dropped. ``now`` in seconds.
        """
        self._forget_old(now)
        if len(self._sessions) >= self._limits.sessions:
            abandoned = [session for session in self._sessions.values() if session.stream is None]
            if not abandoned:
                return False
            self.drop(min(abandoned, key=lambda session: session.arrived), Close())
        return True

    def attach(self, stream: RobotStream, session: CloudSession) -> None:
        """Hold a session and bind it to this stream; the stream that it had is ended."""
        if stream.session is not None and stream.session is not session:
            self.drop(stream.session, Close())
        if session.stream is not None and session.stream is not stream:
            session.stream.session = None
            session.stream.end()
        session.stream, stream.session = stream, session
        session.line = stream.line
        self._sessions[session.verification.session] = session

    def leave(self, stream: RobotStream, now: float) -> None:
        """The stream is gone; its session is kept for a while."""
        session, stream.session = stream.session, None
        if session is not None and session.stream is stream:
            session.stream = None
            session.arrived = now
            session.verification.pause()

    def drop(self, session: CloudSession, message: Close) -> None:
        """Forget a session; its stream has none any more."""
        session.verification.handle(message)
        self.lose(session)
        if session.stream is not None:
            session.stream.session = None
            session.stream = None

    def lose(self, session: CloudSession) -> None:
        """Forget a session that cannot continue; its stream stays as it is."""
        self._sessions.pop(session.verification.session, None)

    def _forget_old(self, now: float) -> None:
        """Forget sessions whose robots were silent for too long."""
        for session in list(self._sessions.values()):
            stream = session.stream
            kept = self._limits.keep_s if stream is None else self._limits.idle_s
            if now - session.arrived > kept:
                self.drop(session, Close())
                if stream is not None:
                    stream.end()
