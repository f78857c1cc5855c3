"""What a verdict settles, verdicts that settle nothing, those that come early, and predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.edge_decoder import (
    BASE,
    OPENED,
    OPENING,
    PROMPT,
    SPEC,
    Robot,
    begun,
    drafted,
    play,
    sent,
    started,
    verdict,
    waiting,
    work,
)

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.propose import FinishedDraft
from edge_cloud_spec.decoding.shape import chain
from edge_cloud_spec.decoding.split import SparseResidual, Split
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.edge.events import Drafted, Emit, LinkUp, Received, Send
from edge_cloud_spec.edge.rounds import MAX_EARLY, Mode
from edge_cloud_spec.wire.messages import (
    Close,
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
    settles = [Emit(0, (3, 4, 9), True), work((3, 4, 9), chain(4))]
    play(robot, (3.0, verdict(BASE, (0, 1), 9, verify_s=0.5), settles))
    (done,) = robot.stats.rounds
    assert (done.drafted, done.accepted, done.emitted, done.base) == (4, 2, 3, 0)
    assert (done.sent, done.settled, done.link_s) == (1.0, 3.0, 1.5)
    assert robot.stats.tested == 3


@pytest.mark.parametrize("path", [(1,), (0, 2), (0, 0), (4,), (0, 1, 2, 3, 4)])
def test_a_path_that_was_not_drafted_ends_the_decode_and_emits_nothing(path: tuple) -> None:
    robot = waiting()
    effects = play(robot, (2.0, Received(Verdict(BASE, path, 9)), "bad_verdict"))
    assert effects[0] == Send(Close()) and robot.tokens == []


@pytest.mark.parametrize("preset", ["dsd", "cloud_ar", "cloud_sd", "cloud_lookup"])
@pytest.mark.parametrize(("last", "fits"), [(2, True), (3, False)])
def test_a_verdict_settles_as_many_tokens_as_the_answer_has_room_for_and_none_of_more(
    preset: str, last: int, fits: bool
) -> None:
    """A verifier that lies: its verdict is complete in itself, and says where it leads.

    The limit is the prompt's for a robot that drafts, else its own.
    """
    robot = begun(preset, replace(PROMPT, max_tokens=3), replace(OPENING, max_tokens=3))
    said = (3, 4, 5)[:last]
    told = verdict(BASE, tuple(range(last)), 9, said, tokens=said, drafted=last, generated=True)
    play(robot, (1.0, told, "length" if fits else "bad_verdict"))
    assert robot.tokens == ([*said, 9] if fits else [])


ELSEWHERE = verdict(BASE, (0, 1), 9, draft=(3, 5))


@pytest.mark.parametrize(
    ("robot", "told"),
    [
        # On another draft than ours: the accepted tokens would be ours, not the target's.
        (waiting, ELSEWHERE),
        (waiting, Received(Verdict(BASE, (0, 1), 9))),  # it does not say where it leads
        # On a draft that was pushed before the link broke, and is not remembered.
        (begun, verdict(BASE, (0,), 9)),
        (begun, verdict(BASE, (0, 1), 9, draft=(7, 8), tokens=(7, 6))),
    ],
)
def test_a_verdict_that_leads_elsewhere_settles_nothing_and_the_robot_resumes(
    robot: Callable[[], Robot], told: Received
) -> None:
    """It is said again, complete in itself."""
    one, again = robot(), [(BASE, (3, 4, 5, 6))] if robot is waiting else []
    play(one, (2.0, told, [Send(Resume("s", BASE))]))
    assert (one.tokens, one.stats.diverged, one.stats.rounds) == ([], 1, [])
    assert one.deadline == (11.0 if again else 12.0)  # the cloud owes a reply
    whole = verdict(BASE, (0, 1), 9, draft=(3, 5), tokens=(3, 5))
    play(one, (2.1, OPENED, again), (2.2, whole))
    assert one.tokens == [3, 5, 9]


def test_verdicts_that_always_lead_elsewhere_end_the_decode() -> None:
    robot = waiting()
    play(robot, *[(2.0, ELSEWHERE, [Resume("s", BASE)])] * 3)
    effects = play(robot, (2.0, ELSEWHERE, "diverged"))
    assert sent(effects) == [Close()] and robot.tokens == []


def splitting(
    residual: str = "dense", top_k: int = 0, tail: int = 0
) -> tuple[Robot, PrefixDigest, TokenDistribution]:
    """A robot that resamples itself, its draft (3, 4) on its way, and the Q of both."""
    split = Split(residual, top_k, tail)
    opening = replace(
        OPENING, rule="rejection", payload="probabilities", policy=SamplingPolicy(1.0), split=split
    )
    base = base_digest(opening, b"prompt", spec_digest(SPEC))
    robot = started("dssd_dense", opening=opening)
    play(robot, (0.0, Received(Opened("s", b"", base))), (0.0, PROMPT))
    q = TokenDistribution(np.full(20, 0.05, np.float32))
    finished = FinishedDraft(Draft((3, 4), None, (q, q)), (3, 4), 1, leaves=(((3, 4), 0.5),))
    play(robot, (0.0, Drafted(robot.wanted[0], (3, 4), finished, True)))
    return robot, base, q


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": 9},  # it is settled
        {"token": None, "finish": "end"},
        {"token": None, "draft": (5,), "tokens": (5,)},  # said again, about another draft
    ],
)
def test_what_is_settled_or_not_ours_is_not_resampled(wrong: dict[str, Any]) -> None:
    robot, base, q = splitting()
    play(robot, (1.0, verdict(base, (0,), residual=q, **wrong), "bad_verdict"))
    assert robot.tokens == []


@pytest.mark.parametrize("generated", [False, True])
def test_a_verdict_that_comes_twice_while_all_of_p_is_awaited_is_dropped(generated: bool) -> None:
    """It settled nothing but a rejection, so that it is at the verified prefix still."""
    robot, base, _ = splitting("sparse", 1, 1)
    residual = SparseResidual(np.array([0]), np.array([0.05]), 0.95, (7,), (0.05,))
    rejected = verdict(base, (), None, residual=residual, generated=generated)
    play(robot, (1.0, rejected, [RowRequest(base)]))
    assert robot.mode is Mode.RESAMPLING
    play(robot, (1.1, rejected, []))
    assert robot.stats.stale == 1
    p = TokenDistribution(np.array([0.05, *[0.0] * 18, 0.95], np.float32))
    assert play(robot, (1.2, Received(RowMessage(base, p))))[0] == Emit(0, (19,), True)
    assert robot.mode is Mode.LEADING


@pytest.mark.parametrize("robot", [begun, waiting])
def test_a_verdict_that_is_complete_in_itself_settles_whatever_was_asked_for(robot) -> None:
    """The cloud went on alone, or judged what it looked up: its nodes are not ours."""
    robot = robot()
    told = verdict(BASE, (0, 2), 9, draft=(7, 8), tokens=(7, 8), drafted=5)
    play(robot, (2.0, told, [Emit(0, (7, 8, 9), True), work((7, 8, 9), chain(4))]))
    (done,) = robot.stats.rounds
    assert (done.drafted, done.accepted, done.emitted) == (5, 2, 3)


# Verdicts that overtook another one: kept until their turn, each once, never too many.


def generating() -> Robot:
    robot = started("cloud_sd")
    play(robot, (0.1, OPENED, [Generate(BASE, Generation(True))]))
    return robot


def test_verdicts_that_overtook_one_another_settle_in_order() -> None:
    robot = generating()
    second = BASE.extend((1, 2))
    early = verdict(second.extend((3,)), (), 4)
    play(
        robot,
        (1.0, early, []),
        (1.0, early, []),  # a second copy is stale
        (1.0, verdict(second, (), 3), []),
        (
            1.0,
            verdict(BASE, (0,), 2, (1,), tokens=(1,), drafted=4),
            [Emit(0, (1, 2), True), Emit(2, (3,), True), Emit(3, (4,), True)],
        ),
    )
    assert (robot.stats.stale, len(robot.stats.rounds)) == (1, 3)


def test_an_early_verdict_of_one_verifier_is_not_taken_after_those_of_the_next() -> None:
    robot = generating()
    play(
        robot,
        (1.0, verdict(BASE.extend((1,)), (), 7), []),
        (2.0, LinkUp(moved=True)),
        (3.0, Received(Opened("t", b"", BASE))),
        (4.0, verdict(BASE, (), 1)),
    )
    assert robot.tokens == [1]


def test_so_many_are_kept_and_those_that_were_passed_make_room() -> None:
    robot, last = generating(), verdict(PrefixDigest(9, 9), (), 1)
    early = [verdict(PrefixDigest(3, number), (), 1) for number in range(MAX_EARLY)]
    play(robot, *((1.0, told, []) for told in early))
    assert robot.stats.stale == 0
    whole = verdict(BASE, (0, 1), 3, draft=(1, 2), tokens=(1, 2))
    # At their length one of them is next.
    play(robot, (1.1, last, []), (1.2, whole), (1.3, last, []))
    assert robot.stats.stale == 2
    play(robot, (1.4, verdict(BASE.extend((1, 2, 3)), (), 4)), (1.5, last, []))
    assert robot.stats.stale == 2


# What an early exit guesses is drafted after, for a preset that wants it, and nothing else.

DRAFT = (3, 4, 5, 6)


def predicting(preset: str = "fsd") -> Robot:
    """A robot whose first draft is on its way."""
    robot = begun(preset)
    play(robot, (1.0, drafted(robot, DRAFT, DRAFT), [(BASE, DRAFT)]))
    return robot


def guess(path: tuple[int, ...], token: int = 9, confidence: float = 0.8) -> Received:
    return Received(Prediction(BASE, path, token, confidence))


def test_a_guess_is_drafted_after_and_the_draft_goes_out_when_it_comes_true() -> None:
    robot = predicting()
    assert sent(play(robot, (1.1, guess((0, 1))))) == []
    assert robot.tokens == [] and robot.stats.predictions == 1
    guessed = (3, 4, 9)
    effects = play(
        robot,
        (1.2, drafted(robot, (7, 8), (7, 8), prefix=guessed)),
        (2.0, verdict(BASE, (0, 1), 9), [(BASE.extend(guessed), (7, 8))]),
    )
    assert effects[0] == Emit(0, guessed, True)
    assert robot.measures.exits.total == 1.0


def test_a_guess_that_does_not_come_true_is_counted_and_forgotten() -> None:
    robot = predicting()
    play(robot, (1.1, guess(())), (2.0, verdict(BASE, (0,), 8)))
    assert all(branch.prefix[:2] == (3, 8) for branch in robot.wanted)
    exits = robot.measures.exits
    assert (exits.total, exits.count) == (0.0, 1)


@pytest.mark.parametrize(
    ("preset", "path"),
    [
        *(("fsd", path) for path in ((1,), (0, 4), (0, 0))),  # no path of the draft
        *((preset, (0,)) for preset in ("dsd", "picospec", "specedge")),  # without exits
    ],
)
def test_a_guess_off_the_draft_or_not_asked_for_is_nothing(
    preset: str, path: tuple[int, ...]
) -> None:
    robot = predicting(preset)
    play(robot, (1.1, guess(path), []))
    assert (robot.stats.predictions, robot.stats.stale) == (0, 0)


def test_a_guess_at_nothing_that_was_sent_is_stale() -> None:
    robot = begun("fsd")
    play(robot, (0.1, guess(()), []))
    assert (robot.stats.predictions, robot.stats.stale) == (0, 1)


def test_the_surer_guess_is_worked_on_first() -> None:
    robot = predicting()
    play(robot, (1.1, guess((), 8, 0.3)), (1.2, guess((0,), 9, 0.7)))
    places = [branch.prefix for branch in robot.wanted]
    assert places.index((3, 9)) < places.index((8,))
    play(robot, (1.3, guess((), 8, 0.9)))
    assert robot.wanted[0].prefix == (8,)
