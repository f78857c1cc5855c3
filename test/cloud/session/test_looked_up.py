"""What was said before, drafted by a server that generates and beside a robot's draft."""

from __future__ import annotations

from dataclasses import replace

from helpers.cloud.verification import BASE, OPENING, cloud_of, draft, play, says, verdict_of

from edge_cloud_spec.cloud.session.events import Predicted, Propose, Proposed
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.lookup import AnswerLookup, Lookups
from edge_cloud_spec.wire.messages import Generate, Generation


def looked_up(*answers: tuple[int, ...]) -> AnswerLookup:
    found = Lookups(1000, 4, None, lambda rows: 1.0).of("", OPENING)
    assert found is not None
    for answer in answers:
        found.learn(answer)
    return found


def test_it_drafts_what_was_said_before_once_the_first_token_is_there() -> None:
    play(
        cloud_of(looked_up((1, 2, 3, 4))),
        (Generate(BASE), ()),  # the row after the prompt is known
        (says(1), (2, 3, 4)),
        (says(2, 3, 7, 0), (), {"tokens": (2, 3), "token": 7, "drafted": 3}),
    )


def test_where_it_generates_at_once_the_prompts_last_pass_scores_what_was_said_first() -> None:
    cloud = cloud_of(looked_up((1, 2, 3, 4)), replace(OPENING, generation=Generation()))
    play(cloud, (Generate(BASE, Generation()), (1, 2, 3, 4)))


def test_a_looked_up_draft_comes_before_one_of_the_clouds_own_drafter() -> None:
    play(
        cloud_of(looked_up((1, 2, 3)), replace(OPENING, draft_length=3)),
        (Generate(BASE, Generation(True)), Propose((), 3)),
        (Proposed(Draft(())), ()),
        (says(1), (2, 3)),
        (says(7, 0, 0), Propose((1, 7), 3)),
    )


def test_the_robots_draft_gets_looked_up_branches_and_then_a_complete_verdict() -> None:
    cloud = cloud_of(looked_up((1, 2, 3, 4)))
    play(cloud, (draft(1, 5), Draft((1, 5, 2, 3, 4), (-1, 0, 0, 2, 3), looked_up=3)))
    (said,) = cloud.handle(Predicted((0, 2), 3, 0.9, 1))
    assert (said.message.path, said.message.token) == ((0,), 2)  # as far as the robot's nodes go
    verdict = verdict_of(cloud.handle(says(1, 2, 0, 3, 4, 6)))
    assert (verdict.path, verdict.tokens, verdict.token) == ((0, 2, 3, 4), (1, 2, 3, 4), 6)
    assert verdict.drafted == 5
    answers = cloud.counters.answers
    assert (answers.drafted["robot"], answers.drafted["lookup"]) == (2, 3)
    assert (answers.accepted["robot"], answers.accepted["lookup"]) == (1, 3)


def test_a_draft_of_which_nothing_is_added_has_a_verdict_as_ever() -> None:
    cloud = cloud_of(looked_up((1, 2)))
    (due,) = play(cloud, (draft(1, 2), (1, 2)))
    assert due.draft.looked_up == 0
    play(cloud, (says(1, 2, 3), None, {"path": (0, 1), "tokens": (), "drafted": 0}))
