"""Who listens to which session, how many a client may have, and who makes room for whom."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.grpc_robot import OWN, REQUEST, Talk, toy_robot
from helpers.cloud.grpc_robot import opening as opening_of
from helpers.cloud.grpc_robot import settings as chosen_settings
from helpers.cloud.worker_robot import Robot, cloud, do_all, opening
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
from edge_cloud_spec.edge.client import ClientSettings, VerifierClient
from edge_cloud_spec.lab.harness.toy import toy_worker
from edge_cloud_spec.models.session import Session
from edge_cloud_spec.wire.channel import MAX_RETRY_S
from edge_cloud_spec.wire.messages import (
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    Verdict,
)

LIMITS = WorkerLimits(sessions=4, keep_s=10.0, idle_s=30.0)
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
    greedy = [named(Robot(worker), "greedy") for _ in range(3)]
    for nonce, robot in enumerate(greedy[:2]):
        robot.open(nonce)
    greedy[2].ask(opening(2))
    fault = greedy[2].last(Fault)
    assert fault.code == "overloaded" and fault.retry_after_s > 0
    assert "this robot has 2 sessions already" in fault.text
    assert worker.counters.answers.refused == {"sessions_per_robot": 1}
    other = named(Robot(worker), "other").open(9)
    other.settle(3)
    assert other.count(Verdict) == 1
    greedy[0].ask(Close())
    assert greedy[2].open(2).count(Opened) == 1


def test_a_client_that_abandons_sessions_loses_its_own_and_not_anothers() -> None:
    """The other's robot has lost the link for the longest, and comes back."""
    worker = cloud(sessions=6, sessions_per_robot=4)
    model: Any = worker._models.target
    honest = named(Robot(worker), "honest").open(1)
    honest.leave()
    do_all(worker)
    for nonce in range(100, 140):
        model.now += 0.1
        named(Robot(worker), f"hostile {nonce % 2}").open(nonce).leave()
        do_all(worker)
    assert worker.sessions <= 6
    back = named(Robot(worker), "honest")
    back.ask(Resume(honest.last(Opened).session, honest.base))
    assert back.count(Opened) == 1


def test_a_refused_robot_waits_and_is_served_over_grpc() -> None:
    limits = WorkerLimits(sessions=1)
    with Cloud(toy_worker(limits)) as toy, Talk(toy.address) as first:
        assert isinstance(first.ask(opening_of()), Opened)
        outcomes: list[Any] = []
        link = VerifierClient(ClientSettings(toy.address))
        chosen = chosen_settings("dsd", "coupled")
        decode = threading.Thread(
            target=lambda: outcomes.append(toy_robot().run(REQUEST, chosen, 5, link.connect))
        )
        decode.start()
        refused = toy.worker.counters.answers.refused
        ended = threading.Event()
        while not refused["sessions"] and not ended.wait(0.01):
            assert decode.is_alive()
        first.say(Close())
        decode.join(150)
        link.close()
    assert [outcome.tokens for outcome in outcomes] == [OWN]
    assert refused["sessions"] >= 1


def test_abandoned_sessions_make_room_the_oldest_first() -> None:
    worker = cloud(sessions=3)
    model: Any = worker._models.target
    robots = []
    for nonce in range(3):
        robots.append(Robot(worker).open(nonce))
        model.now += 1.0
    for place in (1, 2, 0):
        robots[place].leave()
        do_all(worker)
        model.now += 1.0
    for gone, nonce in ((1, 10), (2, 11)):
        assert Robot(worker).open(nonce).count(Fault) == 0
        asked = Robot(worker)
        assert (
            asked.ask(Resume(robots[gone].last(Opened).session, robots[gone].base)).code
            == "unknown_session"
        )
    assert worker.sessions == 3
    asked = Robot(worker)
    asked.ask(Resume(robots[0].last(Opened).session, robots[0].base))
    assert asked.count(Opened) == 1


def test_only_when_somebody_listens_to_all_sessions_a_new_robot_is_refused() -> None:
    worker = cloud(sessions=2)
    robots = [Robot(worker).open(nonce) for nonce in range(2)]
    new = Robot(worker)
    assert new.ask(opening(5)).code == "overloaded"
    robots[0].settle(2)
    assert robots[0].count(Verdict) == 1
    robots[1].leave()
    assert new.open(5).count(Opened) == 1


def test_hundreds_of_abandoned_sessions_lock_nobody_out() -> None:
    worker = cloud(sessions=8)
    robot = Robot(worker).open(1)
    for nonce in range(300):
        Robot(worker).open(100 + nonce).leave()
        do_all(worker)
    robot.settle(3)
    assert robot.count(Verdict) == 1
    assert worker.sessions <= 8
