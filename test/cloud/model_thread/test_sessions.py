"""Whose session it is and who listens to it, how many a client may have, and who makes room."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest
from helpers.cloud.worker_robot import OWN, Robot, cloud, do_all, opening
from helpers.exactness import probabilities
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from edge_cloud_spec.cloud.model_thread.engine import MAX_FAULT_TEXT, fault_of
from edge_cloud_spec.cloud.model_thread.limits import WorkerLimits
from edge_cloud_spec.cloud.model_thread.sessions import HeldSession, RobotStream, Sessions
from edge_cloud_spec.cloud.model_thread.turnover import SHORTEST_S, Turnover
from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.edge.client import SessionKey
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.nav.answer import CLAUSES
from edge_cloud_spec.wire.channel import MAX_PAUSE_S
from edge_cloud_spec.wire.codec import MAX_VERIFIED, decode_client, encode_client
from edge_cloud_spec.wire.messages import (
    ClientMessage,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    RowRequest,
    Verdict,
    WireError,
)
from edge_cloud_spec_lab.harness.toy import TOY_END, TOY_VOCABULARY, ToyVlm

LIMITS = WorkerLimits(sessions=4, sessions_per_robot=2, keep_s=10.0, idle_s=30.0)
OPENING = Open(1, CLAUSES.request("find", b""), GREEDY, "greedy", draft_identity="small")
ages = st.lists(st.floats(0, 1e6), max_size=20)


def served(number: int, now: float) -> HeldSession:
    """A session as the worker makes one; nothing is computed here."""
    session = HeldSession(
        f"session {number}",
        OPENING,
        PrefixDigest(0, number),
        end_tokens=(0,),
        max_tokens=9,
        vocabulary=9,
    )
    session.target = Mock()
    session.opened = session.arrived = now
    return session


class Listening(RuleBasedStateMachine):
    """Robots that open, resume from another stream, leave, and are forgotten."""

    streams = Bundle("streams")
    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.held = Sessions(LIMITS)
        self.now = 0.0
        self.listeners: list[RobotStream] = []
        self.made: list[HeldSession] = []
        self.ended: Counter[RobotStream] = Counter()  # how often each must have been ended

    @rule(target=streams, client=st.sampled_from(["", "ann", "bob"]))
    def connect(self, client: str) -> RobotStream:
        self.listeners.append(RobotStream(Mock(), client))
        return self.listeners[-1]

    @rule(target=sessions, stream=streams)
    def open(self, stream: RobotStream) -> HeldSession:
        one = served(len(self.made), self.now)
        self.made.append(one)
        self._attach(stream, one)
        return one

    @rule(stream=streams, one=sessions)
    def resume(self, stream: RobotStream, one: HeldSession) -> None:
        if one in self.held:
            self._attach(stream, one)

    def _attach(self, stream: RobotStream, one: HeldSession) -> None:
        before = one.stream
        if before is not None and before is not stream:
            self.ended[before] += 1
        given_up = stream.session if stream.session is not one else None
        self.held.attach(stream, one)
        assert stream.session is one and one.stream is stream
        assert self.held.named(one.name) is one
        assert given_up is None or given_up not in self.held
        one.arrived = self.now  # as the worker does upon a message

    @rule(stream=streams)
    def leave(self, stream: RobotStream) -> None:
        one = stream.session
        self.held.leave(stream, self.now)
        assert stream.session is None
        if one is not None:
            assert one in self.held and one.stream is None
            assert one.arrived == self.now, "it is kept for as long after any silence before"
            assert not one.generating

    @rule(one=consumes(sessions))
    def drop(self, one: HeldSession) -> None:
        if one in self.held:
            self.held.drop(one, Close())
        assert one not in self.held and one.stream is None

    @rule(stream=streams, seconds=st.sampled_from([1.0, 6.0, 11.0, 31.0]))
    def forget_old_ones_and_make_room(self, stream: RobotStream, seconds: float) -> None:
        """For another session of this stream's client, in place of the one that it has."""
        self.now += seconds
        held = [one for one in self.made if one in self.held]
        late = [
            one
            for one in held
            if self.now - one.arrived > (LIMITS.idle_s if one.stream else LIMITS.keep_s)
        ]
        self.ended.update(one.stream for one in late if one.stream is not None)
        stay = [one for one in held if one not in late]
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
        for stream in self.listeners:
            ends: Any = stream.send_frame
            assert ends.call_args_list == [call(None)] * self.ended[stream]


TestListening = Listening.TestCase
TestListening.settings = settings(max_examples=150, stateful_step_count=30)


def test_the_client_with_the_most_sessions_makes_room_for_others() -> None:
    held, clients = Sessions(LIMITS), ("bob", "ann", "ann", "cid")
    sessions = [served(number, float(number)) for number in range(len(clients))]
    for client, session in zip(clients, sessions, strict=True):
        stream = RobotStream(Mock(), client)
        held.attach(stream, session)
        held.leave(stream, session.arrived)
    assert held.admit(RobotStream(Mock(), "dan"), 4.0) is None
    assert [session in held for session in sessions] == [True, False, True, True]


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
        assert SHORTEST_S <= wait <= MAX_PAUSE_S * 1.001


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


class Owner(Robot):
    """A robot that signs what it says, and what went over the wire."""

    def __init__(self, worker: Worker, key: SessionKey | None = None) -> None:
        super().__init__(worker)
        self.key = key or SessionKey()
        self.wire: list[ClientMessage] = []

    def say(self, message: Any) -> None:
        self.wire.append(self.key.sign(message))
        super().say(self.wire[-1])


def stranger(worker: Worker, *messages: ClientMessage) -> list[Any]:
    """What somebody else hears who says this."""
    robot = Robot(worker)
    for message in messages:
        robot.say(message)
    do_all(worker)
    return robot.heard


@pytest.mark.parametrize("heard", [False, True], ids=["before Opened", "after Opened"])
@pytest.mark.parametrize("captured", ["on the topic", "on the wire", "with verified tokens"])
def test_a_replayed_open_neither_attaches_nor_disturbs(captured: str, heard: bool) -> None:
    worker = cloud()
    topic = opening(draft_length=3)
    owner = Owner(worker)
    owner.say(topic)
    worker.run_one()  # it stands; whether the robot knows makes no difference here
    if heard:
        do_all(worker)
        owner.base = owner.last(Opened).base
        owner.say(Generate(owner.base))
        for _ in range(3):
            worker.run_one()
    wire: Any = owner.wire[0]
    verified = OWN[:1] if captured == "with verified tokens" else ()
    (said,) = stranger(
        worker, topic if captured == "on the topic" else replace(wire, verified=verified)
    )
    assert not owner.ended
    # Whoever has no key but the request gets a session of its own.
    own = captured == "on the topic" and said.session != owner.last(Opened).session
    assert own or said.code == "in_use"
    if not heard:
        owner.base = owner.last(Opened).base
        owner.say(Generate(owner.base))
        do_all(worker)
    assert owner.last(Verdict).finish  # not even paused


@pytest.mark.parametrize("secret", [b"", b"\0" * 16, b"short"])
def test_a_resume_needs_the_secret_and_not_only_the_name(secret: bytes) -> None:
    worker = cloud()
    owner = Owner(worker).open(1)
    name = owner.last(Opened).session
    (fault,) = stranger(worker, Resume(name, owner.base, secret))
    (unknown,) = stranger(worker, Resume("0" * 16, owner.base, secret))
    assert fault == unknown  # nobody learns which names there are
    assert not owner.ended and isinstance(owner.settle(2), Verdict)
    back = Owner(worker, owner.key)
    assert back.ask(Resume(name, owner.base)).session == name
    assert owner.ended


@pytest.mark.parametrize("arrived", [True, False], ids=["heard nothing", "it never arrived"])
def test_an_owner_gets_its_session_with_the_repeated_open(arrived: bool) -> None:
    worker, key = cloud(), SessionKey()
    first = key.sign(opening())
    if arrived:
        lost = Robot(worker)
        lost.ask(first)
        lost.leave()
        assert [message.code for message in stranger(worker, first)] == ["in_use"]
    back = Owner(worker, key).open(1)
    back.leave()
    again = Owner(worker, key).open(1)
    assert again.last(Opened) == back.last(Opened)
    assert not arrived or back.last(Opened) == lost.last(Opened)
    assert len(worker.held) == 1


def answer(robot: Robot, verified: tuple[int, ...]) -> tuple[int, ...]:
    """What the cloud alone says after these tokens."""
    robot.ask(Generate(robot.base.extend(verified)))
    return robot.said


@pytest.mark.parametrize(
    "verified",
    [
        (TOY_VOCABULARY,),
        (2**32 - 1,),
        (1, TOY_END, 1),
        (TOY_END,),
        (1,) * 60,
        (1,) * MAX_VERIFIED,
    ],
    ids=["outside", "far outside", "after its end", "ended", "full", "long"],
)
def test_an_answer_that_cannot_go_on_is_refused_and_costs_nobody_else(
    verified: tuple[int, ...],
) -> None:
    worker = cloud()
    other = Robot(worker).open(2)
    liar = Robot(worker)
    liar.ask(opening(1, verified=verified, max_tokens=10**6))  # more than any answer here has
    assert [type(message) for message in liar.heard] == [Fault]
    assert liar.last(Fault).code == "bad_request"
    assert len(worker.held) == 1
    assert other.settle(3).path == (0, 1, 2)


def test_more_tokens_than_any_answer_has_are_not_read() -> None:
    with pytest.raises(WireError, match="at most"):
        decode_client(encode_client(opening(1, verified=(1,) * (MAX_VERIFIED + 1))))


@pytest.mark.parametrize(
    ("verified", "found"),
    # The verdict leads from 0 tokens to 4; at others it went on, with verdicts of its own.
    [(0, True), (4, True), (2, False), (len(OWN) - 1, False)],
)
def test_a_robot_that_is_sent_back_finds_its_session_where_its_verdicts_begin(
    verified: int, found: bool
) -> None:
    worker, key = cloud(), SessionKey()
    robot = Owner(worker, key).open(1)
    robot.settle(3)
    robot.leave()
    back = Owner(worker, key).open(1, verified=OWN[:verified])
    assert (back.last(Opened).session == robot.last(Opened).session) == found
    assert (back.last(Opened).verified, len(worker.held)) == (verified, 1)
    assert answer(back, OWN[:verified]) == OWN[verified:]


SPLIT: dict[str, Any] = {
    "rule": "rejection",
    "policy": SamplingPolicy(0.8, seed=5),
    "payload": "probabilities",
    "split": Split("sparse", 1, 1),
}


@pytest.mark.parametrize("judged", [False, True], ids=["waits", "rejected"])
def test_a_row_comes_whether_the_session_there_rejected_its_draft_or_is_given_up(
    judged: bool,
) -> None:
    """A robot that resamples comes back with a rejection of its own, or of that very session."""
    worker, key = cloud(), SessionKey()
    first = Owner(worker, key).open(1, verified=OWN[:4], **SPLIT)
    here = first.base.extend(OWN[:4])
    if judged:
        unlikely = int(probabilities(ToyVlm(1).logits(OWN[:4]), SPLIT["policy"]).argmin())
        said = first.ask(DraftMessage(here, Draft((unlikely,), values=(1.0,)), 0))
        assert said.residual is not None
    first.leave()
    back = Owner(worker, key).open(1, verified=OWN[:4], **SPLIT)
    assert (back.last(Opened).session == first.last(Opened).session) is not judged
    goes_on(back, here)


def goes_on(robot: Robot, here: PrefixDigest) -> None:
    """It hears the row, and the verdict on what it drafts after the token that it drew."""
    expected = probabilities(ToyVlm(1).logits(OWN[:4]), SPLIT["policy"])
    crossing = DraftMessage(here, Draft((OWN[5],), values=(0.5,)), 0)  # of before it asked
    for message in (RowRequest(here), crossing, RowRequest(here)):
        row = robot.ask(message)
        assert row.base == here
        np.testing.assert_allclose(row.row.probabilities, expected, rtol=1e-6)
    there = here.extend((OWN[4],))
    goes_on = DraftMessage(there, Draft((OWN[5],), values=(0.5,)), 1, resampled=OWN[4])
    assert robot.ask(goes_on).base == there


@pytest.mark.parametrize(("beyond", "tail"), [(-1, ""), (0, ""), (1, " ..."), (10**6, " ...")])
def test_a_faults_text_is_whole_or_cut_short_where_it_quotes_much(beyond: int, tail: str) -> None:
    said = fault_of(UserError("x" * (MAX_FAULT_TEXT + beyond))).text
    assert said == "x" * min(MAX_FAULT_TEXT, MAX_FAULT_TEXT + beyond) + tail
