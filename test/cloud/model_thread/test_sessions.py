"""Who listens to which session, how many a client may have, and who makes room for whom."""

from __future__ import annotations

from collections import Counter

from helpers.cloud.worker_robot import Robot, cloud, opening
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from edge_cloud_spec.cloud.model_thread.sessions import (
    SHORTEST_S,
    CloudSession,
    RobotStream,
    Sessions,
    Turnover,
    WorkerLimits,
)
from edge_cloud_spec.cloud.session.verification import Verification
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY
from edge_cloud_spec.models.session import Session
from edge_cloud_spec.wire.channel import MAX_RETRY_S
from edge_cloud_spec.wire.messages import (
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Verdict,
)

LIMITS = WorkerLimits(sessions=4, sessions_per_robot=2, keep_s=10.0, idle_s=30.0)
OPENING = Open(1, "find", b"", "action first", GREEDY, "greedy", draft_identity="small")
ages = st.lists(st.floats(0, 1e6), max_size=20)


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

    def __init__(self, client: str = "") -> None:
        super().__init__(self._hear, client)
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

    @rule(target=streams, client=st.sampled_from(["", "ann", "bob"]))
    def connect(self, client: str) -> Listener:
        self.listeners.append(Listener(client))
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

    @rule(stream=streams, seconds=st.sampled_from([1.0, 6.0, 11.0, 31.0]))
    def forget_old_ones_and_make_room(self, stream: Listener, seconds: float) -> None:
        """For another session of this stream's client, in place of the one that it has."""
        self.now += seconds
        late = []
        for one in filter(self.held.__contains__, self.made):
            kept = LIMITS.keep_s if one.stream is None else LIMITS.idle_s
            if self.now - one.arrived > kept:
                late.append(one)
                if one.stream is not None:
                    number = self.listeners.index(one.stream)  # type: ignore[arg-type]
                    self.ended[number] = self.ended.get(number, 0) + 1
        stay = [one for one in self.made if one in self.held and one not in late]
        holds = Counter(one.client for one in stay)
        others = [one for one in stay if one is not stream.session]
        own = [one for one in others if one.client == stream.client]
        full = own if len(own) >= LIMITS.sessions_per_robot else others
        bounded = full is own or len(others) >= LIMITS.sessions
        silent = [one for one in full if one.stream is None]
        if bounded and silent:
            oldest = min(silent, key=lambda one: (-holds[one.client], one.arrived))
            stay.remove(oldest)
            late.append(oldest)
        assert (self.held.admit(stream, self.now) is None) == (not bounded or bool(silent))
        assert not any(one in self.held for one in late)
        assert all(one in self.held for one in stay)

    @invariant()
    def both_sides_agree_on_who_listens(self) -> None:
        for stream in self.listeners:
            assert stream.session is None or stream.session.stream is stream
            assert stream.session is None or stream.session in self.held
        for one in self.made:
            assert one.stream is None or one.stream.session is one
            found = self.held.of(one.base, OPENING.key)
            assert found is (one if one in self.held else None)
            assert self.held.of(one.base, b"another's key") is None
        assert len(self.held) == sum(one in self.held for one in self.made)

    @invariant()
    def a_stream_is_ended_when_it_loses_its_session_and_only_then(self) -> None:
        for number, stream in enumerate(self.listeners):
            assert stream.ends == self.ended.get(number, 0)


TestListening = Listening.TestCase
TestListening.settings = settings(max_examples=150, stateful_step_count=30)


def test_a_forgotten_session_says_nothing_more_and_keeps_no_drafts() -> None:
    held, one = Sessions(LIMITS), served(1)
    held.attach(Listener(), one)
    one.verification.handle(Generate(PrefixDigest(0, 1)))
    one.verification.handle(DraftMessage(PrefixDigest(3, 3), Draft((1,)), 0, hint=True))
    assert (held.pushed, one.verification.generating) == (1, True)
    held.drop(one, Close())
    assert one.verification.finished
    assert (held.pushed, one.verification.pushed, one.verification.generating) == (0, 0, False)


@given(st.lists(st.floats(0, 1e6), max_size=10), st.lists(st.tuples(ages, st.floats(0, 100))))
def test_whoever_is_refused_is_told_a_time_that_it_can_wait(
    lasted: list[float], asked: list[tuple[list[float], float]]
) -> None:
    turnover, now = Turnover(), 0.0
    for seconds in lasted:
        turnover.ended(seconds)
    for number, (held, pause) in enumerate(asked):
        now += pause
        wait = turnover.wait_s(f"robot {number % 5}", held, now)
        assert SHORTEST_S <= wait <= MAX_RETRY_S * 1.001


def test_the_wait_is_what_is_waited_for() -> None:
    """Four places of sessions that last 8 s: one is free every 2 s."""
    turnover = Turnover()
    turnover.ended(8.0)
    waits = [turnover.wait_s(name, [1.0, 2.0, 3.0, 4.0], 0.0) for name in ("a", "b", "c")]
    assert waits == [2.0, 4.0, 6.0]
    assert turnover.wait_s("a", [1.0] * 4, 0.5) == 1.5  # who asks early keeps its place
    assert turnover.wait_s("d", [1.0] * 4, 2.5) == 6.0  # a came, or did not: its place is over
    turnover.admitted("b")
    assert turnover.wait_s("e", [1.0] * 4, 2.5) == 6.0


def test_a_client_that_asks_without_end_makes_nobody_wait_longer() -> None:
    turnover = Turnover()
    turnover.ended(8.0)
    for number in range(1000):
        turnover.wait_s("hostile", [1.0] * 4, number / 1000)
    assert turnover.wait_s("honest", [1.0] * 4, 1.0) == 4.0


def named(robot: Robot, client: str) -> Robot:
    robot.stream.client = client
    return robot


def test_a_clients_sessions_are_bounded_and_another_is_served() -> None:
    worker = cloud(sessions=8, sessions_per_robot=2)
    first, _, refused = greedy = [named(Robot(worker), "greedy") for _ in range(3)]
    for nonce, robot in enumerate(greedy):
        robot.ask(opening(nonce))
    fault = refused.last(Fault)
    assert fault.code == "overloaded" and fault.retry_after_s > 0
    assert "this robot has 2 sessions already" in fault.text
    assert worker.counters.answers.refused == {"sessions_per_robot": 1}
    assert isinstance(named(Robot(worker), "other").open(9).settle(3), Verdict)
    assert first.open(5).count(Opened) == 2  # in place of its own
    first.ask(Close())
    assert refused.open(2).count(Opened) == 1


def test_the_client_that_holds_most_makes_room() -> None:
    """Though another's robot has lost the link for longer, and comes back."""
    held = Sessions(WorkerLimits(sessions=3))
    for number, client in enumerate(("honest", "hostile", "hostile")):
        stream = Listener(client)
        held.attach(stream, served(number))
        held.leave(stream, number)
    assert held.admit(Listener(), 3.0) is None
    assert [held.named(f"session {number}") is None for number in range(3)] == [False, True, False]
