"""A server that generates by itself: asked to, or from its own prefill until the robot joins it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.edge_decoder import (
    BASE,
    OPENED,
    OPENING,
    PROMPT,
    SPEC,
    Robot,
    drafted,
    play,
    sent,
    started,
    verdict,
)

from edge_cloud_spec.decoding.mean import Mean
from edge_cloud_spec.edge.draft_planner import HINTED
from edge_cloud_spec.edge.events import (
    Effect,
    Emit,
    Finish,
    LinkLost,
    LinkUp,
    Prefilled,
)
from edge_cloud_spec.edge.measures import Measures
from edge_cloud_spec.edge.rounds import Mode
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import (
    PROTOCOL,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Generation,
    Open,
    Opened,
    Resume,
)

PASS_S = 0.1


def said(
    robot: Robot, *tokens: int, generated: bool = False, now: float | None = None
) -> list[Effect]:
    """The cloud's next tokens, of a verdict that is complete in itself.

    ``generated``: on what the server generated.
    """
    before, here = tokens[:-1], BASE.extend(robot.tokens)
    path = tuple(range(len(before)))
    told = verdict(
        here, path, tokens[-1], before, tokens=before, verify_s=PASS_S, generated=generated
    )
    return robot.handle(told, PASS_S * len(robot.tokens) if now is None else now)


LOOKUP = replace(OPENING, generation=Generation(), lookup=True)


@pytest.mark.parametrize(
    ("preset", "opening", "generation"),
    [
        ("cloud_ar", OPENING, Generation()),
        ("cloud_sd", OPENING, Generation(speculative=True)),
        ("cloud_lookup", LOOKUP, Generation()),  # Open says it: no round trip is spent
    ],
)
def test_a_preset_that_leaves_all_to_the_cloud_asks_once_for_all(
    preset: str, opening: Open, generation: Generation
) -> None:
    robot = started(preset, opening=opening)
    play(robot, (1.0, OPENED, [Generate(BASE, generation)] if opening is OPENING else []))
    assert robot.deadline == 11.0
    assert said(robot, 1) == [Emit(0, (1,), True)]
    here = BASE.extend((1,))
    play(
        robot,
        (3.0, LinkLost("x")),
        (4.0, LinkUp(), [Resume("s", here)]),
        (5.0, Opened("s", b"", here), [Generate(here, generation)]),
    )


def test_a_verdict_that_overtook_the_opened_settles_after_it() -> None:
    robot = started("cloud_lookup", opening=LOOKUP)
    first, second = verdict(BASE, (), 1), verdict(BASE.extend((1,)), (), 2)
    both = [Emit(0, (1,), True), Emit(1, (2,), True)]
    play(robot, (0.5, first, []), (0.5, second, []), (1.0, OPENED, both))


def test_another_verifier_goes_on_alone_too() -> None:
    robot = started("cloud_lookup", opening=LOOKUP)
    play(robot, (1.0, OPENED))
    said(robot, 1)
    (again,) = sent(robot.handle(LinkUp(moved=True), 4.0))
    assert (again.verified, again.generation, again.lookup) == ((1,), Generation(), True)
    play(robot, (5.0, Opened("t", b"", BASE, PROTOCOL, 1), []))
    assert said(robot, 2) == [Emit(1, (2,), True)]


# A cloud that goes on alone from its own prefill, and the drafter that joins it.


def following(measures: Measures | None = None) -> Robot:
    """The prompt is made and not read yet; the cloud goes on alone."""
    opening = replace(OPENING, generation=Generation(), max_tokens=0)
    robot = Robot(opening, load_preset("auto"), 10.0, measures=measures or Measures())
    assert sent(robot.start(0.0, SPEC)) == [opening]
    play(robot, (0.0, PROMPT, []), (0.0, OPENED))  # nothing is asked: Open said it
    return robot


def known(hints_yield: int, draft_s: float = 0.005) -> Measures:
    """Of a robot that knows what the cloud yields alone, with hints so many times as much."""
    measures = Measures()
    measures.drafted(1, draft_s)
    measures.acceptance = Mean(0.9, 1e6)
    for _ in range(40):
        measures.verified(0, PASS_S, 0.001)
        measures.verified(16, PASS_S, 0.001)
        measures.generated(0, 1, PASS_S, hints=False)
        measures.generated(0, hints_yield, PASS_S, hints=True)
    return measures


def proposed(robot: Robot, *tokens: int) -> list[DraftMessage]:
    """The first branch that is wanted is finished: what is sent."""
    return sent(robot.handle(drafted(robot, tokens, tokens, seconds=0.01), 1.0))


def joining(measures: Measures) -> Robot:
    """A robot whose first draft is on its way to a server that generates."""
    robot = following(measures)
    assert robot.mode is Mode.LISTENING
    said(robot, 5, generated=True)
    play(robot, (0.0, Prefilled()))
    assert robot.mode is Mode.FOLLOWING
    (draft,) = proposed(robot, 7, 8)
    assert not draft.hint and draft.base == BASE.extend((5,)) and robot.mode is Mode.JOINING
    return robot


def test_a_robot_that_leads_lets_the_server_generate_where_drafting_pays_no_more() -> None:
    measures = known(1)
    robot = joining(measures)
    effects = said(robot, 6)
    assert robot.mode is Mode.LEADING
    measures.acceptance, measures.runner_up = Mean(0.01, 1e9), Mean(0.01, 1e9)
    now = 1.0
    while not any(isinstance(message, Generate) for message in sent(effects)):
        now += 1.0
        proposed(robot, 7, 8)
        effects = said(robot, 2, now=now)
    assert robot.mode is Mode.FOLLOWING


def test_who_leads_follows_from_what_was_sent_and_heard() -> None:
    """A robot joins the server, and leads once the server has judged a draft of its own.

    What was generated while the draft crossed it measures no pass.
    """
    measures = known(1)
    robot, passes = joining(measures), measures.server_pass.count
    said(robot, 6, generated=True)
    assert (robot.mode, measures.server_pass.count) == (Mode.JOINING, passes)
    assert proposed(robot, 9, 3)
    said(robot, 2)
    assert robot.mode is Mode.LEADING
    said(robot, 4, generated=True)
    assert robot.mode is Mode.JOINING and proposed(robot, 9, 3)


def test_a_silent_robot_drafts_a_token_now_and_then_and_sends_none() -> None:
    robot = following(known(1, draft_s=1.0))
    play(robot, (0.0, Prefilled()))
    sampled = []
    for token in range(1, 10):
        if robot.wanted:
            sampled.append(len(robot.tokens))
            assert proposed(robot, 7) == []
        said(robot, token)
    assert sampled == [0, 4, 8]


@pytest.mark.parametrize("leads", [False, True])
def test_a_verifier_that_goes_on_generates_unless_the_robot_leads(leads: bool) -> None:
    robot = joining(known(1)) if leads else following()
    if not leads:
        said(robot, 5)
    lost = Fault("unknown_session", "start again")
    again, *others = sent(robot.handle(lost, 1.0))
    assert (again.verified, again.generation) == ((5,), None if leads else Generation())
    assert [type(other) for other in others] == [DraftMessage if leads else Generate]


@pytest.mark.parametrize("generated", [False, True])
def test_rounds_end_with_a_sentence_where_a_verdict_is_on_no_request(generated: bool) -> None:
    """The prompt is made, nothing was asked for, and the verdict is complete in itself."""
    robot = started("dsd")
    play(robot, (0.0, OPENED), (0.0, PROMPT))
    assert robot.mode is Mode.READING
    close, end = said(robot, 5, generated=generated)
    assert (close, robot.finished, robot.tokens) == (Close(), True, [])
    assert isinstance(end, Finish) and end.reason == "out_of_turn"
    assert end.text.startswith("a verdict came on") and robot.stats.rounds == []


def test_what_is_said_before_the_session_is_known_or_the_prompt_is_read_is_emitted_at_once() -> (
    None
):
    robot = started("auto", opening=replace(OPENING, generation=Generation()))
    play(robot, (0.0, PROMPT, []))
    assert said(robot, 4) == [Emit(0, (4,), verified=True)]
    play(robot, (1.0, OPENED, []))
    assert said(robot, 2, 3) == [Emit(1, (2, 3), verified=True)]


def test_hints_are_tried_first_and_the_cloud_waits_for_none() -> None:
    measures = known(1)
    measures.server_yields = Measures().server_yields
    measures.generated(0, 1, PASS_S, hints=False)
    robot = following(measures)
    play(robot, (0.0, Prefilled()))
    (hint,) = proposed(robot, 7, 8)
    assert hint.hint and hint.base == BASE
    for token in range(1, HINTED):
        assert all(message.hint for message in sent(said(robot, token)))
    assert measures.server_yields[True].count > 0


def test_after_a_loss_the_session_is_resumed_and_the_server_asked_to_go_on() -> None:
    robot = following()
    play(robot, (3.0, LinkLost("x")), (4.0, LinkUp(), [Resume("s", BASE)]))
    asked = Generate(BASE, Generation(may_speculate=True))
    play(robot, (5.0, Opened("s", b"", BASE), [asked]))
    assert robot.deadline == 10.0  # as before: only an answer moves it


def test_hints_go_on_where_they_yield_more_than_a_robot_that_leads() -> None:
    robot = following(known(20))
    play(robot, (0.0, Prefilled()))
    again = drafted(robot, (7, 8), (7, 8))
    (hint,) = proposed(robot, 7, 8)
    assert hint.hint
    assert sent(robot.handle(again, 1.0)) == []  # once for a place


def test_a_hint_is_cut_where_its_next_level_would_miss_the_clouds_next_pass() -> None:
    """The cloud's passes begin at 0, 0.1, 0.2 s; a level takes 0.02 s, a way 0.0005 s."""
    sent_at = {}
    for now in (0.03, 0.07, 0.09, 0.13, 0.17, 0.19):
        robot = following(known(20))
        play(robot, (0.0, Prefilled()))
        said(robot, 5)
        step = drafted(robot, (8,), (7, 8) * 4, done=False, seconds=0.02)
        sent_at[now] = sent(robot.handle(step, now))
    assert [now for now, hints in sent_at.items() if hints] == [0.09, 0.19]
    assert all(hint.hint for hints in sent_at.values() for hint in hints)


def test_a_silent_robot_need_not_read_the_prompt() -> None:
    measures = known(1, draft_s=1.0)
    robot = following(measures)
    assert robot.width  # nothing is planned yet
    play(robot, (0.0, Prefilled()))
    said(robot, 1)
    later = following(measures)
    assert later.width == 0
    assert said(later, 1)[0] == Emit(0, (1,), verified=True)
