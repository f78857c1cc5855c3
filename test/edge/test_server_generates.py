"""A server that generates by itself: asked to, or from its own prefill until the robot joins it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.edge_decoder import BASE, OPENED, OPENING, PROMPT, SPEC, sent

from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.mean import Mean
from edge_cloud_spec.decoding.propose import FinishedDraft
from edge_cloud_spec.decoding.random_source import SeededRandomSource
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.draft_planner import DEFAULTS, HINTED
from edge_cloud_spec.edge.events import (
    Drafted,
    DrafterFailed,
    Effect,
    Emit,
    Finish,
    LinkLost,
    LinkUp,
    Prefilled,
    Received,
    Send,
    Work,
)
from edge_cloud_spec.edge.measures import DecodeStats, Measures
from edge_cloud_spec.edge.reply_deadline import ReplyDeadline
from edge_cloud_spec.edge.rounds import Mode, Rounds
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import (
    PROTOCOL,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Generation,
    Opened,
    Resume,
    Verdict,
)


def token_said(size: int, token: int) -> Received:
    """The target's next token, after ones, twos, ..."""
    base = BASE.extend(range(1, size + 1))
    there = base.extend((token,))
    return Received(Verdict(base, (), token, verify_s=0.1, leads_to=there.short))


@pytest.mark.parametrize(("preset", "own"), [("cloud_ar", False), ("cloud_sd", True)])
def test_a_preset_that_leaves_all_to_the_cloud_asks_once_for_all(preset: str, own: bool) -> None:
    robot = EdgeDecoder(OPENING, load_preset(preset), 10.0)
    assert sent(robot.start(0.0, SPEC)) == [OPENING]
    assert sent(robot.handle(OPENED, 1.0)) == [Generate(BASE, Generation(own))]
    for size in range(3):
        assert sent(robot.handle(token_said(size, size + 1), 2.0 + size)) == []
    robot.handle(LinkLost("x"), 6.0)
    here = BASE.extend((1, 2, 3))
    assert sent(robot.handle(LinkUp(), 7.0)) == [Resume("s", here)]
    again = sent(robot.handle(Received(Opened("s", b"", here)), 8.0))
    assert again == [Generate(here, Generation(own))]


def test_a_cloud_that_is_not_told_otherwise_has_ten_seconds() -> None:
    robot = EdgeDecoder(OPENING, load_preset("cloud_ar"))
    robot.start(5.0, SPEC)
    assert robot.deadline == 15.0


LOOKUP = replace(OPENING, generation=Generation(), lookup=True)


def test_a_robot_without_a_draft_model_spends_no_round_trip_before_the_first_verdict() -> None:
    robot = EdgeDecoder(LOOKUP, load_preset("cloud_lookup"), 10.0)
    assert sent(robot.start(0.0, SPEC)) == [LOOKUP]
    assert robot.handle(OPENED, 1.0) == []
    assert robot.deadline == 11.0
    assert robot.handle(token_said(0, 1), 2.0) == [Emit(0, (1,), True)]
    robot.handle(LinkLost("x"), 3.0)
    here = BASE.extend((1,))
    assert sent(robot.handle(LinkUp(), 4.0)) == [Resume("s", here)]
    assert sent(robot.handle(Received(Opened("s", b"", here, PROTOCOL)), 5.0)) == [
        Generate(here, Generation())
    ]


def test_a_verdict_that_overtook_the_opened_settles_after_it() -> None:
    robot = EdgeDecoder(LOOKUP, load_preset("cloud_lookup"), 10.0)
    robot.start(0.0, SPEC)
    assert robot.handle(token_said(0, 1), 0.5) == robot.handle(token_said(1, 2), 0.5) == []
    assert robot.handle(OPENED, 1.0) == [Emit(0, (1,), True), Emit(1, (2,), True)]


def test_another_verifier_goes_on_alone_too() -> None:
    robot = EdgeDecoder(LOOKUP, load_preset("cloud_lookup"), 10.0)
    robot.start(0.0, SPEC)
    robot.handle(OPENED, 1.0)
    robot.handle(token_said(0, 1), 2.0)
    (again,) = sent(robot.handle(LinkUp(moved=True), 4.0))
    assert (again.verified, again.generation, again.lookup) == ((1,), Generation(), True)
    there = Received(Opened("t", b"", BASE, PROTOCOL, 1))
    assert robot.handle(there, 5.0) == []
    assert robot.handle(token_said(1, 2), 6.0) == [Emit(1, (2,), True)]


# A cloud that goes on alone from its own prefill, and the drafter that joins it.

PASS_S = 0.1
READ = replace(PROMPT, prefilled=False)


def following(measures: Measures | None = None, event: Received = OPENED) -> EdgeDecoder:
    """The prompt is made and not read yet; the cloud goes on alone."""
    opening = replace(OPENING, generation=Generation(), max_tokens=0)
    robot = EdgeDecoder(opening, load_preset("auto"), 10.0, measures=measures or Measures())
    assert sent(robot.start(0.0, SPEC)) == [opening]
    assert robot.handle(READ, 0.0) == []  # nothing is asked: Open said it
    return robot


def said(robot: EdgeDecoder, *tokens: int) -> list[Effect]:
    """The cloud's next tokens, of a verdict that is complete in itself."""
    base = BASE.extend(robot.tokens)
    there = base.extend(tokens)
    path = tuple(range(len(tokens) - 1))
    verdict = Verdict(
        base, path, tokens[-1], tokens=tokens[:-1], verify_s=PASS_S, leads_to=there.short
    )
    return robot.handle(Received(verdict), PASS_S * len(robot.tokens))


def wanted(effects: list[Effect]) -> Work:
    (work,) = [effect for effect in effects if isinstance(effect, Work)]
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
        measures.generated(0, 1, PASS_S, hints=False)
        measures.generated(0, hints_yield, PASS_S, hints=True)
    return measures


def judged(
    robot: EdgeDecoder, token: int, *, generated: bool, now: float | None = None
) -> list[Effect]:
    """A verdict of one token, ``generated``: on what the server generated."""
    base = BASE.extend(robot.tokens)
    there = base.extend((token,))
    verdict = Verdict(base, (), token, verify_s=PASS_S, generated=generated, leads_to=there.short)
    return robot.handle(Received(verdict), PASS_S * len(robot.tokens) if now is None else now)


def joining(measures: Measures) -> EdgeDecoder:
    """A robot whose first draft is on its way to a server that generates."""
    robot = following(measures)
    robot.handle(OPENED, 0.0)
    judged(robot, 5, generated=True)
    assert drafted(robot, wanted(robot.handle(Prefilled(), 0.0)), (7, 8))
    assert robot.mode is Mode.JOINING
    return robot


def test_what_the_server_generated_while_a_draft_crossed_it_measures_no_pass() -> None:
    measures = known(1)
    robot = joining(measures)
    passes = measures.server_pass.count
    judged(robot, 6, generated=True)
    assert (robot.mode, measures.server_pass.count) == (Mode.JOINING, passes)


def test_a_robot_that_leads_lets_the_server_generate_where_drafting_pays_no_more() -> None:
    measures = known(1)
    robot = joining(measures)
    effects = judged(robot, 6, generated=False)
    assert robot.mode is Mode.LEADING
    measures.acceptance, measures.runner_up = Mean(0.01, 1e9), Mean(0.01, 1e9)
    now = 1.0
    while not any(isinstance(message, Generate) for message in sent(effects)):
        now += 1.0
        drafted(robot, wanted(effects), (7, 8))
        effects = judged(robot, 2, generated=False, now=now)
    assert robot.mode is Mode.FOLLOWING


def test_a_robot_whose_draft_model_fails_while_it_joins_leaves_the_server_to_generate() -> None:
    robot = joining(known(1))
    assert robot.handle(DrafterFailed("it is gone"), 1.0) == []  # a reply is due
    (asked,) = sent(judged(robot, 6, generated=True))
    assert isinstance(asked, Generate) and robot.mode is Mode.FOLLOWING


@pytest.mark.parametrize("mode", Mode)
def test_rounds_begin_anew_where_the_prompt_is_replaced(mode: Mode) -> None:
    preset, measures, stats = load_preset("auto"), Measures(), DecodeStats()
    source = SeededRandomSource(1)
    rounds = Rounds(OPENING, preset, source, measures, stats, ReplyDeadline(10.0), DEFAULTS)
    rounds.begin(BASE)
    rounds.mode = mode
    rounds.invalidate()
    assert (rounds.mode, rounds.request, rounds.answer.begun) == (Mode.READING, None, False)


def test_a_silent_robot_drafts_a_token_now_and_then_and_sends_none() -> None:
    robot = following(known(1, draft_s=1.0))
    robot.handle(OPENED, 0.0)
    effects, sampled = robot.handle(Prefilled(), 0.0), []
    for token in range(1, 10):
        if any(isinstance(effect, Work) and effect.branches for effect in effects):
            sampled.append(len(robot.tokens))
            assert drafted(robot, wanted(effects), (7,)) == []
        effects = said(robot, token)
    assert sampled == [0, 4, 8]


def test_who_leads_follows_from_what_was_sent_and_heard() -> None:
    """A robot joins the server, and leads once the server has judged a draft of its own."""
    measures = known(1)
    robot, modes = following(measures), []
    modes.append(robot.mode)
    robot.handle(OPENED, 0.0)
    judged(robot, 5, generated=True)
    modes.append(robot.mode)
    work = wanted(robot.handle(Prefilled(), 0.0))
    modes.append(robot.mode)
    assert drafted(robot, work, (7, 8))
    modes.append(robot.mode)
    draft = (9, 3)
    work = wanted(judged(robot, 6, generated=True))
    modes.append(robot.mode)
    assert drafted(robot, work, draft)
    judged(robot, 2, generated=False)
    modes.append(robot.mode)
    judged(robot, 4, generated=True)
    modes.append(robot.mode)
    assert modes == [
        Mode.LISTENING,
        Mode.LISTENING,
        Mode.FOLLOWING,
        Mode.JOINING,
        Mode.JOINING,
        Mode.LEADING,
        Mode.JOINING,
    ]


def test_a_verifier_that_goes_on_generates_unless_the_robot_leads() -> None:
    lost = Received(Fault("unknown_session", "start again"))
    for leads in (False, True):
        robot = following(known(1))
        robot.handle(OPENED, 0.0)
        judged(robot, 5, generated=True)
        work = wanted(robot.handle(Prefilled(), 0.0))
        if leads:
            assert drafted(robot, work, (7, 8))
        again, *others = sent(robot.handle(lost, 1.0))
        assert (again.verified, again.generation) == ((5,), None if leads else Generation())
        assert [type(other) for other in others] == [DraftMessage if leads else Generate]


@pytest.mark.parametrize("generated", [False, True])
def test_rounds_end_with_a_sentence_where_a_verdict_is_on_no_request(generated: bool) -> None:
    """The prompt is made, nothing was asked for, and the verdict is complete in itself."""
    robot = EdgeDecoder(OPENING, load_preset("dsd"))
    robot.start(0.0, SPEC)
    robot.handle(OPENED, 0.0)
    assert robot.handle(READ, 0.0) == [] and robot.mode is Mode.READING
    said = Verdict(BASE, (), 5, leads_to=BASE.extend((5,)).short, generated=generated)
    close, end = robot.handle(Received(said), 1.0)
    assert (close, robot.finished, robot.tokens) == (Send(Close()), True, [])
    assert isinstance(end, Finish) and end.reason == "out_of_turn"
    assert end.text.startswith("a verdict came on") and robot.stats.rounds == []


def test_what_is_said_while_the_draft_model_reads_its_prompt_is_emitted_at_once() -> None:
    robot = following()
    robot.handle(OPENED, 0.0)
    assert said(robot, 1) == [Emit(0, (1,), verified=True)]
    assert said(robot, 2, 3) == [Emit(1, (2, 3), verified=True)]
    assert robot.tokens == [1, 2, 3]


def test_what_is_said_before_the_session_is_known_is_emitted_too() -> None:
    robot = following()
    assert said(robot, 4) == [Emit(0, (4,), verified=True)]
    assert robot.handle(OPENED, 1.0) == []


def test_hints_are_tried_first_and_the_cloud_waits_for_none() -> None:
    measures = known(1)
    measures.server_yields = Measures().server_yields
    measures.generated(0, 1, PASS_S, hints=False)
    robot = following(measures)
    robot.handle(OPENED, 0.0)
    (hint,) = drafted(robot, wanted(robot.handle(Prefilled(), 0.0)), (7, 8))
    assert hint.hint and hint.base == BASE
    for token in range(1, HINTED):
        effects = said(robot, token)
        assert all(message.hint for message in sent(effects))
    assert measures.server_yields[True].count > 0


def test_after_a_loss_the_session_is_resumed_and_the_server_asked_to_go_on() -> None:
    robot = following()
    robot.handle(OPENED, 1.0)
    assert robot.deadline == 11.0  # a verdict is owed
    assert said(robot, 1) == [Emit(0, (1,), verified=True)]
    robot.handle(LinkLost("x"), 3.0)
    here = BASE.extend((1,))
    assert sent(robot.handle(LinkUp(), 4.0)) == [Resume("s", here)]
    asked = Generate(here, Generation(may_speculate=True))
    assert sent(robot.handle(Received(Opened("s", b"", here)), 5.0)) == [asked]
    assert robot.deadline == 10.0  # as before: only an answer moves it


def test_a_draft_of_a_robot_that_leads_is_no_hint() -> None:
    robot = following(known(1))
    robot.handle(OPENED, 0.0)
    said(robot, 5)
    (draft,) = drafted(robot, wanted(robot.handle(Prefilled(), 0.0)), (7, 8))
    assert not draft.hint and draft.base == BASE.extend((5,))
    # the pass under way is of the cloud alone: it settles what the draft was for
    assert Emit(1, (9,), verified=True) in said(robot, 9)
    assert robot.tokens == [5, 9]


def test_hints_go_on_where_they_yield_more_than_a_robot_that_leads() -> None:
    robot = following(known(20))
    robot.handle(OPENED, 0.0)
    work = wanted(robot.handle(Prefilled(), 0.0))
    (hint,) = drafted(robot, work, (7, 8))
    assert hint.hint
    assert drafted(robot, work, (7, 8)) == []  # once for a place


def test_a_hint_is_cut_where_its_next_level_would_miss_the_clouds_next_pass() -> None:
    """The cloud's passes begin at 0, 0.1, 0.2 s; a level takes 0.02 s, a way 0.0005 s."""
    sent_at = {}
    for now in (0.03, 0.07, 0.09, 0.13, 0.17, 0.19):
        robot = following(known(20))
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
    robot = following(measures)
    robot.handle(OPENED, 0.0)
    assert robot.width  # nothing is planned yet
    robot.handle(Prefilled(), 0.0)
    assert said(robot, 1)[0] == Emit(0, (1,), verified=True)
    later = following(measures)
    assert later.width == 0
    assert said(later, 1)[0] == Emit(0, (1,), verified=True)
