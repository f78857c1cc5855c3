"""A cloud that goes on alone for a while: what it is asked for, and asked again after a loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.edge_decoder import BASE, OPENED, OPENING, SPEC, sent

from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.propose import FinishedDraft
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.draft_planner import PROBE
from edge_cloud_spec.edge.events import (
    Action,
    Drafted,
    Emit,
    LinkLost,
    LinkUp,
    PromptReady,
    Received,
    Work,
)
from edge_cloud_spec.edge.measures import Measures
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import (
    ALONE_PROTOCOL,
    Alone,
    DraftMessage,
    Generate,
    Opened,
    Resume,
    Verdict,
    spec_digest,
)

ASKED = Generate(BASE, Alone(False, PROBE, True))


def prepared() -> tuple[EdgeDecoder, list[Action]]:
    """``auto`` learns first what the target costs: nothing is drafted."""
    robot = EdgeDecoder(OPENING, load_preset("auto"), 10.0)
    robot.start(0.0, SPEC)
    return robot, robot.handle(PromptReady(b"prompt", spec_digest(SPEC), (0,), 20), 0.5)


def said(size: int, token: int) -> Received:
    """The target's next token, after ones, twos, ..."""
    base = BASE.extend(range(1, size + 1))
    there = base.extend((token,))
    return Received(Verdict(base, (), token, verify_s=0.1, leads_to=there.short))


def test_the_cloud_is_asked_before_it_has_opened_and_again_where_the_link_broke() -> None:
    robot, actions = prepared()
    assert sent(actions) == [ASKED]
    assert sent(robot.handle(LinkUp(), 1.0)) == [OPENING, ASKED]


def test_after_a_loss_the_session_is_resumed_and_the_same_asked_again() -> None:
    robot, _ = prepared()
    robot.handle(OPENED, 1.0)
    assert robot.deadline is not None  # a verdict is owed
    robot.handle(said(0, 1), 2.0)
    assert robot.tokens == [1]
    robot.handle(LinkLost("x"), 3.0)
    here = BASE.extend((1,))
    assert sent(robot.handle(LinkUp(), 4.0)) == [Resume("s", here)]
    assert sent(robot.handle(Received(Opened("s", b"", here)), 5.0)) == [
        Generate(here, Alone(False, PROBE, True))
    ]
    assert robot.deadline == 12.0  # as before: only an answer moves it


def test_it_drafts_again_when_the_cloud_has_gone_as_far_as_it_was_asked() -> None:
    robot, _ = prepared()
    robot.handle(OPENED, 1.0)
    for size in range(PROBE):
        actions = robot.handle(said(size, size + 1), 2.0 + size)
        last = size == PROBE - 1
        assert not sent(actions) or last
    work = [a for a in actions if isinstance(a, Work) and a.branches]
    asked = [message for message in sent(actions) if isinstance(message, Generate)]
    assert bool(work) != bool(asked)  # it drafts, or lets the cloud go on for longer
    assert [round_.drafted for round_ in robot.stats.rounds] == [0] * PROBE


def test_the_draft_that_it_makes_then_is_sent() -> None:
    measures = Measures()
    measures.drafted(1, 0.001)
    measures.verified(4, 0.1, 0.001)
    robot = EdgeDecoder(OPENING, load_preset("auto"), 10.0, measures=measures)
    robot.start(0.0, SPEC)
    robot.handle(PromptReady(b"prompt", spec_digest(SPEC), (0,), 20), 0.0)
    robot.handle(OPENED, 0.0)
    for size in range(PROBE):
        actions = robot.handle(said(size, size + 1), 0.1 * size)
    (work,) = [action for action in actions if isinstance(action, Work)]
    branch = work.branches[0]
    finished = FinishedDraft(Draft((7, 8)), (7, 8), 1, leaves=(((7, 8), 0.9),))
    (message,) = sent(robot.handle(Drafted(branch, (7, 8), finished), 1.0))[:1]
    assert isinstance(message, DraftMessage)
    assert message.base == BASE.extend(range(1, PROBE + 1))


@pytest.mark.parametrize(("preset", "own"), [("cloud_ar", False), ("cloud_sd", True)])
def test_a_preset_that_leaves_all_to_the_cloud_asks_once_for_all(preset: str, own: bool) -> None:
    robot = EdgeDecoder(OPENING, load_preset(preset), 10.0)
    assert sent(robot.start(0.0, SPEC)) == [OPENING]
    assert sent(robot.handle(OPENED, 1.0)) == [Generate(BASE, Alone(own, 0))]
    for size in range(3):
        assert sent(robot.handle(said(size, size + 1), 2.0 + size)) == []
    robot.handle(LinkLost("x"), 6.0)
    here = BASE.extend((1, 2, 3))
    assert sent(robot.handle(LinkUp(), 7.0)) == [Resume("s", here)]
    again = sent(robot.handle(Received(Opened("s", b"", here)), 8.0))
    assert again == [Generate(here, Alone(own, 0))]


def test_a_cloud_that_is_not_told_otherwise_has_ten_seconds() -> None:
    robot = EdgeDecoder(OPENING, load_preset("cloud_ar"))
    robot.start(5.0, SPEC)
    assert robot.deadline == 15.0


LOOKUP = replace(OPENING, alone=Alone(), lookup=True)


def opened(protocol: int, verified: int = 0) -> Received:
    return Received(Opened("s", b"", BASE, protocol, verified))


def test_a_robot_without_a_draft_model_spends_no_round_trip_before_the_first_verdict() -> None:
    robot = EdgeDecoder(LOOKUP, load_preset("cloud_lookup"), 10.0)
    assert sent(robot.start(0.0, SPEC)) == [LOOKUP]
    assert robot.handle(opened(ALONE_PROTOCOL), 1.0) == []
    assert robot.deadline == 11.0
    assert robot.handle(said(0, 1), 2.0) == [Emit(0, (1,), True)]
    robot.handle(LinkLost("x"), 3.0)
    here = BASE.extend((1,))
    assert sent(robot.handle(LinkUp(), 4.0)) == [Resume("s", here)]
    assert sent(robot.handle(Received(Opened("s", b"", here, 3)), 5.0)) == [Generate(here, Alone())]


def test_a_cloud_of_before_is_asked_as_before() -> None:
    robot = EdgeDecoder(LOOKUP, load_preset("cloud_lookup"), 10.0)
    robot.start(0.0, SPEC)
    assert sent(robot.handle(opened(ALONE_PROTOCOL - 1), 1.0)) == [Generate(BASE, Alone())]


def test_a_verdict_that_overtook_the_opened_settles_after_it() -> None:
    robot = EdgeDecoder(LOOKUP, load_preset("cloud_lookup"), 10.0)
    robot.start(0.0, SPEC)
    assert robot.handle(said(0, 1), 0.5) == robot.handle(said(1, 2), 0.5) == []
    assert robot.handle(opened(3), 1.0) == [Emit(0, (1,), True), Emit(1, (2,), True)]


def test_another_verifier_goes_on_alone_too() -> None:
    robot = EdgeDecoder(LOOKUP, load_preset("cloud_lookup"), 10.0)
    robot.start(0.0, SPEC)
    robot.handle(opened(3), 1.0)
    robot.handle(said(0, 1), 2.0)
    (again,) = sent(robot.handle(LinkUp(moved=True), 4.0))
    assert (again.verified, again.alone, again.lookup) == ((1,), Alone(), True)
    there = Received(Opened("t", b"", BASE, 3, 1))
    assert robot.handle(there, 5.0) == []
    assert robot.handle(said(1, 2), 6.0) == [Emit(1, (2,), True)]
