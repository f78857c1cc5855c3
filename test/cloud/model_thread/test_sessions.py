"""Who listens to which session: one stream a session, one session a stream, whatever comes."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from edge_cloud_spec.cloud.model_thread.sessions import (
    CloudSession,
    RobotStream,
    Sessions,
    WorkerLimits,
)
from edge_cloud_spec.cloud.session.verification import Verification
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.models.session import Session
from edge_cloud_spec.wire.messages import Close, DraftMessage, Generate, Open

LIMITS = WorkerLimits(sessions=4, keep_s=10.0, idle_s=30.0)
OPENING = Open(1, "find", b"", "action first", GREEDY, "greedy", draft_identity="small")


def nothing() -> Session:
    raise AssertionError("no model is here")


def served(number: int, now: float = 0.0) -> CloudSession:
    """A session as the worker makes one; it has no model, since nothing is computed here."""
    verification = Verification(
        f"session {number}",
        OPENING,
        PrefixDigest(0, number),
        end_tokens=(0,),
        max_tokens=9,
        vocabulary=9,
    )
    return CloudSession(verification, nothing, OPENING, now)


class Listener(RobotStream):
    """A stream that counts how often it was ended."""

    def __init__(self) -> None:
        super().__init__(self._hear)
        self.ends = 0

    def _hear(self, data: bytes | None) -> None:
        assert data is None
        self.ends += 1


class Listening(RuleBasedStateMachine):
    """Robots that open, resume from another stream, leave, and are forgotten."""

    streams = Bundle("streams")
    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.held = Sessions(LIMITS)
        self.now = 0.0
        self.listeners: list[Listener] = []
        self.made: list[CloudSession] = []
        self.silent: dict[str, float] = {}  # since when, by name
        self.ended: dict[int, int] = {}  # how often each listener must have been ended

    @rule(target=streams)
    def connect(self) -> Listener:
        self.listeners.append(Listener())
        return self.listeners[-1]

    @rule(target=sessions, stream=streams)
    def open(self, stream: Listener) -> CloudSession:
        one = served(len(self.made), self.now)
        self.made.append(one)
        self._attach(stream, one)
        return one

    @rule(stream=streams, one=sessions)
    def resume(self, stream: Listener, one: CloudSession) -> None:
        if one in self.held:
            self._attach(stream, one)

    def _attach(self, stream: Listener, one: CloudSession) -> None:
        before = one.stream
        if before is not None and before is not stream:
            number = self.listeners.index(before)  # type: ignore[arg-type]
            self.ended[number] = self.ended.get(number, 0) + 1
        given_up = stream.session if stream.session is not one else None
        self.held.attach(stream, one)
        assert stream.session is one and one.stream is stream
        assert self.held.named(one.verification.session) is one
        assert given_up is None or given_up not in self.held
        one.arrived = self.now  # as the worker does upon a message

    @rule(stream=streams)
    def leave(self, stream: Listener) -> None:
        one = stream.session
        self.held.leave(stream, self.now)
        assert stream.session is None
        if one is not None:
            assert one in self.held and one.stream is None
            assert not one.verification.generating

    @rule(one=consumes(sessions))
    def drop(self, one: CloudSession) -> None:
        if one in self.held:
            self.held.drop(one, Close())
        assert one not in self.held and one.stream is None

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0, 31.0]))
    def forget_old_ones_and_make_room(self, seconds: float) -> None:
        self.now += seconds
        late = []
        for one in self.made:
            if one not in self.held:
                continue
            kept = LIMITS.keep_s if one.stream is None else LIMITS.idle_s
            if self.now - one.arrived > kept:
                late.append(one)
                if one.stream is not None:
                    number = self.listeners.index(one.stream)  # type: ignore[arg-type]
                    self.ended[number] = self.ended.get(number, 0) + 1
        stay = [one for one in self.made if one in self.held and one not in late]
        full = len(stay) >= LIMITS.sessions
        alone = [one for one in stay if one.stream is None]
        if full and alone:
            holds = Counter(one.client for one in stay)
            oldest = min(alone, key=lambda one: (-holds[one.client], one.arrived))
            stay.remove(oldest)
            late.append(oldest)
        assert (self.held.admit(Listener(), self.now) is None) == (not full or bool(alone))
        assert not any(one in self.held for one in late)
        assert all(one in self.held for one in stay)

    @invariant()
    def both_sides_agree_on_who_listens(self) -> None:
        for stream in self.listeners:
            assert stream.session is None or stream.session.stream is stream
            assert stream.session is None or stream.session in self.held
        for one in self.made:
            assert one.stream is None or one.stream.session is one
        assert len(self.held) == sum(one in self.held for one in self.made)

    @invariant()
    def a_stream_is_ended_when_it_loses_its_session_and_only_then(self) -> None:
        for number, stream in enumerate(self.listeners):
            assert stream.ends == self.ended.get(number, 0)


TestListening = Listening.TestCase
TestListening.settings = settings(max_examples=150, stateful_step_count=30)


def test_a_forgotten_session_says_nothing_more_and_keeps_no_drafts() -> None:
    held, stream = Sessions(LIMITS), Listener()
    one = served(1)
    held.attach(stream, one)
    one.verification.handle(Generate(PrefixDigest(0, 1)))
    one.verification.handle(DraftMessage(PrefixDigest(3, 3), Draft((1,)), 0, hint=True))
    assert (held.pushed, one.verification.generating) == (1, True)
    held.drop(one, Close())
    assert one.verification.finished
    assert (held.pushed, one.verification.pushed, one.verification.generating) == (0, 0, False)


def test_sessions_are_found_by_what_they_were_opened_with() -> None:
    held = Sessions(LIMITS)
    both = [served(1), served(2)]
    for one in both:
        held.attach(Listener(), one)
    found = [held.of(PrefixDigest(0, number), OPENING.key) for number in (1, 2, 3)]
    assert found == [*both, None]
    assert held.of(PrefixDigest(0, 1), b"another's key") is None
    assert held.named("session 3") is None
