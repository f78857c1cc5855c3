"""Drafts beside a cloud that goes on alone: hints, and the one that takes the lead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.cloud.verification import (
    BASE,
    OPENING,
    VOCABULARY,
    cloud_of,
    draft,
    same,
    says,
    scored,
    session,
    verdict_of,
)

from edge_cloud_spec.cloud.session.drafts import EMPTY
from edge_cloud_spec.cloud.session.events import (
    Predicted,
    Propose,
    Proposed,
    Reply,
    Score,
)
from edge_cloud_spec.cloud.session.verification import Verification
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.wire.messages import (
    Alone,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Verdict,
)


def alone() -> Verification:
    """The first pass alone is under way."""
    cloud = cloud_of()
    assert cloud.handle(Generate(BASE)) == [Score(EMPTY)]
    return cloud


def hint(*tokens: int, after: tuple[int, ...] = (), **changes) -> DraftMessage:
    return replace(draft(*tokens, base=BASE.extend(after)), hint=True, **changes)


def test_of_hints_that_the_answer_has_passed_the_one_for_the_last_place_counts() -> None:
    """It knows the most of the answer."""
    cloud = alone()
    cloud.handle(hint(2, 3, after=(1,)))
    assert same(scored(cloud.handle(says(1))), 2, 3)
    cloud.handle(hint(2, 3, 4, 6, after=(1,)))
    cloud.handle(hint(3, 4, 5, after=(1, 2)))
    assert same(scored(cloud.handle(says(2, 3, 4))), 5)


def test_a_hint_for_a_place_that_has_its_verdict_is_not_answered() -> None:
    """Its robot awaits no verdict there: it has had it."""
    cloud = cloud_of()
    cloud.handle(draft(1, 2))
    cloud.handle(says(1, 2, 3))
    assert cloud.handle(hint(1, 2)) == []
    assert (cloud.counters.late, cloud.counters.repeated) == (1, 0)


def test_a_hint_for_this_very_place_is_used_when_the_pass_under_way_ends() -> None:
    """The answer walks along it first: what is left fits."""
    cloud = alone()
    assert cloud.handle(hint(1, 2, 3)) == []
    actions = cloud.handle(says(1))
    assert same(scored(actions), 2, 3)
    assert cloud.generating
    actions = cloud.handle(says(2, 3, 4))
    said = verdict_of(actions)
    assert (said.path, said.tokens, said.token, said.drafted) == ((0, 1), (2, 3), 4, 2)
    assert scored(actions) == EMPTY
    assert (cloud.counters.judged, cloud.counters.drafts) == (1, 1)


def test_an_early_hint_is_used_where_the_answer_reaches_its_place() -> None:
    cloud = alone()
    cloud.handle(hint(3, 4, after=(1, 2)))
    assert scored(cloud.handle(says(1))) == EMPTY
    assert same(scored(cloud.handle(says(2))), 3, 4)


def test_an_early_hint_whose_place_is_in_the_middle_of_an_accepted_path_is_taken_there() -> None:
    cloud = alone()
    cloud.handle(hint(2, 3, after=(1,)))
    cloud.handle(hint(4, 5, 6, after=(1, 2, 3)))
    assert same(scored(cloud.handle(says(1))), 2, 3)
    assert same(scored(cloud.handle(says(2, 3, 4))), 5, 6)


def test_a_late_hint_is_used_from_where_the_answer_is_or_counted_late() -> None:
    cloud = alone()
    cloud.handle(says(1))
    cloud.handle(says(2))
    assert cloud.handle(hint(1, 7, 3)) == cloud.handle(hint(7)) == cloud.handle(hint(1, 2)) == []
    assert (cloud.counters.late, cloud.pushed) == (3, 0)
    assert cloud.handle(hint(1, 2, 3, 4)) == []
    assert same(scored(cloud.handle(says(3))), 4)


def test_of_several_the_one_for_the_last_place_is_taken_and_wrong_ones_are_dropped() -> None:
    cloud = alone()
    cloud.handle(hint(1, 2, 6))
    cloud.handle(hint(2, 5, after=(1,)))
    cloud.handle(hint(8, 8, after=(3,)))
    cloud.handle(says(1))
    assert cloud.under_way is not None and same(cloud.under_way.draft, 2, 5)
    actions = cloud.handle(says(2, 7, 0))
    assert scored(actions) == EMPTY
    cloud.handle(Close())
    assert cloud.counters.accounted == cloud.counters.drafts == 3
    assert cloud.counters.unused == 2


def test_a_tree_is_taken_apart_where_the_answer_walked_along() -> None:
    cloud = alone()
    tree = Draft((1, 2, 3, 4, 5), (-1, 0, 0, 2, 2), looked_up=1)
    cloud.handle(DraftMessage(BASE, tree, 0, hint=True))
    left = scored(cloud.handle(says(1)))
    assert left is not None
    assert (left.tokens, left.parents, left.looked_up) == ((2, 3, 4, 5), (-1, -1, 1, 1), 1)
    said = verdict_of(cloud.handle(says(3, 0, 5, 0, 6)))
    assert (said.path, said.tokens, said.token) == ((1, 3), (3, 5), 6)


def test_a_draft_that_is_no_hint_takes_the_lead() -> None:
    cloud = alone()
    cloud.handle(draft(1, 2, 3))
    assert not cloud.generating
    actions = cloud.handle(says(1))
    assert verdict_of(actions).tokens == ()
    assert same(scored(actions), 2, 3)  # it is used, though the robot is behind
    actions = cloud.handle(says(2, 7, 0))
    said = verdict_of(actions)
    assert (said.path, said.tokens, said.token) == ((0,), (2,), 7)
    assert scored(actions) is None  # the robot drafts next
    here = draft(4, base=cloud.digest)
    assert cloud.handle(here) == [Score(here.draft)]
    assert verdict_of(cloud.handle(says(4, 5))).tokens == ()  # the robot knows its own draft


def test_a_draft_that_takes_the_lead_and_does_not_fit_leaves_the_robot_the_verdict() -> None:
    cloud = alone()
    cloud.handle(draft(8, 8))
    actions = cloud.handle(says(1))
    assert verdict_of(actions).token == 1
    assert scored(actions) is None and not cloud.generating
    here = draft(4, base=cloud.digest)
    assert cloud.handle(here) == [Score(here.draft)]


def test_a_hint_is_for_who_goes_on_alone_and_nothing_where_the_robot_leads() -> None:
    cloud = cloud_of()
    assert cloud.handle(hint(1, 2)) == []
    cloud.handle(draft(1))
    cloud.handle(says(1, 2))
    assert cloud.handle(hint(3, after=(1, 2))) == []
    assert (cloud.counters.late, cloud.pushed) == (2, 0)
    cloud.handle(Generate(cloud.digest))
    cloud.handle(hint(6, 7, after=(1, 2, 3, 4)))
    cloud.handle(draft(5, base=cloud.digest.extend((3, 8))))  # takes the lead
    cloud.handle(says(3))
    assert (cloud.counters.unused, cloud.pushed) == (1, 1)


def test_a_pushed_draft_is_used_while_it_goes_on_alone_and_its_verdict_is_complete() -> None:
    cloud = cloud_of()
    cloud.handle(draft(1))
    cloud.handle(draft(3, 4, base=BASE.extend((1, 2))))  # pushed for where the verdict leads
    cloud.pause()
    actions = cloud.handle(says(1, 2))
    assert same(scored(actions), 3, 4)
    assert cloud.handle(Generate(cloud.digest)) == []
    actions = cloud.handle(says(3, 4, 5))
    assert verdict_of(actions).tokens == ()  # its robot has awaited it
    assert scored(actions) == EMPTY


def test_what_is_proposed_gives_way_to_the_robots_draft() -> None:
    cloud = cloud_of(opening=replace(OPENING, draft_length=3))
    assert cloud.handle(Generate(BASE, Alone(True))) == [Propose((), 3)]
    cloud.handle(hint(1, 2))
    assert same(scored(cloud.handle(Proposed(Draft((5, 5, 5))))), 1, 2)
    assert cloud.generating


def test_the_robot_takes_the_lead_while_the_cloud_drafts_for_itself() -> None:
    cloud = cloud_of(opening=replace(OPENING, draft_length=3))
    cloud.handle(Generate(BASE, Alone(True)))
    assert same(scored(cloud.handle(draft(1, 2))), 1, 2)
    assert not cloud.generating
    assert cloud.handle(Proposed(Draft((5, 5, 5)))) == []


@pytest.mark.parametrize("lead", [False, True])
def test_a_bad_draft_beside_it_is_refused_and_the_cloud_goes_on(lead: bool) -> None:
    cloud = alone()
    bad = replace(hint(VOCABULARY), hint=not lead)
    (said,) = cloud.handle(bad)
    assert isinstance(said, Reply) and isinstance(said.message, Fault)
    broken = DraftMessage(BASE, Draft((1,), (-1, 0)), 0, hint=True)
    assert len(cloud.handle(broken)) == 1
    assert cloud.counters.refused == 2
    assert verdict_of(cloud.handle(says(1))).token == 1


def test_a_flood_of_hints_is_bounded_and_every_one_is_accounted_for() -> None:
    cloud = alone()
    for number in range(1000):
        place = tuple(1 + (number >> bit) % 3 for bit in range(0, 10, 2))
        cloud.handle(hint(1, 2, 3, after=place[: number % 6]))
    assert cloud.pushed <= 32
    cloud.handle(says(1))
    cloud.handle(Close())
    counters = cloud.counters
    assert counters.accounted == counters.drafts == 1000


def test_no_end_is_too_far_for_who_goes_on_alone() -> None:
    cloud = cloud_of()
    actions = cloud.handle(Generate(BASE, Alone(until=2**32 - 1)))
    for _ in range(50):
        assert scored(actions) == EMPTY
        actions = cloud.handle(says(1))
    assert verdict_of(actions).finish == "length"
    assert not cloud.generating and scored(actions) is None


def test_repeats_are_complete_and_none_is_drawn_again() -> None:
    cloud = alone()
    cloud.handle(hint(1, 2, 3))
    first = verdict_of(cloud.handle(says(1)))
    second = verdict_of(cloud.handle(says(2, 3, 4)))
    cloud.pause()
    again = cloud.handle(Generate(BASE))
    assert [action.message for action in again if isinstance(action, Reply)] == [first, second]


def test_no_exits_predict_for_what_nobody_waits_for() -> None:
    cloud = alone()
    cloud.handle(hint(1, 2, 3))
    cloud.handle(says(1))
    assert cloud.handle(Predicted((0,), 4, 0.9, 1)) == []


def test_exits_are_left_out_where_the_robot_says_so() -> None:
    cloud = session()
    cloud.handle(replace(draft(1, 2), without_exits=True))
    assert cloud.under_way is not None and not cloud.under_way.exits
    assert cloud.handle(Predicted((0,), 2, 0.9, 1)) == []
    cloud.handle(says(1, 2, 3))
    cloud.handle(draft(4, base=cloud.digest))
    assert cloud.under_way is not None and cloud.under_way.exits


def test_a_robots_verdicts_are_told_as_before_where_nothing_is_looked_up() -> None:
    cloud = session()
    cloud.handle(draft(1, 2))
    said = verdict_of(cloud.handle(says(1, 5, 0)))
    assert said == Verdict(BASE, (0,), 5, verify_s=0.1, queue_s=0.2, leads_to=said.leads_to)
