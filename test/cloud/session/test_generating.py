"""A server that generates by itself: the robot's hints beside it, and the draft that leads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.cloud.verification import (
    BASE,
    OPENING,
    VOCABULARY,
    cloud_of,
    draft,
    play,
    says,
    session,
    verdict_of,
)

from edge_cloud_spec.cloud.session.events import Predicted, Propose, Proposed, Reply
from edge_cloud_spec.cloud.session.verification import Verification
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.wire.messages import Close, DraftMessage, Generate, Generation, Verdict

GENERATE = Generate(BASE), ()
DRAFTING = replace(OPENING, draft_length=3)
TREE = Draft((1, 2, 3, 4, 5), (-1, 0, 0, 2, 2), looked_up=1)


def generating() -> Verification:
    """Its first pass is under way."""
    cloud = cloud_of()
    play(cloud, GENERATE)
    return cloud


def hint(*tokens: int, after: tuple[int, ...] = (), **changes: Any) -> DraftMessage:
    return replace(draft(*tokens, base=BASE.extend(after)), hint=True, **changes)


def after(*tokens: int) -> Any:
    return BASE.extend(tokens)


def verdict(path: tuple[int, ...], tokens: tuple[int, ...], token: int) -> dict[str, Any]:
    return {"path": path, "tokens": tokens, "token": token}


# By the promise that each holds: what is said to a session that generates, what it scores then,
# what its counts are at the end, and whether it generates.
HINTS: dict[str, tuple[list[tuple[Any, ...]], dict[str, int], bool]] = {
    "of hints that the answer has passed the one for the last place counts": (
        [
            (hint(2, 3, after=(1,)), None),
            (says(1), (2, 3)),
            (hint(2, 3, 4, 6, after=(1,)), None),
            (hint(3, 4, 5, after=(1, 2)), None),
            (says(2, 3, 4), (5,)),
        ],
        {},
        True,
    ),
    "a hint for this very place is used when the pass under way ends": (
        [
            (hint(1, 2, 3), None),
            (says(1), (2, 3)),
            (says(2, 3, 4), (), verdict((0, 1), (2, 3), 4) | {"drafted": 2}),
        ],
        {"judged": 1, "drafts": 1},
        True,
    ),
    "an early hint is used where the answer reaches its place": (
        [(hint(3, 4, after=(1, 2)), None), (says(1), ()), (says(2), (3, 4))],
        {},
        True,
    ),
    "an early hint whose place is in the middle of an accepted path is taken there": (
        [
            (hint(2, 3, after=(1,)), None),
            (hint(4, 5, 6, after=(1, 2, 3)), None),
            (says(1), (2, 3)),
            (says(2, 3, 4), (5, 6)),
        ],
        {},
        True,
    ),
    "a late hint is counted late where it does not fit": (
        [(says(1), ()), (says(2), ()), *((hint(*t), None) for t in ((1, 7, 3), (7,), (1, 2)))],
        {"late": 3},
        True,
    ),
    "a late hint is used from where the answer is": (
        [(says(1), ()), (says(2), ()), (hint(1, 2, 3, 4), None), (says(3), (4,))],
        {"late": 0},
        True,
    ),
    "of several the one for the last place is taken and wrong ones are dropped": (
        [
            (hint(1, 2, 6), None),
            (hint(2, 5, after=(1,)), None),
            (hint(8, 8, after=(3,)), None),
            (says(1), (2, 5)),
            (says(2, 7, 0), ()),
            (Close(), None),
        ],
        {"accounted": 3, "drafts": 3, "unused": 2},
        False,
    ),
    "a tree is taken apart where the answer walked along": (
        [
            (DraftMessage(BASE, TREE, 0, hint=True), None),
            (says(1), Draft((2, 3, 4, 5), (-1, -1, 1, 1), looked_up=1)),
            (says(3, 0, 5, 0, 6), (), verdict((1, 3), (3, 5), 6)),
        ],
        {},
        True,
    ),
    "no exits predict for what nobody waits for": (
        [(hint(1, 2, 3), None), (says(1), (2, 3)), (Predicted((0,), 4, 0.9, 1), None)],
        {},
        True,
    ),
    "a draft that is no hint takes the lead and is used though the robot is behind": (
        [
            (draft(1, 2, 3), None),
            (says(1), (2, 3), {"tokens": ()}),
            (says(2, 7, 0), None, verdict((0,), (2,), 7)),  # the robot drafts next
            (draft(4, base=after(1, 2, 7)), (4,)),
            (says(4, 5), None, {"tokens": ()}),  # the robot knows its own draft
        ],
        {},
        False,
    ),
    "a draft that takes the lead and does not fit leaves the robot the verdict": (
        [
            (draft(8, 8), None),
            (says(1), None, {"token": 1}),
            (draft(4, base=after(1)), (4,)),
        ],
        {},
        False,
    ),
    **{
        f"a bad draft beside it is refused and it goes on, lead: {lead}": (
            [
                (replace(hint(VOCABULARY), hint=not lead), "bad_draft"),
                (DraftMessage(BASE, Draft((1,), (-1, 0)), 0, hint=True), "bad_draft"),
                (says(1), (), {"token": 1}),
            ],
            {"refused": 2},
            True,
        )
        for lead in (False, True)
    },
}


@pytest.mark.parametrize("script", HINTS.values(), ids=HINTS)
def test_beside_a_server_that_generates(
    script: tuple[list[tuple[Any, ...]], dict[str, int], bool],
) -> None:
    steps, counts, generates = script
    cloud = generating()
    play(cloud, *steps)
    assert {name: getattr(cloud.counters, name) for name in counts} == counts
    assert cloud.generating == generates


def test_where_the_robot_leads_a_hint_is_nothing_and_is_not_answered() -> None:
    """Its robot awaits no verdict there."""
    cloud = cloud_of()
    play(cloud, (hint(1, 2), None), (draft(1, 2), (1, 2)), (says(1, 2, 3), None))
    assert cloud.handle(hint(1, 2)) == []  # it has had this verdict
    play(cloud, (hint(3, after=(1, 2, 3)), None))
    assert (cloud.counters.late, cloud.counters.repeated, cloud.pushed) == (3, 0, 0)
    play(
        cloud,
        (Generate(cloud.digest), ()),
        (hint(6, 7, after=(1, 2, 3, 4, 4)), None),
        (draft(5, base=cloud.digest.extend((3, 8))), None),  # takes the lead
        (says(3), None),
    )
    assert (cloud.counters.unused, cloud.pushed) == (1, 1)


def test_a_pushed_draft_is_used_while_it_generates_and_its_robot_awaited_the_verdict() -> None:
    cloud = cloud_of()
    play(cloud, (draft(1), (1,)), (draft(3, 4, base=after(1, 2)), None))
    cloud.pause()
    play(
        cloud,
        (says(1, 2), (3, 4)),
        (Generate(after(1, 2)), None),
        (says(3, 4, 5), (), {"tokens": ()}),
    )


@pytest.mark.parametrize("leads", [False, True])
def test_what_is_proposed_gives_way_to_the_robots_draft(leads: bool) -> None:
    """A hint waits for the proposal, which is then dropped; a draft that leads does not wait."""
    cloud = cloud_of(opening=DRAFTING)
    play(cloud, (Generate(BASE, Generation(True)), Propose((), 3)))
    message, proposed = replace(draft(1, 2), hint=not leads), Proposed(Draft((5, 5, 5)))
    play(cloud, *zip((message, proposed), ((1, 2), None) if leads else (None, (1, 2)), strict=True))
    assert cloud.generating is not leads


def test_a_flood_of_hints_is_bounded_and_every_one_is_accounted_for() -> None:
    cloud = generating()
    for number in range(1000):
        place = tuple(1 + (number >> bit) % 3 for bit in range(0, 10, 2))
        cloud.handle(hint(1, 2, 3, after=place[: number % 6]))
    assert cloud.pushed <= 32
    cloud.handle(says(1))
    cloud.handle(Close())
    counters = cloud.counters
    assert counters.accounted == counters.drafts == 1000


def test_no_end_is_too_far_for_a_server_that_generates() -> None:
    cloud = cloud_of()
    play(cloud, (Generate(BASE, Generation(until=2**32 - 1)), ()), *[(says(1), ())] * 49)
    play(cloud, (says(1), None, {"finish": "length"}))
    assert not cloud.generating


def test_repeats_are_complete_and_none_is_drawn_again() -> None:
    cloud = generating()
    cloud.handle(hint(1, 2, 3))
    said = [verdict_of(cloud.handle(rows)) for rows in (says(1), says(2, 3, 4))]
    cloud.pause()
    again = cloud.handle(Generate(BASE))
    assert [action.message for action in again if isinstance(action, Reply)] == said


def test_exits_are_left_out_where_the_robot_says_so() -> None:
    cloud = session()
    cloud.handle(replace(draft(1, 2), without_exits=True))
    assert cloud.under_way is not None and not cloud.under_way.exits
    assert cloud.handle(Predicted((0,), 2, 0.9, 1)) == []
    play(cloud, (says(1, 2, 3), None), (draft(4, base=after(1, 2, 3)), (4,)))
    assert cloud.under_way.exits


def test_a_robots_verdicts_are_told_as_before_where_nothing_is_looked_up() -> None:
    cloud = session()
    cloud.handle(draft(1, 2))
    said = verdict_of(cloud.handle(says(1, 5, 0)))
    assert said == Verdict(BASE, (0,), 5, verify_s=0.1, queue_s=0.2, leads_to=said.leads_to)
