"""What a verdict settles, verdicts that settle nothing, those that come early, and predictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.edge_decoder import (
    BASE,
    OPENED,
    OPENING,
    PROMPT,
    SPEC,
    Robot,
    decoder,
    drafting,
    drafts,
    finish,
    sent,
    verdict,
    waiting,
    work,
)
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.propose import FinishedDraft
from edge_cloud_spec.decoding.shape import Branch, chain
from edge_cloud_spec.decoding.split import SparseResidual, Split
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.edge.answer import MAX_EARLY, EarlyVerdicts
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.events import (
    Drafted,
    Effect,
    Emit,
    LinkUp,
    PromptReady,
    Received,
    Send,
    Work,
)
from edge_cloud_spec.edge.rounds import Mode
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import (
    Close,
    DraftMessage,
    Generate,
    Generation,
    Opened,
    Prediction,
    Resume,
    RowMessage,
    RowRequest,
    Verdict,
    base_digest,
    spec_digest,
)


def test_a_verdict_settles_the_path_and_its_token_and_drafting_goes_on() -> None:
    robot = waiting()
    effects = robot.handle(verdict(BASE, (0, 1), 9, verify_s=0.5), 3.0)
    assert effects == [Emit(0, (3, 4, 9), True), work((3, 4, 9), chain(4))]
    (done,) = robot.stats.rounds
    assert (done.drafted, done.accepted, done.emitted, done.base) == (4, 2, 3, 0)
    assert (done.sent, done.settled, done.link_s) == (1.0, 3.0, 1.5)
    assert robot.stats.tested == 3


@pytest.mark.parametrize("path", [(1,), (0, 2), (0, 0), (4,), (0, 1, 2, 3, 4)])
def test_a_path_that_was_not_drafted_ends_the_decode_and_emits_nothing(path: tuple) -> None:
    robot = waiting()
    effects = robot.handle(Received(Verdict(BASE, path, 9)), 2.0)
    assert not [effect for effect in effects if isinstance(effect, Emit)]
    assert finish(effects).reason == "bad_verdict"
    assert sent(effects) == [Close()]


@pytest.mark.parametrize(("last", "fits"), [(2, True), (3, False)])
def test_a_verdict_settles_as_many_tokens_as_the_answer_has_room_for_and_none_of_more(
    last: int, fits: bool
) -> None:
    """A verifier that lies: its verdict is complete in itself, and says where it leads."""
    robot = decoder()
    robot.start(0.0, SPEC)
    robot.handle(OPENED, 0.0)
    robot.handle(replace(PROMPT, max_tokens=3), 0.0)
    path = tuple(range(last))
    drafted = (3, 4, 5)[:last]
    told = verdict(BASE, path, 9, drafted, tokens=drafted, drafted=last, generated=True)
    effects = robot.handle(told, 1.0)
    assert finish(effects).reason == ("length" if fits else "bad_verdict")
    assert robot.tokens == ([*drafted, 9] if fits else [])


@pytest.mark.parametrize("preset", ["cloud_ar", "cloud_sd", "cloud_lookup"])
@pytest.mark.parametrize(("said", "fits"), [(4, True), (5, False)])
def test_a_robot_that_does_not_draft_holds_its_own_limit(
    preset: str, said: int, fits: bool
) -> None:
    robot = Robot(replace(OPENING, max_tokens=4), load_preset(preset))
    robot.start(0.0)
    robot.handle(OPENED, 0.0)
    tokens = tuple(range(3, 3 + said))
    told = Verdict(
        BASE, tuple(range(said)), None, tokens=tokens, leads_to=BASE.extend(tokens).short
    )
    effects = robot.handle(Received(replace(told, generated=True)), 1.0)
    assert finish(effects).reason == ("length" if fits else "bad_verdict")
    assert robot.tokens == (list(tokens) if fits else [])


@pytest.mark.parametrize(("beyond", "fits"), [(-1, True), (0, False)])
def test_a_verdicts_token_is_one_of_the_vocabulary(beyond: int, fits: bool) -> None:
    robot = decoder()
    robot.start(0.0, SPEC)
    robot.handle(OPENED, 0.0)
    robot.handle(replace(PROMPT, vocabulary=100), 0.0)
    drafts(robot, (3, 4, 5, 6), 1.0)
    effects = robot.handle(verdict(BASE, (0,), 100 + beyond), 2.0)
    assert robot.tokens == ([3, 99] if fits else [])
    assert fits or finish(effects).reason == "bad_verdict"


def test_a_verdict_that_settles_nothing_and_ends_nothing_ends_the_decode() -> None:
    """The draft after it would be the same one: so it would go on for ever."""
    robot = waiting()
    assert finish(robot.handle(verdict(BASE, (), None), 2.0)).reason == "bad_verdict"


def test_a_verdict_that_leads_elsewhere_settles_nothing_and_the_robot_resumes() -> None:
    """It is on another draft than ours: the accepted tokens would be ours, not the target's."""
    robot = waiting()
    other = verdict(BASE, (0, 1), 9, draft=(3, 5))
    assert robot.handle(other, 2.0) == [Send(Resume("s", BASE))]
    assert (robot.tokens, robot.stats.diverged, robot.stats.rounds) == ([], 1, [])
    (again,) = sent(robot.handle(OPENED, 2.1))
    assert again.base == BASE
    told = verdict(BASE, (0, 1), 9, draft=(3, 5), tokens=(3, 5))
    assert robot.handle(told, 2.2)[0] == Emit(0, (3, 5, 9), True)


def test_a_verdict_that_does_not_say_where_it_leads_settles_nothing() -> None:
    robot = waiting()
    assert robot.handle(Received(Verdict(BASE, (0, 1), 9)), 2.0) == [Send(Resume("s", BASE))]
    assert robot.tokens == []


def test_verdicts_that_always_lead_elsewhere_end_the_decode() -> None:
    robot = waiting()
    other = verdict(BASE, (0, 1), 9, draft=(3, 5))
    while not robot.finished:
        effects = robot.handle(other, 2.0)
        assert not [effect for effect in effects if isinstance(effect, Emit)]
    assert finish(effects).reason == "diverged"
    assert robot.stats.diverged == 4
    assert sent(effects) == [Close()]


def splitting(
    residual: str = "dense", top_k: int = 0, tail: int = 0
) -> tuple[EdgeDecoder, PrefixDigest, TokenDistribution]:
    """A robot that resamples itself, its draft (3, 4) on its way, and the Q of both."""
    split = Split(residual, top_k, tail)
    opening = replace(
        OPENING, rule="rejection", payload="probabilities", policy=SamplingPolicy(1.0), split=split
    )
    base = base_digest(opening, b"prompt", spec_digest(SPEC))
    robot = EdgeDecoder(opening, load_preset("dssd_dense"))
    robot.start(0.0, SPEC)
    robot.handle(Received(Opened("s", b"", base)), 0.0)
    (wanted,) = robot.handle(PROMPT, 0.0)
    assert isinstance(wanted, Work)
    q = TokenDistribution(np.full(20, 0.05, np.float32))
    ours = Draft((3, 4), None, (q, q))
    (branch,) = wanted.branches
    finished = FinishedDraft(ours, (3, 4), 1, leaves=(((3, 4), 0.5),))
    robot.handle(Drafted(branch, (3, 4), finished, True), 0.0)
    return robot, base, q


@pytest.mark.parametrize(("token", "finish_"), [(9, ""), (None, "end")])
def test_what_is_settled_is_not_resampled(token: int | None, finish_: str) -> None:
    robot, base, q = splitting()
    both = verdict(base, (0,), token, finish=finish_, residual=q)
    effects = robot.handle(both, 1.0)
    assert finish(effects).reason == "bad_verdict"
    assert not [effect for effect in effects if isinstance(effect, Emit)]


@pytest.mark.parametrize("generated", [False, True])
def test_a_verdict_that_comes_twice_while_all_of_p_is_awaited_is_dropped(generated: bool) -> None:
    """It settled nothing but a rejection, so that it is at the verified prefix still."""
    robot, base, _ = splitting("sparse", 1, 1)
    residual = SparseResidual(np.array([0]), np.array([0.05]), 0.95, (7,), (0.05,))
    rejected = verdict(base, (), None, residual=residual, generated=generated)
    assert sent(robot.handle(rejected, 1.0)) == [RowRequest(base)]
    assert robot.mode is Mode.RESAMPLING
    assert robot.handle(rejected, 1.1) == []
    assert robot.stats.stale == 1
    p = TokenDistribution(np.array([0.05, *[0.0] * 18, 0.95], np.float32))
    effects = robot.handle(Received(RowMessage(base, p)), 1.2)
    assert effects[0] == Emit(0, (19,), True)
    assert robot.mode is Mode.LEADING


def test_a_verdict_said_again_about_another_draft_is_not_resampled_from_ours() -> None:
    robot, base, q = splitting()
    told = verdict(base, (0,), None, draft=(5,), tokens=(5,), residual=q)
    effects = robot.handle(told, 1.0)
    assert finish(effects).reason == "bad_verdict"
    assert not [effect for effect in effects if isinstance(effect, Emit)]


def test_a_verdict_on_a_draft_that_is_not_remembered_settles_nothing_and_is_asked_for_again() -> (
    None
):
    """It was pushed before the link broke; the verdict is said again, complete in itself."""
    robot = drafting()
    assert robot.handle(verdict(BASE, (0,), 9), 2.0) == [Send(Resume("s", BASE))]
    assert (robot.tokens, robot.stats.diverged) == ([], 1)
    assert robot.deadline == 12.0  # the cloud owes a reply


@pytest.mark.parametrize("robot", [drafting, waiting])
def test_a_verdict_that_is_complete_in_itself_settles_whatever_was_asked_for(robot) -> None:
    """The cloud went on alone, or judged what it looked up: its nodes are not ours."""
    robot = robot()
    told = verdict(BASE, (0, 2), 9, draft=(7, 8), tokens=(7, 8), drafted=5)
    assert robot.handle(told, 2.0) == [Emit(0, (7, 8, 9), True), work((7, 8, 9), chain(4))]
    (done,) = robot.stats.rounds
    assert (done.drafted, done.accepted, done.emitted) == (5, 2, 3)


def test_one_that_is_complete_and_leads_elsewhere_settles_nothing() -> None:
    robot = drafting()
    wrong = verdict(BASE, (0, 1), 9, draft=(7, 8), tokens=(7, 6))
    assert robot.handle(wrong, 2.0) == [Send(Resume("s", BASE))]
    assert (robot.tokens, robot.stats.diverged) == ([], 1)


def generating() -> EdgeDecoder:
    robot = decoder("cloud_sd")
    assert robot.start(0.0, SPEC) == [Send(OPENING)]
    assert sent(robot.handle(OPENED, 0.1)) == [Generate(BASE, Generation(True))]
    return robot


def test_verdicts_that_overtook_one_another_settle_in_order() -> None:
    robot = generating()
    second = BASE.extend((1, 2))
    third = second.extend((3,))
    early = verdict(third, (), 4)
    assert robot.handle(early, 1.0) == []
    assert robot.handle(early, 1.0) == []  # a second copy is stale
    assert robot.handle(verdict(second, (), 3), 1.0) == []
    effects = robot.handle(verdict(BASE, (0,), 2, (1,), tokens=(1,), drafted=4), 1.0)
    assert effects == [Emit(0, (1, 2), True), Emit(2, (3,), True), Emit(3, (4,), True)]
    assert robot.stats.stale == 1
    assert len(robot.stats.rounds) == 3


def test_an_early_verdict_of_one_verifier_is_not_taken_after_those_of_the_next() -> None:
    robot = generating()
    assert robot.handle(verdict(BASE.extend((1,)), (), 7), 1.0) == []
    robot.handle(LinkUp(moved=True), 2.0)
    robot.handle(Received(Opened("t", b"", BASE)), 3.0)
    robot.handle(verdict(BASE, (), 1), 4.0)
    assert robot.tokens == [1]


# Verdicts that overtook another one: kept until their turn, each once, never too many.

PLACE = PrefixDigest(0, 77)


def place(length: int, other: int = 0) -> PrefixDigest:
    return PrefixDigest(length, 1000 * length + other)


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 2), st.integers(0, 3)),
        max_size=60,
    )
)
def test_a_verdict_is_kept_for_its_place_until_the_answer_has_passed_it(
    steps: list[tuple[bool, int, int, int]],
) -> None:
    early, kept, here = EarlyVerdicts(), {}, 0
    for keeps, ahead, other, on in steps:
        if keeps:
            base = place(here + ahead, other)
            verdict = Verdict(base, (), ahead)
            assert early.keep(verdict, here) == (base not in kept)
            kept.setdefault(base, verdict)
        else:
            assert early.take(place(here, other)) is kept.pop(place(here, other), None)
            here += on
            kept = {base: each for base, each in kept.items() if base.length >= here}
            early.keep(Verdict(place(here + 99), (), 1), here)  # as one does that comes
            early.take(place(here + 99))


def test_so_many_are_kept_and_those_that_were_passed_make_room() -> None:
    early = EarlyVerdicts()
    for n in range(MAX_EARLY):
        assert early.keep(Verdict(place(3, n), (), 1), PLACE.length)
    assert not early.keep(Verdict(place(9), (), 1), PLACE.length)
    assert not early.keep(Verdict(place(9), (), 1), 3)  # not passed: one of them is next
    assert early.keep(Verdict(place(9), (), 1), 4)
    assert early.take(place(3, 1)) is None
    assert early.take(place(9)) is not None
    assert early.take(place(9)) is None


# What an early exit guesses is drafted after, for a preset that wants it, and nothing else.

TOKENS = (3, 4, 5, 6)


def whole(tokens: tuple[int, ...]) -> FinishedDraft:
    return FinishedDraft(Draft(tokens), tokens, len(tokens) - 1, leaves=((tokens, 0.5),))


def predicting(preset: str = "fsd") -> tuple[EdgeDecoder, list[Effect]]:
    """A robot whose first draft is on its way, and what it did then."""
    robot = EdgeDecoder(OPENING, load_preset(preset))
    robot.start(0.0, SPEC)
    robot.handle(Received(Opened("s", b"", BASE)), 0.0)
    (work,) = robot.handle(PromptReady(b"prompt", spec_digest(SPEC), (0,), 20), 0.0)
    assert isinstance(work, Work)
    return robot, robot.handle(Drafted(work.branches[0], TOKENS, whole(TOKENS)), 1.0)


def wanted(effects: list[Effect]) -> list[Branch]:
    return [branch for effect in effects if isinstance(effect, Work) for branch in effect.branches]


def test_a_guess_is_drafted_after_and_the_draft_goes_out_when_it_comes_true() -> None:
    robot, _ = predicting()
    effects = robot.handle(Received(Prediction(BASE, (0, 1), 9, 0.8)), 1.1)
    prediction = (*TOKENS[:2], 9)
    branch = next(branch for branch in wanted(effects) if branch.prefix == prediction)
    assert not any(isinstance(effect, (Emit, Send)) for effect in effects)
    assert robot.tokens == [] and robot.stats.predictions == 1
    sent = robot.handle(Drafted(branch, (7, 8), whole((7, 8))), 1.2)
    pushes = load_preset("fsd").speculation.push
    assert any(isinstance(effect, Send) for effect in sent) == pushes
    verdict = Verdict(BASE, (0, 1), 9, leads_to=BASE.extend(prediction).short)
    effects = robot.handle(Received(verdict), 2.0)
    assert effects[0] == Emit(0, prediction, True)
    if not pushes:
        (message,) = [a.message for a in effects if isinstance(a, Send)]
        assert isinstance(message, DraftMessage)
        assert (message.base, message.draft.tokens) == (BASE.extend(prediction), (7, 8))
    assert robot.measures.exits.total == 1.0


def test_a_guess_that_does_not_come_true_is_counted_and_forgotten() -> None:
    robot, _ = predicting()
    robot.handle(Received(Prediction(BASE, (), 9, 0.8)), 1.1)
    arrived = (*TOKENS[:1], 8)
    verdict = Verdict(BASE, (0,), 8, leads_to=BASE.extend(arrived).short)
    effects = robot.handle(Received(verdict), 2.0)
    assert all(branch.prefix[:2] == arrived for branch in wanted(effects))
    exits = robot.measures.exits
    assert (exits.total, exits.count) == (0.0, 1)


@pytest.mark.parametrize(
    "prediction",
    [
        Prediction(BASE, (1,), 9, 0.9),  # no path of the draft
        Prediction(BASE, (0, 4), 9, 0.9),
        Prediction(BASE, (0, 0), 9, 0.9),
    ],
)
def test_a_guess_off_the_draft_is_nothing(prediction: Prediction) -> None:
    robot, _ = predicting()
    assert robot.handle(Received(prediction), 1.1) == []
    assert (robot.stats.predictions, robot.stats.stale) == (0, 0)


def test_a_guess_at_nothing_that_was_sent_is_stale() -> None:
    robot = EdgeDecoder(OPENING, load_preset("fsd"))
    robot.start(0.0, SPEC)
    robot.handle(Received(Opened("s", b"", BASE)), 0.0)
    robot.handle(PromptReady(b"prompt", spec_digest(SPEC), (0,), 20), 0.0)
    assert robot.handle(Received(Prediction(BASE, (), 9, 0.9)), 0.1) == []
    assert (robot.stats.predictions, robot.stats.stale) == (0, 1)


@pytest.mark.parametrize("preset", ["dsd", "picospec", "specedge"])
def test_a_preset_without_exits_does_not_draft_after_them(preset: str) -> None:
    robot, _ = predicting(preset)
    assert not robot.measures.exits.count
    assert robot.handle(Received(Prediction(BASE, (0,), 9, 0.9)), 1.1) == []
    assert robot.stats.predictions == 0


def test_the_surer_guess_is_worked_on_first() -> None:
    robot, _ = predicting()
    robot.handle(Received(Prediction(BASE, (), 8, 0.3)), 1.1)
    both = wanted(robot.handle(Received(Prediction(BASE, (0,), 9, 0.7)), 1.2))
    places = [branch.prefix for branch in both]
    assert places.index((3, 9)) < places.index((8,))
    again = wanted(robot.handle(Received(Prediction(BASE, (), 8, 0.9)), 1.3))
    assert again[0].prefix == (8,)
