"""A cloud that goes on alone from its own prefill, and the drafter that joins it."""

from __future__ import annotations

from dataclasses import replace

from helpers.edge_decoder import BASE, OPENING, PROMPT, SPEC, sent

from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.mean import Mean
from edge_cloud_spec.decoding.propose import FinishedDraft
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.draft_planner import HINTED, PROBE
from edge_cloud_spec.edge.events import Action, Drafted, Emit, Prefilled, Received, Work
from edge_cloud_spec.edge.measures import Measures
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import Alone, DraftMessage, Generate, Opened, Verdict

PASS_S = 0.1
OPENED = Received(Opened("s", b"", BASE, protocol=3))
READ = replace(PROMPT, prefilled=False)


def opened(measures: Measures | None = None, event: Received = OPENED) -> EdgeDecoder:
    """The prompt is made and not read yet; the cloud goes on alone."""
    opening = replace(OPENING, alone=Alone(), max_tokens=0)
    robot = EdgeDecoder(opening, load_preset("auto"), 10.0, measures=measures or Measures())
    assert sent(robot.start(0.0, SPEC)) == [opening]
    assert robot.handle(READ, 0.0) == []  # nothing is asked: Open said it
    return robot


def said(robot: EdgeDecoder, *tokens: int) -> list[Action]:
    """The cloud's next tokens, of a verdict that is complete in itself."""
    base = BASE.extend(robot.tokens)
    there = base.extend(tokens)
    path = tuple(range(len(tokens) - 1))
    verdict = Verdict(
        base, path, tokens[-1], tokens=tokens[:-1], verify_s=PASS_S, leads_to=there.short
    )
    return robot.handle(Received(verdict), PASS_S * len(robot.tokens))


def wanted(actions: list[Action]) -> Work:
    (work,) = [action for action in actions if isinstance(action, Work)]
    return work


def drafted(robot: EdgeDecoder, work: Work, tokens: tuple[int, ...]) -> list[DraftMessage]:
    """The first branch that is wanted is finished: what is sent."""
    finished = FinishedDraft(Draft(tokens), tokens, len(tokens) - 1, leaves=((tokens, 0.9),))
    return sent(robot.handle(Drafted(work.branches[0], tokens, finished, seconds=0.01), 1.0))


def known(hints_yield: int, draft_s: float = 0.005) -> Measures:
    """Of a robot that knows what the cloud yields alone, with hints so many times as much."""
    measures = Measures()
    measures.drafted(1, draft_s)
    measures.acceptance = Mean(0.9, 1e6)
    for _ in range(40):
        measures.verified(0, PASS_S, 0.001)
        measures.verified(16, PASS_S, 0.001)
        measures.went_alone(0, 1, PASS_S, hints=False)
        measures.went_alone(0, hints_yield, PASS_S, hints=True)
    return measures


def test_what_is_said_while_the_draft_model_reads_its_prompt_is_emitted_at_once() -> None:
    robot = opened()
    robot.handle(OPENED, 0.0)
    assert said(robot, 1) == [Emit(0, (1,), verified=True)]
    assert said(robot, 2, 3) == [Emit(1, (2, 3), verified=True)]
    assert robot.tokens == [1, 2, 3]


def test_what_is_said_before_the_session_is_known_is_emitted_too() -> None:
    robot = opened()
    assert said(robot, 4) == [Emit(0, (4,), verified=True)]
    assert robot.handle(OPENED, 1.0) == []


def test_a_cloud_of_the_last_protocol_is_asked() -> None:
    robot = opened()
    actions = robot.handle(Received(Opened("s", b"", BASE, protocol=2)), 0.0)
    assert sent(actions) == [Generate(BASE, Alone(False, PROBE, True))]


def test_hints_are_tried_first_and_the_cloud_waits_for_none() -> None:
    measures = known(1)
    measures.alone_yields = Measures().alone_yields
    measures.went_alone(0, 1, PASS_S, hints=False)
    robot = opened(measures)
    robot.handle(OPENED, 0.0)
    (hint,) = drafted(robot, wanted(robot.handle(Prefilled(), 0.0)), (7, 8))
    assert hint.hint and hint.base == BASE
    for token in range(1, HINTED):
        actions = said(robot, token)
        assert all(message.hint for message in sent(actions))
    assert measures.alone_yields[True].count > 0


def test_a_draft_of_a_robot_that_leads_is_no_hint() -> None:
    robot = opened(known(1))
    robot.handle(OPENED, 0.0)
    said(robot, 5)
    (draft,) = drafted(robot, wanted(robot.handle(Prefilled(), 0.0)), (7, 8))
    assert not draft.hint and draft.base == BASE.extend((5,))
    # the pass under way is of the cloud alone: it settles what the draft was for
    assert Emit(1, (9,), verified=True) in said(robot, 9)
    assert robot.tokens == [5, 9]


def test_hints_go_on_where_they_yield_more_than_a_robot_that_leads() -> None:
    robot = opened(known(20))
    robot.handle(OPENED, 0.0)
    work = wanted(robot.handle(Prefilled(), 0.0))
    (hint,) = drafted(robot, work, (7, 8))
    assert hint.hint
    assert drafted(robot, work, (7, 8)) == []  # once for a place


def test_a_hint_is_cut_where_its_next_level_would_miss_the_clouds_next_pass() -> None:
    """The cloud's passes begin at 0, 0.1, 0.2 s; a level takes 0.02 s, a way 0.0005 s."""
    sent_at = {}
    for now in (0.03, 0.07, 0.09, 0.13, 0.17, 0.19):
        robot = opened(known(20))
        robot.handle(OPENED, 0.0)
        robot.handle(Prefilled(), 0.0)
        work = wanted(said(robot, 5))
        tokens = (7, 8, 7, 8, 7, 8, 7, 8)
        partly = FinishedDraft(Draft(tokens), tokens, 7, leaves=((tokens, 0.9),))
        step = Drafted(work.branches[0], (8,), partly, done=False, seconds=0.02)
        sent_at[now] = sent(robot.handle(step, now))
    assert [now for now, hints in sent_at.items() if hints] == [0.09, 0.19]
    assert all(hint.hint for hints in sent_at.values() for hint in hints)


def test_a_silent_robot_need_not_read_the_prompt() -> None:
    measures = known(1, draft_s=1.0)
    robot = opened(measures)
    robot.handle(OPENED, 0.0)
    assert robot.width  # nothing is planned yet
    robot.handle(Prefilled(), 0.0)
    assert said(robot, 1)[0] == Emit(0, (1,), verified=True)
    later = opened(measures)
    assert later.width == 0
    assert said(later, 1)[0] == Emit(0, (1,), verified=True)
