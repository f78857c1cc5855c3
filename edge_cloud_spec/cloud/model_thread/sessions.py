"""The sessions that a worker holds, the streams of their robots, and who is admitted."""

from __future__ import annotations

import hmac
import secrets
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from ...decoding.digest import PrefixDigest
from ...decoding.draft import MAX_DRAFTED, MAX_NODES, Draft
from ...models.draft_model import DraftModel
from ...options import bounded
from ...wire.channel import MAX_RETRY_S
from ...wire.codec import encode_server
from ...wire.messages import Close, Fault, ServerMessage, key_of
from ..session.session import CloudSession

SendBytes = Callable[[bytes | None], None]  # sends a message's bytes; None ends the stream
OnSend = Callable[["RobotStream", ServerMessage], None]

SHORTEST_S = 0.05  # a refused robot does not come again before
RECENT = 0.1  # weight of the session that ended last, in the mean of how long they last


@dataclass(frozen=True)
class WorkerLimits:
    """What robots may use up.

    ``idle_s``: the session of a stream that sent nothing for so long is dropped when room is
    needed. ``queue_bytes``: most bytes that wait in a stream, each way; a robot with more is not
    read from, and the stream of one that does not read is ended. A client is
    ``RobotStream.client``. One session may have more than ``batch_rows`` rows in a pass.
    ``lookup_nodes``: most looked-up
    nodes in a pass.
    """

    sessions: int = bounded(64, 1, inf, "robots at once")
    sessions_per_robot: int = bounded(16, 1, inf, "sessions of one robot's credential at once")
    bytes_per_robot: int = bounded(32 * 2**20, 1, inf, "of its messages that wait, each way")
    passes_per_robot: int = bounded(8, 1, inf, "of its sessions in one pass")
    keep_s: float = bounded(
        60.0,
        0.0,
        inf,
        "seconds a lost session is kept, unless another needs its place",
        flag="--keep",
    )
    idle_s: float = 120.0
    draft_tokens: int = bounded(MAX_DRAFTED, 1, MAX_NODES, "longest draft, or largest tree")
    queue_bytes: int = 8 * 2**20
    batch: int = bounded(32, 1, inf, "sessions in one pass at most; 1: one at a time")
    batch_rows: int = bounded(256, 1, inf, "tokens in one pass at most, and in a part of a prompt")
    kv_mb: float = bounded(
        0.0,
        0.0,
        inf,
        "MB for keys and values; 0: 2048 on a CPU, the most of what is free on a GPU",
        flag="--kv-memory",
    )
    lookup_suffixes: int = bounded(
        65_536, 0, 2**24, "of answers to draft from, 44 bytes each, for each credential; 0: none"
    )
    lookup_nodes: int = 16
    history_mb: float = bounded(
        8.0, 0.0, inf, "MB of earlier frames that are kept for each robot's credential"
    )


class RobotStream:
    """One robot's connection; ``session`` is the one it opened or resumed.

    ``client`` names the credential that it showed; without one, each stream is a client of its own,
    and ``credential`` is empty.
    """

    def __init__(
        self,
        send_bytes: SendBytes,
        client: str = "",
        on_send: OnSend | None = None,
        credential: str = "",
    ) -> None:
        """on_send: is called with each message that is sent here, in the worker's thread."""
        self.credential = credential
        self.send_bytes = send_bytes
        self._on_send = on_send
        self.client = client or f"stream {secrets.token_hex(8)}"
        self.session: HeldSession | None = None
        self.gone = False  # the robot has left
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
        if self._on_send is not None:
            self._on_send(self, message)
        self.send_bytes(encode_server(message))

    def end(self) -> None:
        """End the stream after what was sent; from any thread."""
        self.send_bytes(None)


class TargetSession:
    """The verified tokens of one decode, as a target has them, and what it computes of them.

    As it is here it computes nothing: a target elsewhere is always ready.
    """

    @property
    def ready(self) -> bool:
        """Whether the next pass computes the draft only."""
        return True

    @property
    def holds(self) -> bool:
        """Whether it needs memory that others cannot have now."""
        return False

    @property
    def scored_with_prompt(self) -> bool:
        """Whether the draft that is due was scored in the prompt's pass, so no pass is left."""
        return False

    def read(self, rows: int, due: Draft | None) -> bool:
        """Compute so many rows of what is missing; True: it is ready.

        due: the draft of the pass that waits for it. MemoryFull: there is no room.
        """
        return True

    def pin(self, pinned: bool) -> None:
        """Keep the memory while a pass is due."""

    def evict(self) -> None:
        """Give all memory back, until the next pass; a request that is under way ends."""

    def close(self) -> None:
        """The decode is over: give all memory back but what a later prompt can begin with."""
        self.evict()

    def commit(self, path: Sequence[int]) -> None:
        """These nodes of the scored draft are verified."""
        raise NotImplementedError

    def extend(self, tokens: Sequence[int]) -> None:
        """These tokens are verified; the next pass computes them."""
        raise NotImplementedError


class HeldSession(CloudSession):
    """A session as the worker holds it: with its stream and what its models keep of it."""

    target: TargetSession
    drafter: DraftModel | None = None
    stream: RobotStream | None = None
    client = ""  # of its stream
    opened = 0.0  # s
    arrived = 0.0  # when the last message arrived, or its stream broke, s
    passes = 0  # since its target was read

    def send(self, message: ServerMessage) -> None:
        """Send this to its robot, if that is there."""
        if self.stream is not None:
            self.stream.send(message)

    def admits(self, secret: bytes) -> bool:
        """Whether this is the secret of the robot that opened it."""
        return hmac.compare_digest(key_of(secret), self.opening.key)

    def continues(self, verified: tuple[int, ...]) -> bool:
        """Whether a robot with these verified tokens can go on with it; else it is given up."""
        return self.stands_at(self.base.extend(verified))

    def release(self) -> None:
        """Give all memory back."""
        self.drafter = None
        self.target.close()


class NotArrived(Exception):
    """A target elsewhere has not said more yet: the pass is due again when it has."""


class Turnover:
    """How long sessions last, and who waits for a place. No I/O; times are steady, in s.

    A robot that is refused is told how long it takes until a place is free for it: by Little's law
    one of N places is free after the N-th part of the time that sessions last, and robots that were
    refused before come first.
    """

    def __init__(self) -> None:
        self._mean_s = 0.0  # 0: none has ended
        self._due: dict[str, float] = {}  # when each refused client comes again

    def ended(self, lasted_s: float) -> None:
        """Count a session that ended after this time (s)."""
        recent = RECENT if self._mean_s else 1.0
        self._mean_s += recent * (lasted_s - self._mean_s)

    def admitted(self, client: str) -> None:
        """This client has its place."""
        self._due.pop(client, None)

    def wait_s(self, client: str, ages: Sequence[float], now: float) -> float:
        """The seconds after which this refused client shall try again.

        ``ages``: how long each session has lasted, s. A client that tries again early or often
        keeps its place in the queue.
        """
        self._due = {other: due for other, due in self._due.items() if due > now}
        before = sum(other != client for other in self._due)
        lasts_s = self._mean_s or max(ages, default=0.0)
        wait = (before + 1) * lasts_s / max(1, len(ages))
        wait = min(max(wait, SHORTEST_S), MAX_RETRY_S)
        if client not in self._due:
            self._due[client] = now + wait
        return max(SHORTEST_S, self._due[client] - now)


class Sessions:
    """The sessions by name. A stream has one session at most, and a session one stream."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._sessions: dict[str, HeldSession] = {}  # by name
        self._turnover = Turnover()
        self.evicted = 0  # sessions that were dropped to make room

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session: HeldSession) -> bool:
        return self._sessions.get(session.name) is session

    @property
    def pushed(self) -> int:
        """Drafts of all sessions that wait for their place; from any thread."""
        return sum(session.pushed for session in list(self._sessions.values()))

    def named(self, name: str) -> HeldSession | None:
        """The session of this name."""
        return self._sessions.get(name)

    def of(self, base: PrefixDigest, key: bytes) -> HeldSession | None:
        """The session that was opened with this request and key."""
        matching = (session for session in self._sessions.values() if session.base == base)
        return next((session for session in matching if session.opening.key == key), None)

    @property
    def connected(self) -> int:
        """Sessions whose robot is there; from any thread."""
        return sum(session.stream is not None for session in list(self._sessions.values()))

    def admit(self, stream: RobotStream, now: float) -> tuple[str, Fault] | None:
        """Make room for a session on this stream, in place of its own.

        If there is none: the bound in the way, and the fault that says when to try again.

        Where it is needed, the session without a stream for longest is dropped: the client's own,
        else of the client that holds the most. ``now`` in seconds.
        """
        self._forget_old(now)
        limits, client = self._limits, stream.client
        everybody = [one for one in self._sessions.values() if one is not stream.session]
        own = [session for session in everybody if session.client == client]
        refusal = None
        if len(own) >= limits.sessions_per_robot and not self._evict(own):
            text = f"this robot has {len(own)} sessions already, as many as it may"
            refusal = self._refuse("sessions_per_robot", text, client, own, now)
        elif len(everybody) >= limits.sessions and not self._evict(everybody):
            text = f"all {limits.sessions} sessions are taken"
            refusal = self._refuse("sessions", text, client, everybody, now)
        if refusal is None:
            self._turnover.admitted(client)
        return refusal

    def _refuse(
        self, reason: str, text: str, client: str, held: list[HeldSession], now: float
    ) -> tuple[str, Fault]:
        ages = [now - session.opened for session in held]
        wait_s = self._turnover.wait_s(client, ages, now)
        return reason, Fault("overloaded", f"{text}; try again after {wait_s:.1f} s", wait_s)

    def _evict(self, held: list[HeldSession]) -> bool:
        """Drop one of these that has no stream; False where all have one."""
        abandoned = [session for session in held if session.stream is None]
        if not abandoned:
            return False
        holds = Counter(session.client for session in self._sessions.values())
        self.drop(min(abandoned, key=lambda one: (-holds[one.client], one.arrived)), Close())
        self.evicted += 1
        return True

    def hold_memory(self, session: HeldSession) -> bool:
        """Whether others than this one need what memory they have, for now."""
        return any(other.target.holds for other in self._sessions.values() if other is not session)

    def attach(self, stream: RobotStream, session: HeldSession) -> None:
        """Hold a session and bind it to this stream; the stream that it had is ended."""
        if stream.session is not None and stream.session is not session:
            self.drop(stream.session, Close())
        if session.stream is not None and session.stream is not stream:
            session.stream.session = None
            session.stream.end()
        session.stream, stream.session = stream, session
        session.client = stream.client
        self._sessions[session.name] = session

    def leave(self, stream: RobotStream, now: float) -> None:
        """The stream is gone; its session is kept for a while."""
        session, stream.session = stream.session, None
        if session is not None and session.stream is stream:
            session.stream = None
            session.arrived = now
            session.pause()

    def drop(self, session: HeldSession, message: Close) -> None:
        """Forget a session; its stream has none any more."""
        session.handle(message)
        self.lose(session)
        if session.stream is not None:
            session.stream.session = None
            session.stream = None

    def lose(self, session: HeldSession) -> None:
        """Forget a session that cannot continue; its stream stays as it is."""
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
