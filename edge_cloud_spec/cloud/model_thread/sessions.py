"""The worker's sessions, their robots' streams, and admission."""

from __future__ import annotations

import hmac
import secrets
from collections import Counter, deque
from collections.abc import Callable

from ...decoding.digest import PrefixDigest
from ...models.draft_model import DraftModel
from ...wire.codec import encode_server
from ...wire.frames import ClientFrame, ServerFrame
from ...wire.messages import Close, Code, Fault, ServerMessage, key_of
from ..session.session import CloudSession
from .limits import WorkerLimits
from .target_session import TargetSession
from .turnover import Turnover

SendFrame = Callable[[ServerFrame | None], None]  # None ends the stream
OnSend = Callable[["RobotStream", ServerMessage], None]


class RobotStream:
    """One robot's connection; ``session`` is the one it opened or resumed.

    ``client`` names the robot's credential; without credentials each stream is its own client, and
    ``credential`` is empty.
    """

    def __init__(
        self,
        send_frame: SendFrame,
        client: str = "",
        on_send: OnSend | None = None,
        credential: str = "",
    ) -> None:
        """on_send: called with each message sent here, in the worker's thread."""
        self.credential = credential
        self.send_frame = send_frame
        self._on_send = on_send
        self.client = client or f"stream {secrets.token_hex(8)}"
        self.session: HeldSession | None = None
        self.gone = False  # whether the robot has left
        self.waiting: deque[tuple[ClientFrame, float]] = deque()  # with their arrival times, s

    @property
    def backlog(self) -> tuple[int, int]:
        """How many messages and bytes wait; from any thread."""
        sizes = [len(frame) for frame, _ in tuple(self.waiting)]
        return len(sizes), sum(sizes)

    def send(self, message: ServerMessage) -> None:
        """Send a message to the robot; from any thread."""
        if self._on_send is not None:
            self._on_send(self, message)
        self.send_frame(encode_server(message))

    def end(self) -> None:
        """End the stream after the queued messages; from any thread."""
        self.send_frame(None)


class HeldSession(CloudSession):
    """A session with its stream and its models' state."""

    target: TargetSession
    drafter: DraftModel | None = None
    head_failed = False  # of the target; it drafts no more in this session
    stream: RobotStream | None = None
    client = ""  # the stream's client
    opened = 0.0  # s
    arrived = 0.0  # last message, or loss of the stream, s
    passes = 0  # since the last prefill

    def send(self, message: ServerMessage) -> None:
        """Send a message to the robot, if it is connected."""
        if self.stream is not None:
            self.stream.send(message)

    def admits(self, secret: bytes) -> bool:
        """Whether this secret is that of the robot that opened the session."""
        return hmac.compare_digest(key_of(secret), self.opening.key)

    def release(self) -> None:
        """Free all memory."""
        self.drafter = None
        self.target.close()


class Sessions:
    """The sessions by name. A stream has at most one session, and a session one stream."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._sessions: dict[str, HeldSession] = {}  # by name
        self._turnover = Turnover()
        self.evicted = 0  # sessions dropped to make room

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session: HeldSession) -> bool:
        return self._sessions.get(session.name) is session

    @property
    def pushed(self) -> int:
        """The number of pushed drafts waiting in all sessions; from any thread."""
        return sum(session.pushed for session in list(self._sessions.values()))

    def named(self, name: str) -> HeldSession | None:
        """The session of this name."""
        return self._sessions.get(name)

    def of(self, base: PrefixDigest, key: bytes) -> HeldSession | None:
        """The session opened with this request digest and key, None if there is none."""
        held = self._sessions.values()
        return next((one for one in held if (one.base, one.opening.key) == (base, key)), None)

    @property
    def connected(self) -> int:
        """The number of sessions with a connected robot; from any thread."""
        return sum(session.stream is not None for session in list(self._sessions.values()))

    def admit(self, stream: RobotStream, now: float, nbytes: int = 0) -> tuple[str, Fault] | None:
        """Make room for a new session on this stream, replacing the stream's own.

        nbytes: of its request's pictures, which are kept as long as it.

        None, or if there is no room: the name of the limit, and the fault that says when to retry.
        If necessary, the session longest without a stream is dropped: one of the same client, else
        of the client with the most sessions. ``now`` in seconds.
        """
        self._forget_old(now)
        limits, client = self._limits, stream.client
        everybody = [one for one in self._sessions.values() if one is not stream.session]
        own = [session for session in everybody if session.client == client]
        while own and nbytes + sum(one.opening.nbytes for one in own) > limits.bytes_per_robot:
            if not self._evict(own):
                text = "this robot's sessions hold as many bytes of pictures as they may"
                return self._refuse("bytes_per_robot", text, client, own, now)
            own = [session for session in own if session in self]
        if len(own) >= limits.sessions_per_robot and not self._evict(own):
            text = f"this robot has {len(own)} sessions already, as many as it may"
            return self._refuse("sessions_per_robot", text, client, own, now)
        if len(everybody) >= limits.sessions and not self._evict(everybody):
            text = f"all {limits.sessions} sessions are taken"
            return self._refuse("sessions", text, client, everybody, now)
        self._turnover.admitted(client)
        return None

    def _refuse(
        self, reason: str, text: str, client: str, held: list[HeldSession], now: float
    ) -> tuple[str, Fault]:
        ages = [now - session.opened for session in held]
        wait_s = self._turnover.wait_s(client, ages, now)
        return reason, Fault(Code.OVERLOADED, f"{text}; try again after {wait_s:.1f} s", wait_s)

    def _evict(self, held: list[HeldSession]) -> bool:
        """Drop one of these sessions that has no stream; False if all have one."""
        abandoned = [session for session in held if session.stream is None]
        if not abandoned:
            return False
        holds = Counter(session.client for session in self._sessions.values())
        self.drop(min(abandoned, key=lambda one: (-holds[one.client], one.arrived)), Close())
        self.evicted += 1
        return True

    def hold_memory(self, session: HeldSession) -> bool:
        """Whether other sessions occupy memory that cannot be evicted now."""
        return any(other.target.holds for other in self._sessions.values() if other is not session)

    def attach(self, stream: RobotStream, session: HeldSession) -> None:
        """Store a session and bind it to this stream; ends the session's previous stream."""
        if stream.session is not None and stream.session is not session:
            self.drop(stream.session, Close())
        if session.stream is not None and session.stream is not stream:
            session.stream.session = None
            session.stream.end()
        session.stream, stream.session = stream, session
        session.client = stream.client
        self._sessions[session.name] = session

    def leave(self, stream: RobotStream, now: float) -> None:
        """Detach a closed stream; its session is kept for a while."""
        session, stream.session = stream.session, None
        if session is not None and session.stream is stream:
            session.stream = None
            session.arrived = now
            session.pause()

    def drop(self, session: HeldSession, message: Close) -> None:
        """Close and forget a session; its stream has no session then."""
        session.handle(message)
        self.lose(session)
        if session.stream is not None:
            session.stream.session = None
            session.stream = None

    def lose(self, session: HeldSession) -> None:
        """Forget a session that cannot continue; its stream keeps its reference."""
        if self._sessions.pop(session.name, None) is not None:
            self._turnover.ended(session.arrived - session.opened)
            session.release()

    def _forget_old(self, now: float) -> None:
        """Forget sessions whose robots were silent for too long."""
        for session in list(self._sessions.values()):
            stream = session.stream
            kept = self._limits.keep_s if stream is None else self._limits.idle_s
            if now - session.arrived > kept:
                self.drop(session, Close())
                if stream is not None:
                    stream.end()
