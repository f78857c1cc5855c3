"""A verifier without room says when to come again: the robot waits so long, and no longer."""

from __future__ import annotations

from random import Random

from helpers.edge_decoder import OPENED, OPENING, SPEC, decoder, drafts, finish, sent
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.events import LinkLost, LinkUp, PromptReady, Received, TimePassed
from edge_cloud_spec.edge.reply_deadline import JITTER, ReplyDeadline, spread
from edge_cloud_spec.wire.channel import MAX_RETRY_S
from edge_cloud_spec.wire.codec import decode_server, encode_server
from edge_cloud_spec.wire.messages import DraftMessage, Fault, Open, spec_digest


def full(after_s: float) -> Received:
    return Received(Fault("overloaded", "all sessions are taken", after_s))


def asked(patience: float = 10.0) -> EdgeDecoder:
    """Open is on its way, at 0 s."""
    robot = decoder("cloud_ar", patience)
    assert sent(robot.start(0.0)) == [OPENING]
    return robot


@given(st.floats(0.0, 30.0), st.integers(0, 2**64 - 1))
def test_a_wait_is_never_shorter_than_what_was_said_and_little_longer(
    wait: float, nonce: int
) -> None:
    until = ReplyDeadline(10.0, nonce).refused(wait, 5.0)
    assert 5.0 + wait <= until <= 5.0 + wait * (1 + JITTER)


def test_robots_that_were_refused_together_do_not_come_back_together() -> None:
    """Each by its decode's nonce; the same decode waits otherwise the next time."""
    untils = {ReplyDeadline(10.0, nonce).refused(4.0, 0.0) for nonce in range(50)}
    assert len(untils) == 50 and max(untils) - min(untils) > 0.5
    wait = ReplyDeadline(10.0, 1)
    assert wait.refused(4.0, 0.0) != wait.refused(4.0, 0.0)
    assert spread(0.0, Random(1)) == 0.0


def test_a_refused_robot_opens_again_when_it_was_told_and_is_served() -> None:
    robot = asked()
    assert robot.handle(full(2.0), 0.1) == []
    assert robot.deadline is not None
    assert 2.1 <= robot.deadline <= 2.6
    assert robot.handle(TimePassed(), 2.0) == []
    assert sent(robot.handle(TimePassed(), robot.deadline)) == [OPENING]
    assert robot.deadline == 10.0  # as it was: a refusal is no reply
    assert robot.handle(OPENED, 3.0)
    assert not robot.finished


def test_patience_bounds_all_waiting() -> None:
    """However often it is refused; the last refusal says why."""
    robot, opened = asked(), 0
    while not robot.finished:
        now = robot.deadline
        assert now is not None and now <= 10.0
        actions = robot.handle(full(2.0), now - 0.01)
        if robot.finished:
            assert finish(actions).reason == "overloaded"
            assert "all sessions are taken" in finish(actions).text
            assert finish(actions).retry_after_s >= 2.0  # for the robot's next decision
        else:
            until = robot.deadline
            assert until is not None
            opened += len(sent(robot.handle(TimePassed(), until)))
    assert opened <= 4


def test_a_link_that_breaks_meanwhile_brings_no_robot_earlier() -> None:
    robot = asked()
    robot.handle(full(3.0), 0.1)
    for now in (0.2, 1.0, 2.0):
        robot.handle(LinkLost("restarted"), now)
        assert robot.handle(LinkUp(), now + 0.1) == []
    assert robot.deadline is not None
    assert sent(robot.handle(TimePassed(), robot.deadline)) == [OPENING]


def test_a_draft_that_was_made_meanwhile_is_sent_behind_the_open() -> None:
    robot = decoder("dsd")
    robot.start(0.0, SPEC)
    robot.handle(PromptReady(b"prompt", spec_digest(SPEC), (0,), 20), 0.0)
    robot.handle(full(2.0), 0.1)
    drafts(robot, (3, 4, 5, 6), 1.0)
    assert robot.deadline is not None
    opening, draft = sent(robot.handle(TimePassed(), robot.deadline))
    assert isinstance(opening, Open) and isinstance(draft, DraftMessage)
    assert draft.draft.tokens == (3, 4, 5, 6)


def test_a_refusal_that_says_no_time_ends_the_decode_as_that_of_an_older_cloud() -> None:
    assert finish(asked().handle(full(0.0), 0.1)).reason == "overloaded"
    other = Received(Fault("bad_request", "no picture", 2.0))
    assert finish(asked().handle(other, 0.1)).reason == "bad_request"


def test_a_cloud_cannot_have_a_robot_wait_for_hours() -> None:
    told = decode_server(encode_server(Fault("overloaded", "x", 86_400.0)))
    assert isinstance(told, Fault) and told.retry_after_s == MAX_RETRY_S
