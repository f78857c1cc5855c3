"""An answer that goes on at another verifier, or at the first again: nobody waits in vain."""

from __future__ import annotations

import pytest
from helpers.edge_decoder import (
    BASE,
    OPENED,
    OPENING,
    PROMPT,
    SPEC,
    decoder,
    drafts,
    finish,
    sent,
    verdict,
    waiting,
)

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.edge.decoder import MAX_LOST, EdgeDecoder
from edge_cloud_spec.edge.events import LinkLost, LinkUp, Received
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import Close, DraftMessage, Fault, Generate, Open, Opened

ELSEWHERE = PrefixDigest(0, 7)
FORGOT = Received(Fault("unknown_session", "start again"))


def opened(session: str, verified: int = 0, base: PrefixDigest = BASE) -> Received:
    return Received(Opened(session, b"", base, 3, verified))


def moved() -> EdgeDecoder:
    """Four tokens are verified, and another verifier is asked to go on after them."""
    robot = waiting()
    robot.handle(verdict(BASE, (0, 1, 2), 9), 2.0)
    robot.handle(LinkLost("it died"), 3.0)
    (again,) = sent(robot.handle(LinkUp(moved=True), 3.1))
    assert again.verified == (3, 4, 5, 9)
    return robot


def test_a_session_that_is_found_again_is_asked_though_another_verifier_came_between() -> None:
    robot = EdgeDecoder(OPENING, load_preset("cloud_ar"), 10.0)
    robot.start(0.0)
    assert sent(robot.handle(opened("a"), 0.1)) == [Generate(BASE)]
    for now in (0.2, 0.4):  # the other one says nothing
        robot.handle(LinkLost("x"), now)
        assert sent(robot.handle(LinkUp(moved=True), now + 0.1)) == [OPENING]
    assert sent(robot.handle(opened("a"), 0.6)) == [Generate(BASE)]


def test_a_verifier_that_takes_the_tokens_goes_on_and_nobody_else_does() -> None:
    robot = moved()
    assert robot.handle(opened("b", 4), 3.2) == []
    (draft,) = sent(drafts(robot, (6, 6, 6, 6), 3.3))
    assert isinstance(draft, DraftMessage)
    assert draft.base == BASE.extend((3, 4, 5, 9))


@pytest.mark.parametrize(
    "wrong", [opened("b", 5), opened("b", 4, ELSEWHERE)], ids=["more tokens", "another prompt"]
)
def test_a_verifier_that_would_go_on_with_another_answer_ends_the_decode(wrong: Received) -> None:
    robot = moved()
    actions = robot.handle(wrong, 3.2)
    assert finish(actions).reason == "unknown_session"
    assert sent(actions) == [Close()]
    assert robot.tokens == [3, 4, 5, 9]


def test_a_session_with_fewer_tokens_is_opened_again_with_all_of_them() -> None:
    """Its Opened is late, or what was verified since is another session's."""
    robot = moved()
    (again,) = sent(robot.handle(opened("b", 3), 3.2))
    assert (type(again), again.verified) == (Open, (3, 4, 5, 9))


def test_an_answer_that_has_grown_since_it_was_handed_over_is_opened_again_whole() -> None:
    """The verdict of the session before arrives late: the new one would go on without it."""
    robot = moved()
    drafts(robot, (6, 6, 6, 6), 3.2)
    robot.handle(verdict(BASE.extend((3, 4, 5, 9)), (0,), 8, (6, 6, 6, 6)), 3.3)
    again = sent(robot.handle(opened("b", 4), 3.4))[0]
    assert (type(again), again.verified) == (Open, (3, 4, 5, 9, 6, 8))


def test_the_answer_to_a_resume_does_not_pass_for_a_session_that_is_opened() -> None:
    robot = moved()
    there = BASE.extend((3, 4, 5, 9))
    assert robot.handle(Received(Opened("s", b"", there)), 3.2) == []
    assert robot.handle(opened("b", 4), 3.3) == []
    robot.handle(LinkLost("x"), 3.4)
    (resume,) = sent(robot.handle(LinkUp(), 3.5))
    assert resume.session == "b"


def test_a_robot_that_hears_of_another_session_than_its_own_opens_its_answer_again() -> None:
    robot = waiting()
    opening, draft = sent(robot.handle(opened("other"), 1.5))
    assert isinstance(opening, Open)
    assert draft.draft.tokens == (3, 4, 5, 6)
    assert robot.handle(opened("other"), 1.6) == []
    robot.handle(verdict(BASE, (0,), 9), 1.7)
    assert robot.tokens == [3, 9]


@pytest.mark.parametrize("told", [[opened("a"), opened("b")], [opened("a"), FORGOT]])
def test_sessions_that_change_without_end_end_the_decode(told: list[Received]) -> None:
    robot, asked = waiting(), 0
    for event in told * (MAX_LOST + 2):
        actions = robot.handle(event, 2.0)
        asked += sum(isinstance(message, Open) for message in sent(actions))
        if robot.finished:
            break
    assert finish(actions).reason == "unknown_session"
    assert asked == MAX_LOST


@pytest.mark.parametrize("preset", ["cloud_ar", "cloud_sd"])
def test_no_session_that_is_opened_or_resumed_again_moves_the_deadline(preset: str) -> None:
    robot = EdgeDecoder(OPENING, load_preset(preset), 10.0)
    robot.start(0.0)
    robot.handle(opened("a"), 1.0)
    for now in (2.0, 3.0, 4.0):
        robot.handle(opened("a"), now)
        robot.handle(LinkLost("x"), now)
        robot.handle(LinkUp(moved=True), now)
        robot.handle(opened("b"), now)
    assert robot.deadline == 11.0


def test_what_was_pushed_to_a_session_that_is_forgotten_is_sent_to_the_next() -> None:
    robot = decoder("picospec")
    robot.start(0.0, SPEC)
    robot.handle(OPENED, 0.0)
    robot.handle(PROMPT, 0.0)
    drafts(robot, (3, 4, 5, 6), 1.0)
    (pushed,) = sent(drafts(robot, (7, 8, 9, 1), 1.1))
    assert pushed.base == BASE.extend((3, 4, 5, 6))
    opening, draft = sent(robot.handle(FORGOT, 1.2))
    assert (type(opening), draft.base) == (Open, BASE)
    robot.handle(opened("t"), 1.3)
    (again,) = sent(robot.handle(verdict(BASE, (0, 1, 2, 3), None), 1.4))
    assert (again.base, again.draft.tokens) == (pushed.base, (7, 8, 9, 1))
