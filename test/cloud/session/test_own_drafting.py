"""A cloud that goes on alone lets its own draft model draft where that is measured to pay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from helpers.cloud.verification import BASE, cloud_of, draft, play, says
from helpers.cloud.worker_robot import OWN, Costly, Robot, do_all, opening
from helpers.cloud.worker_robot import cloud as cloud_with

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.cloud.session.drafts import (
    AGAIN,
    EMPTY,
    FEW,
    OWN_TOKENS,
    OwnDrafting,
    ScoredDraft,
)
from edge_cloud_spec.cloud.session.events import Propose, Proposed, Score
from edge_cloud_spec.cloud.session.verification import Verification
from edge_cloud_spec.decoding.draft import MAX_PUSHED, Draft
from edge_cloud_spec.wire.messages import Close, Fault, Generate, Generation, Resume, Verdict

DRAFTED = ScoredDraft(Draft((1, 2)), given=2, source="cloud")
LOOKED_UP = ScoredDraft(Draft((1, 2), looked_up=2))
BARE = ScoredDraft(EMPTY)
MAY = Generation(may_speculate=True)


def measured(
    drafted: int, looked_up: int, bare: int = 1, others_wait: Callable[[], bool] = lambda: False
) -> OwnDrafting:
    """Tokens of passes of a second each, by source."""
    own = OwnDrafting(others_wait)
    for _ in range(FEW):
        own.judged(DRAFTED, drafted, 1.0)
        own.judged(LOOKED_UP, looked_up, 1.0)
        own.judged(BARE, bare, 1.0)
    return own


def begun(how: Generation, own: OwnDrafting | None = None) -> Verification:
    """A session whose first pass is under way: there the prompt gives the row."""
    cloud = cloud_of(None, own=own or measured(3, 1))
    assert cloud.handle(Generate(BASE, how)) == [Score(EMPTY)]
    return cloud


def test_it_is_tried_once_it_is_known_what_passes_give_without_it() -> None:
    own = OwnDrafting()
    for _ in range(FEW):
        assert not own.choose(0)
        own.judged(BARE, 1, 1.0)
    assert own.choose(0)
    assert not own.choose(2)  # nothing that was looked up has been judged


@pytest.mark.parametrize("looked_up", [0, 2])
def test_the_better_source_drafts_and_the_other_is_tried_again(looked_up: int) -> None:
    for drafted, others in ((3, 2), (2, 3)):
        own = measured(drafted, others, others)
        better = drafted > others
        chosen = [own.choose(looked_up) for _ in range(3 * AGAIN)]
        assert chosen.count(not better) == 3
        assert chosen[AGAIN - 1] is not better


def test_drafting_that_takes_long_does_not_pay() -> None:
    own = measured(0, 2, 1)
    for _ in range(100):
        own.judged(DRAFTED, 4, 5.0)
    assert not own.choose(0)


PROPOSES = says(1), Propose((1,), OWN_TOKENS, needed=False)
# How a server generates, and what then follows; by the promise.
SCRIPTS: dict[str, tuple[Generation, list[tuple[Any, ...]]]] = {
    "it drafts where its robot allows that": (MAY, [PROPOSES]),
    "it does not where its robot does not": (Generation(), [(says(1), ())]),
    "what it drafted is scored and judged": (
        MAY,
        [
            PROPOSES,
            (Proposed(Draft((1, 2, 3)), 0.3), (1, 2, 3)),
            (
                says(1, 2, 5, 0),
                Propose((1, 1, 2, 5), OWN_TOKENS, needed=False),
                {"tokens": (1, 2), "token": 5, "draft_s": 0.3},
            ),
        ],
    ),
    "where it fails the answer goes on without it, and it is not asked again": (
        MAY,
        [PROPOSES, (Proposed(EMPTY, failed=True), ()), *((says(token), ()) for token in (1, 2, 3))],
    ),
    "what is left of a hint for an earlier place is scored in its stead": (
        MAY,
        [
            PROPOSES,
            (replace(draft(1, 2, 3), hint=True), None),
            (Proposed(Draft((5, 5))), (2, 3)),
        ],
    ),
    "where it was in the way it is asked again": (
        MAY,
        [
            PROPOSES,
            (Proposed(EMPTY), ()),
            (says(2), Propose((1, 2), OWN_TOKENS, needed=False)),
        ],
    ),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_session_with_a_draft_model_of_its_own(
    script: tuple[Generation, list[tuple[Any, ...]]],
) -> None:
    how, steps = script
    play(begun(how), *steps)


def test_what_is_in_the_way_of_others_is_no_choice() -> None:
    waits = [False]
    own = measured(3, 1, others_wait=lambda: waits[0])
    assert own.choose(0)
    waits[0] = True
    assert not any(own.choose(0) for _ in range(2 * AGAIN))


@pytest.mark.parametrize("before", ["late", "hint", "pushes", "pause"])
def test_no_draft_that_waits_is_in_the_way_of_the_one_that_leads(before: str) -> None:
    """The proposal that waits is not either: its job finds that nobody waits for it."""
    cloud = begun(MAY)
    play(cloud, PROPOSES)
    message = draft(4, 5, base=cloud.digest)
    if before == "late":  # sent before the robot heard of the first token
        play(cloud, (draft(7, 7), None))
    elif before == "pushes":
        for token in range(MAX_PUSHED):
            play(cloud, (draft(1, base=cloud.digest.extend((token,))), None))
    else:
        play(cloud, (replace(message, hint=True), None))
    if before == "pause":  # the stream was lost; the robot drafts again
        cloud.pause()
        cloud.handle(Resume("", cloud.digest))
    assert cloud.handle(message) == [Score(message.draft)]
    assert cloud.proposing is None


def heard(robot: Robot) -> list[int]:
    words: list[int] = []
    for message in robot.heard:
        assert not isinstance(message, Fault)
        if isinstance(message, Verdict):
            words += [*message.tokens, *([] if message.token is None else [message.token])]
    return words


@pytest.mark.parametrize("pays", [True, False])
def test_answers_are_the_targets_own_and_take_fewer_passes_where_that_pays(
    pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spend(self: Costly, rows: int) -> None:
        self.now += 1.0 if pays else rows

    monkeypatch.setattr(Costly, "spend", spend)
    worker = cloud_with()
    for nonce in range(4):
        robot = Robot(worker).open(nonce)
        before = worker.counters.verdicts
        robot.ask(Generate(robot.base, MAY))
        assert tuple(heard(robot)) == OWN
    passes = worker.counters.verdicts - before  # of the last one
    accepted = worker.counters.answers.accepted
    assert accepted["cloud"] > 0 and not (accepted["robot"] or accepted["grammar"])
    assert passes < len(OWN) / 1.5 if pays else passes > len(OWN) * 0.9


@pytest.mark.parametrize("robots", [1, 8])
def test_robots_that_wait_for_one_anothers_drafts_are_not_slower_for_them(
    robots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass takes a second, whoever is in it; the draft model drafts for one after another."""

    def spend(self: Costly, rows: int) -> None:
        self.now += 1.0

    monkeypatch.setattr(Costly, "spend", spend)
    seconds = {}
    for how in (Generation(), MAY):
        worker = cloud_with(passes_per_robot=32)
        target = worker._models.target
        monkeypatch.setattr(worker._models._drafter, "spend", partial(wait, target, 0.1))
        for nonce in range(5):
            fleet = [Robot(worker).open(100 * nonce + one) for one in range(robots)]
            began = target.now
            for robot in fleet:
                robot.say(Generate(robot.base, how))
            do_all(worker)
            seconds[how] = target.now - began
            for robot in fleet:
                assert tuple(heard(robot)) == OWN
                robot.say(Close())
            do_all(worker)
    assert seconds[MAY] < (0.5 if robots == 1 else 1.02) * seconds[Generation()]


def wait(target: Costly, seconds: float, rows: int) -> None:
    target.now += seconds


def test_a_draft_model_that_breaks_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Worker = cloud_with()
    asked = []

    def breaks(*given: object) -> None:
        asked.append(given)
        raise MemoryError("none left")

    monkeypatch.setattr(worker._models, "propose", breaks)
    for nonce in range(3):
        robot = Robot(worker).open(nonce)
        robot.ask(Generate(robot.base, MAY))
        assert tuple(heard(robot)) == OWN
    assert 0 < len(asked) <= 3  # once an answer


def test_a_lost_session_is_drafted_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = cloud_with()
    asked = []

    def breaks(*given: object) -> None:
        raise RuntimeError("the prompt cannot be read")

    monkeypatch.setattr(worker._models.target, "prefill", breaks)
    monkeypatch.setattr(worker._models, "propose", lambda *given: asked.append(given))
    robot = Robot(worker)
    robot.ask(opening(1, generation=Generation(speculative=True)))
    assert robot.count(Fault) == 1 and not asked
