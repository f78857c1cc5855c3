"""Silence and lost links: what is owed, until when, and what is said again."""

from __future__ import annotations

from helpers.edge_decoder import (
    BASE,
    OPENED,
    OPENING,
    PROMPT,
    SPEC,
    decoder,
    drafting,
    drafts,
    finish,
    sent,
    verdict,
    waiting,
)

from edge_cloud_spec.edge.events import LinkLost, LinkUp, TimePassed
from edge_cloud_spec.wire.messages import DraftMessage, Resume


def test_silence_ends_the_decode_at_its_deadline_and_says_what_broke() -> None:
    robot = waiting()
    assert robot.deadline == 11.0
    assert robot.handle(LinkLost("socket closed"), 4.0) == []
    assert robot.handle(TimePassed(), 10.9) == []
    end = finish(robot.handle(TimePassed(), 11.0))
    assert end.reason == "timeout"
    assert "10 s" in end.text
    assert "socket closed" in end.text


def test_nothing_is_owed_while_the_robot_drafts() -> None:
    robot = drafting()
    assert robot.deadline is None
    assert robot.handle(TimePassed(), 1e9) == []


def test_only_an_answer_moves_the_deadline() -> None:
    robot = waiting()
    for now in (2.0, 5.0, 8.0):
        robot.handle(LinkLost("flap"), now)
        robot.handle(LinkUp(), now)
        robot.handle(OPENED, now)
    assert robot.deadline == 11.0
    robot.handle(verdict(BASE, (0,), 9), 9.0)
    drafts(robot, (3, 4, 5, 6), 10.0)
    assert robot.deadline == 20.0


def test_after_a_loss_the_session_is_resumed_and_the_draft_said_again() -> None:
    robot = waiting()
    robot.handle(LinkLost("x"), 2.0)
    assert sent(robot.handle(LinkUp(), 3.0)) == [Resume("s", BASE)]
    (again,) = sent(robot.handle(OPENED, 3.1))
    assert isinstance(again, DraftMessage)
    assert again.draft.tokens == (3, 4, 5, 6)
    assert robot.stats.resumed == 1


def test_a_loss_before_the_session_is_known_says_open_and_draft_again() -> None:
    robot = decoder()
    robot.start(0.0, SPEC)
    robot.handle(PROMPT, 0.0)
    assert sent(robot.handle(LinkUp(), 0.1)) == [OPENING]
    drafts(robot, (3, 4, 5, 6), 0.2)
    first, draft = sent(robot.handle(LinkUp(), 0.3))
    assert first == OPENING
    assert draft.draft.tokens == (3, 4, 5, 6)
