"""A cloud that goes on alone lets its own draft model draft where that is measured to pay."""

from __future__ import annotations

from functools import partial, partialmethod
from typing import Any
from unittest.mock import Mock

import pytest
from helpers.cloud.verification import (
    BARE,
    BASE,
    DRAFTED,
    measured,
)
from helpers.cloud.worker_robot import OWN, Costly, Robot, do_all, opening
from helpers.cloud.worker_robot import cloud as cloud_with

from edge_cloud_spec.cloud.model_thread.worker import Worker
from edge_cloud_spec.cloud.session.drafts import (
    LEAST_PASSES,
    RETRIAL_CHOICES,
    ServerDrafting,
)
from edge_cloud_spec.cloud.session.events import DuePass
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.wire.messages import (
    Close,
    Fault,
    Generate,
    Generation,
)

MAY = Generation(may_speculate=True)
HERE = BASE.extend((1,))


def test_it_is_tried_at_once_and_then_what_passes_give_without_it() -> None:
    drafting = ServerDrafting()
    for _ in range(LEAST_PASSES):
        assert drafting.choose(0) and drafting.choose(2)
        drafting.report(DRAFTED, 3, 1.0)
    for _ in range(LEAST_PASSES):
        assert not drafting.choose(0)
        drafting.report(BARE, 1, 1.0)
    assert drafting.choose(0)
    assert not drafting.choose(2)  # nothing that was looked up has been judged


def test_few_passes_of_bad_luck_are_no_verdict() -> None:
    drafting = ServerDrafting()
    for tokens in (1, 1, 4, 1):  # a mean of 1.75, which may well be 2.5
        drafting.report(DRAFTED, tokens, 2.0)
        drafting.report(BARE, 1, 1.0)
    assert drafting.choose(0)
    for _ in range(40):
        drafting.report(DRAFTED, 1, 2.0)
    assert not drafting.choose(0)


@pytest.mark.parametrize("looked_up", [0, 2])
def test_the_better_source_drafts_and_the_other_is_tried_again(looked_up: int) -> None:
    for drafted, others in ((3, 2), (2, 3)):
        drafting = measured(drafted, others, others)
        better = drafted > others
        chosen = [drafting.choose(looked_up) for _ in range(3 * RETRIAL_CHOICES)]
        assert chosen.count(not better) == 3
        assert chosen[RETRIAL_CHOICES - 1] is not better


def test_what_is_in_the_way_of_others_is_no_choice() -> None:
    waits = [False]
    drafting = measured(3, 1, others_wait=lambda: waits[0])
    assert drafting.choose(0)
    waits[0] = True
    assert not any(drafting.choose(0) for _ in range(2 * RETRIAL_CHOICES))


@pytest.mark.parametrize("token_s", [0.010, 0.001])
def test_a_head_that_says_what_the_robot_says_soon_drafts_no_more(token_s: float) -> None:
    """Its time counts though nothing of it is added, and it gains nothing."""
    drafting, asked = ServerDrafting(), []
    for _ in range(300):
        asked.append(drafting.beside(5, lambda rows: 0.030 + 0.0005 * rows))
        due = DuePass(Draft((1, 2, 3, 4)), 4, drafted=asked[-1], draft_s=token_s * asked[-1])
        drafting.report_beside(due, (0, 1, 2, 3), 5)
    assert asked[0] > 0 and not any(asked[50:])


def test_a_head_drafts_beside_where_what_it_adds_after_the_robots_tokens_is_right() -> None:
    """Of its four tokens the robot has the first two, and the others are accepted."""
    drafting = ServerDrafting()
    for _ in range(300):
        assert drafting.beside(3, lambda rows: 0.030 + 0.0005 * rows) == 4
        due = DuePass(Draft((1, 2, 3, 4)), 2, beside=2, drafted=4, draft_s=0.004)
        drafting.report_beside(due, (0, 1, 2, 3), 5)


@pytest.mark.parametrize("pays", [True, False])
def test_answers_are_the_targets_own_and_take_fewer_passes_where_that_pays(
    pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Costly, "spend", lambda model, rows: wait(model, 1.0 if pays else rows))
    worker = cloud_with()
    for nonce in range(4):
        robot = Robot(worker).open(nonce)
        before = worker.counters.verdicts
        robot.ask(Generate(robot.base, MAY))
        assert robot.said == OWN and not robot.count(Fault)
    passes = worker.counters.verdicts - before  # of the last one
    accepted = worker.counters.answers.accepted
    assert accepted["cloud"] > 0 and not (accepted["robot"] or accepted["grammar"])
    assert passes < len(OWN) / 1.5 if pays else passes > len(OWN) * 0.9


@pytest.mark.parametrize("robots", [1, 8])
def test_robots_that_wait_for_one_anothers_drafts_are_not_slower_for_them(
    robots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass takes a second, whoever is in it; the draft model drafts for one after another."""
    monkeypatch.setattr(Costly, "spend", partialmethod(wait, 1.0))
    seconds = {}
    for how in (Generation(), MAY):
        worker = cloud_with(passes_per_robot=32)
        target: Any = worker._models.target
        monkeypatch.setattr(worker._models.drafter, "spend", partial(wait, target, 0.1))
        for nonce in range(5):
            fleet = [Robot(worker).open(100 * nonce + one) for one in range(robots)]
            began = target.now
            for robot in fleet:
                robot.say(Generate(robot.base, how))
            do_all(worker)
            seconds[how] = target.now - began
            assert {(robot.said, robot.count(Fault)) for robot in fleet} == {(OWN, 0)}
            for robot in fleet:
                robot.ask(Close())
    assert seconds[MAY] < (0.5 if robots == 1 else 1.02) * seconds[Generation()]


def wait(target: Costly, seconds: float, rows: int = 0) -> None:
    target.now += seconds


def test_a_draft_model_that_breaks_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Worker = cloud_with()
    breaks = Mock(side_effect=MemoryError("none left"))
    monkeypatch.setattr(worker._models, "propose", breaks)
    for nonce in range(3):
        robot = Robot(worker).open(nonce)
        robot.ask(Generate(robot.base, MAY))
        assert robot.said == OWN and not robot.count(Fault)
    assert 0 < breaks.call_count <= 3  # once an answer


def test_a_lost_session_is_drafted_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, asked = cloud_with(), Mock()
    breaks = Mock(side_effect=RuntimeError("the prompt cannot be read"))
    monkeypatch.setattr(worker._models.target, "prefill", breaks)
    monkeypatch.setattr(worker._models, "propose", asked)
    robot = Robot(worker)
    robot.ask(opening(1, generation=Generation(speculative=True)))
    assert robot.count(Fault) == 1 and not asked.called
