"""Which drafts a robot works on while it waits and in what order, and those that it sends ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.edge_decoder import BASE, OPENED, drafted, play, sent, verdict, waiting

from edge_cloud_spec.cloud.session.counters import Counters
from edge_cloud_spec.cloud.session.drafts import PushedDrafts
from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import MAX_PUSHED, MAX_PUSHED_BYTES, Draft
from edge_cloud_spec.decoding.mean import Mean
from edge_cloud_spec.decoding.preset import Speculation
from edge_cloud_spec.decoding.propose import FinishedDraft
from edge_cloud_spec.decoding.shape import BestFirst, Branch, chain
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.decoding.verified_answer import VerifiedAnswer
from edge_cloud_spec.edge.answer import Prefix
from edge_cloud_spec.edge.drafts import Drafts
from edge_cloud_spec.edge.events import Event, LinkLost, LinkUp
from edge_cloud_spec.edge.measures import Measures
from edge_cloud_spec.presets import load_preset

ALL = Speculation(all_accepted=True, runners_up=True, exits=True, push=True, ahead=1, width=8)
SHAPE = BestFirst(4, 2, 2)

# a (0.6) and b (0.2) after the prefix, aa (0.4) after a; the verdict may end otherwise, too
TREE = FinishedDraft(
    Draft((1, 2, 1), (-1, -1, 0)),
    (1, 1),
    leaf=2,
    leaves=(((1, 1), 0.4), ((2,), 0.2)),
    recoveries=(((1, 3), 0.15), ((4,), 0.1), ((5,), 0.01)),
)


def finished(*tokens: int, share: float = 0.5, **more: Any) -> FinishedDraft:
    """A chain of these tokens."""
    leaves = ((tokens, share),)
    return FinishedDraft(Draft(tokens), tokens, len(tokens) - 1, leaves=leaves, **more)


class Waiting:
    """Drafts after an answer of 20 tokens at most, which ends with the token 9."""

    def __init__(self, speculation: Speculation = ALL) -> None:
        self.answer = VerifiedAnswer()
        self.limit(20)
        self.drafts = Drafts(self.answer, "ids", load_preset("picospec"), Measures())
        self.drafts.want(None, speculation)

    def limit(self, tokens: int) -> None:
        """The answer gets so many tokens at most."""
        self.answer.begin(PrefixDigest(0, 42), (9,), tokens)

    def verify(self, *tokens: int) -> None:
        """These tokens are verified."""
        self.answer.extend(tokens)
        self.drafts.drop_unverified()


def drafting() -> Waiting:
    """The tree is drafted after the empty answer, and on its way."""
    robot = Waiting()
    (branch,) = robot.drafts.choose(SHAPE)
    assert branch == Branch((), SHAPE)
    assert robot.drafts.add(branch, TREE)
    return robot


def wanted(robot: Waiting) -> list[tuple[Prefix, int]]:
    """Prefixes with the depths of what is to be drafted there; 1 looks for a bonus token."""
    return [(branch.prefix, branch.shape.depth) for branch in robot.drafts.choose(SHAPE)]


def test_guesses_are_worked_off_by_confidence_and_the_unlikely_ones_not_at_all() -> None:
    robot = drafting()
    assert wanted(robot) == [((1, 1), 1), ((2,), 1), ((1, 3), 2), ((4,), 2)]
    robot.drafts.predicted[(6,)] = 0.95  # by an exit
    assert wanted(robot)[0] == ((6,), 2)
    robot.drafts.predicted[(6,)] = 0.3
    assert wanted(robot)[1] == ((6,), 2)


def test_each_likely_leaf_gets_the_tokens_that_may_follow_it() -> None:
    robot = drafting()
    bonus = finished(7, share=0.9, recoveries=(((8,), 0.08),))
    assert not robot.drafts.add(robot.drafts.choose(SHAPE)[0], bonus)
    assert wanted(robot)[:3] == [((1, 1, 7), 2), ((2,), 1), ((1, 3), 2)]
    assert ((1, 1, 8), 2) in wanted(robot)


def test_a_verdict_voids_all_that_does_not_extend_it() -> None:
    robot, draft = drafting(), finished(3)
    robot.drafts.predicted[(6,)] = 0.95
    for prefix in ((1, 3), (4,)):
        robot.drafts.add(Branch(prefix, SHAPE), draft)
    robot.verify(1, 3)
    assert robot.drafts.after((1, 3)) is draft and robot.drafts.after((4,)) is None
    assert all(prefix[:2] == (1, 3) for prefix, _ in wanted(robot))


def test_what_is_left_of_a_draft_is_kept_where_the_answer_went_along_it() -> None:
    robot = drafting()
    robot.verify(1)
    rest = robot.drafts.after((1,))
    assert rest is not None and rest.draft.tokens == (1,) and (rest.best, rest.leaf) == ((1,), 0)
    assert rest.leaves == (((1,), pytest.approx(0.4 / 0.55)),)
    assert rest.recoveries == (((3,), pytest.approx(0.15 / 0.55)),)
    assert wanted(robot)[0] == ((1, 1), 1)  # it is not drafted anew: what follows it is
    for elsewhere in ((2,), (5,), (1, 1)):
        robot = drafting()
        robot.verify(*elsewhere)
        assert robot.drafts.after(elsewhere) is None


def test_of_a_draft_with_rows_nothing_is_left() -> None:
    row = TokenDistribution(np.full(4, 0.25, np.float32))
    draft = FinishedDraft(Draft((1, 1), rows=(row, row)), (1, 1), 1, leaves=(((1, 1), 0.5),))
    assert draft.below((1,)) is None


def test_a_part_of_a_draft_stands_in_for_it_once_it_is_deep_enough() -> None:
    robot = Waiting()
    (branch,) = robot.drafts.choose(chain(4))
    part = finished(1, 2)
    robot.drafts.keep(branch, part)
    assert robot.drafts.after(()) is None
    for levels, stands_in in ((3, None), (2, part)):
        robot.drafts.finish_early((), levels)
        assert robot.drafts.after(()) is stands_in


def test_nothing_is_drafted_after_an_end_token_or_beyond_the_answers_length() -> None:
    robot = drafting()
    robot.drafts.predicted[(9,)] = 0.95
    assert (9,) not in [prefix for prefix, _ in wanted(robot)]
    robot.limit(2)
    assert [prefix for prefix, _ in wanted(robot)] == [(2,), (4,)]
    short = Waiting()
    short.limit(3)
    assert short.drafts.choose(chain(4)) == (Branch((), chain(2)),)  # and a token of the cloud


def test_drafts_further_ahead_are_not_what_the_next_verdict_leads_to() -> None:
    """All accepted, twice: only the first of these prefixes is one verdict away."""
    stream = Speculation(all_accepted=True, open=True, push=True, ahead=3, width=4)
    robot = Waiting(stream)
    prefix: Prefix = ()
    for level in range(4):
        (branch,) = robot.drafts.choose(chain(2))
        assert branch.prefix == prefix
        assert (prefix in robot.drafts.near) == (level <= 1)
        robot.drafts.add(branch, finished(1, 2, share=0.9))
        prefix = (*prefix, 1, 2)
    assert robot.drafts.choose(chain(2)) == ()  # three ahead of the one that is verified


def test_what_ends_in_a_bonus_is_a_verdict_further_too() -> None:
    twice = Speculation(all_accepted=True, runners_up=True, push=True, ahead=2, width=4, least=0.0)
    robot = Waiting(twice)
    (branch,) = robot.drafts.choose(chain(1))
    robot.drafts.add(branch, finished(1, recoveries=(((2,), 0.2),)))
    seek, _ = robot.drafts.choose(chain(1))
    assert seek == Branch((1,), chain(1))
    assert not robot.drafts.add(seek, finished(3, recoveries=(((4,), 0.3),)))
    first = robot.drafts.choose(chain(1))
    assert [branch.prefix for branch in first] == [(1, 3), (2,), (1, 4)]
    assert all(branch.prefix in robot.drafts.near for branch in first)
    robot.drafts.add(first[0], finished(5, recoveries=(((6,), 0.25),)))
    later = [branch.prefix for branch in robot.drafts.choose(chain(1))]
    assert later == [(2,), (1, 4), (1, 3, 5), (1, 3, 6)]
    assert [prefix in robot.drafts.near for prefix in later] == [True, True, False, False]


# Drafts that are pushed ahead of their verdict: said again only where they were lost.

NEXT = BASE.extend((3, 4, 5, 6))
PUSHED = (1.1, (7, 8, 9, 1), [(NEXT, (7, 8, 9, 1))])
ALL_ACCEPTED = verdict(BASE, (0, 1, 2, 3), None)


@pytest.mark.parametrize(
    ("before", "after", "again"),
    [
        ([], [], False),
        ([LinkLost("an outage")], [LinkUp(), OPENED], True),
        # After a verdict that leads elsewhere it is unknown which drafts the cloud has.
        ([], [verdict(BASE, (0, 1), 9, draft=(3, 5)), OPENED], True),
    ],
)
def test_what_was_pushed_is_said_again_only_where_the_cloud_may_lack_it(
    before: list[Event], after: list[Event], again: bool
) -> None:
    robot = waiting("picospec")
    play(robot, *((1.1, event) for event in before), PUSHED, *((1.2, event) for event in after))
    said = sent(play(robot, (1.3, ALL_ACCEPTED)))
    assert [message.base for message in said] == [NEXT] * again
    assert robot.tokens == [3, 4, 5, 6]


def test_a_verdict_that_overtook_the_one_before_it_waits_for_it() -> None:
    robot = waiting("picospec")
    early = verdict(NEXT, (0, 1), 2, draft=(7, 8, 9, 1))
    play(robot, PUSHED, (1.2, early, []), (1.3, ALL_ACCEPTED))
    assert robot.tokens == [3, 4, 5, 6, 7, 8, 2]


ROW = TokenDistribution(np.zeros(MAX_PUSHED_BYTES // 3 // 8))


@pytest.mark.parametrize(
    ("draft", "most"),
    [(Draft((1,)), MAX_PUSHED), (Draft((1,), rows=(ROW,)), MAX_PUSHED_BYTES // ROW.nbytes)],
    ids=["drafts", "bytes"],
)
def test_a_robot_pushes_as_much_as_the_cloud_keeps(draft: Draft, most: int) -> None:
    """Or it would wait for the verdict on one that the cloud has dropped."""
    robot, counters = Waiting().drafts, Counters()
    cloud, pushed = PushedDrafts(counters), 0
    for token in range(MAX_PUSHED + 9):
        for message in robot.push((token,), FinishedDraft(draft, (1,), 0), 0.0, exits=True):
            cloud.add(message)  # raises BadDraft where it is one too many
            pushed += 1
    assert (pushed, len(cloud), counters.unused) == (most, most, 0)


def test_a_draft_that_the_cloud_would_wait_for_is_cut_short() -> None:
    robot = waiting("picospec")
    play(robot, (2.0, verdict(BASE, (), 7)))
    robot.measures.one_way = Mean(0.1, 1.0)
    robot.measures.verified(4, 0.3, None)
    play(robot, (2.0, (3, 4, 5, 6)))  # its pass will end at 2.4
    early = drafted(robot, (7, 8), (7, 8), done=False, seconds=0.05)
    late = drafted(robot, (9,), (7, 8, 9), done=False, seconds=0.05)
    next_one = BASE.extend((7, 3, 4, 5, 6))
    play(robot, (2.1, early, []), (2.3, late, [(next_one, (7, 8, 9))]))


@pytest.mark.parametrize(
    ("queue_s", "busy", "not_yet", "sent_at"),
    [
        (0.0, 0.0, [], 2.75),
        (0.04, 0.0, [], 2.79),
        # A short one would not be verified any earlier. Another level would be there after 0.4 s.
        (0.3, 0.5, [3.1], 3.26),
    ],
)
def test_a_draft_grows_while_the_cloud_is_busy_with_others_and_is_sent_at_once_to_one_that_is_not(
    queue_s: float, busy: float, not_yet: list[float], sent_at: float
) -> None:
    """``queue_s``: how long its last draft waited at the cloud."""
    robot = waiting("picospec")
    play(robot, (2.0, verdict(BASE, (), 7)))
    robot.measures.one_way, robot.measures.busy = Mean(0.1, 1.0), Mean(0.0)
    last = verdict(BASE.extend((7,)), (), 8, verify_s=0.5, queue_s=queue_s)
    play(
        robot,
        (2.0, drafted(robot, (3,), seconds=0.05), []),
        (2.0, (3, 4, 5, 6)),
        (2.2 + 0.5 + queue_s, last),
    )
    assert robot.measures.busy.value == pytest.approx(busy)  # no longer than its own pass
    part = drafted(robot, (4,), (3, 4), done=False, seconds=0.05)  # deep enough to be cut
    early = ((now, part, []) for now in not_yet)
    play(robot, *early, (sent_at, part, [(BASE.extend((7, 8)), (3, 4))]))
