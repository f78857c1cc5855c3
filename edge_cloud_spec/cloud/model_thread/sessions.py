"""The worker's sessions, their robots' streams, and admission."""

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

SHORTEST_S = 0.05  # least wait of a refused robot, s
RECENT = 0.1  # weight of the last ended session in the mean duration


@dataclass(frozen=True)
class WorkerLimits:
    """Limits on what robots may use.

    ``idle_s``: a session whose stream sent nothing for this long may be dropped if its place is
    needed. ``queue_bytes``: the most bytes queued per stream and direction; beyond it the robot is
    not read from, or its stream is ended if it does not read. A client is ``RobotStream.client``.
    ``lookup_nodes``: the most lookup nodes in a pass.
    """

    sessions: int = bounded(64, 1, inf, "robots at once")
    sessions_per_robot: int = bounded(16, 1, inf, "sessions of one robot's credential at once")
    bytes_per_robot: int = bounded(
        32 * 2**20,
        1,
        inf,
        "of its messages that wait, each way, and of its sessions' pictures",
    )
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
        8.0, 0.0, inf, "MB of messages and pictures that are kept for each robot's credential"
    )


class RobotStream:
    """One robot's connection; ``session`` is the one it opened or resumed.

    ``client`` names the robot's credential; without credentials each stream is its own client, and
    ``credential`` is empty.
    """

    def __init__(
        self,
        send_bytes: SendBytes,
        client: str = "",
        on_send: OnSend | None = None,
        credential: str = "",
    ) -> None:
        """on_send: called with each message sent here, in the worker's thread."""
        self.credential = credential
        self.send_bytes = send_bytes
        self._on_send = on_send
        self.client = client or f"stream {secrets.token_hex(8)}"
        self.session: HeldSession | None = None
        self.gone = False  # whether the robot has left
        self.waiting: deque[tuple[bytes, float]] = deque()  # messages with their arrival times, s

    @property
    def backlog(self) -> tuple[int, int]:
        """How many messages and bytes wait; from any thread."""
        sizes = [len(data) for data, _ in tuple(self.waiting)]
        return len(sizes), sum(sizes)

    def send(self, message: ServerMessage) -> None:
        """Send a message to the robot; from any thread."""
        if self._on_send is not None:
            self._on_send(self, message)
        self.send_bytes(encode_server(message))

    def end(self) -> None:
        """End the stream after the queued messages; from any thread."""
        self.send_bytes(None)


class TargetSession:
    """The target's state for one decode: verified tokens, and what is computed from them.

    This base class computes nothing and is always ready, as for a target on another server.
    """

    @property
    def ready(self) -> bool:
        """Whether the next pass needs to compute the draft only."""
        return True

    @property
    def holds(self) -> bool:
        """Whether it occupies memory that cannot be evicted now."""
        return False

    @property
    def scored_with_prompt(self) -> bool:
        """Whether the due draft was scored in the prompt's pass, so that no pass is needed."""
        return False

    def read(self, rows: int, due: Draft | None) -> bool:
        """Compute at most ``rows`` of the missing tokens; True: ready.

        due: the draft whose pass waits for this. MemoryFull: there is no memory.
        """
        return True

    def pin(self, pinned: bool) -> None:
        """Protect the memory from eviction while a pass is due."""

    def evict(self) -> None:
        """Free all memory until the next pass; cancels a request under way."""

    def close(self) -> None:
        """The decode is over: give all memory back but what a later prompt can begin with."""
        self.evict()

    def commit(self, path: Sequence[int]) -> None:
        """Append these nodes of the scored draft to the verified prefix."""
        raise NotImplementedError

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the verified prefix; the next pass computes them."""
        raise NotImplementedError


class HeldSession(CloudSession):
    """A session with its stream and its models' state."""

    target: TargetSession
    drafter: DraftModel | None = None
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


class NotArrived(Exception):
    """A target on another server has not answered yet; the pass is repeated when it has."""


class Turnover:
    """How long sessions last, and which clients wait for one. No I/O; times are monotonic, s.

    A refused robot is told how long it takes until a session is free for it: by Little's law one of
    N ends after the N-th part of a session's mean duration, and robots refused earlier come first.
    """

    def __init__(self) -> None:
        self._mean_s = 0.0  # mean duration; 0: none has ended
        self._due: dict[str, float] = {}  # when each refused client may retry

    def ended(self, lasted_s: float) -> None:
        """Count a session that ended after this time (s)."""
        recent = RECENT if self._mean_s else 1.0
        self._mean_s += recent * (lasted_s - self._mean_s)

    def admitted(self, client: str) -> None:
        """Remove an admitted client from the queue."""
        self._due.pop(client, None)

    def wait_s(self, client: str, ages: Sequence[float], now: float) -> float:
        """After how many seconds this refused client should try again.

        ``ages``: how long each current session has lasted, s. A client that tries again early or
        often keeps its place in the queue.
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
