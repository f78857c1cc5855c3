"""Which guesses a robot works on while it waits, and in what order."""

from __future__ import annotations

import numpy as np
import pytest

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.preset import Speculation
from edge_cloud_spec.decoding.propose import FinishedDraft
from edge_cloud_spec.decoding.shape import BestFirst, Branch, chain
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.edge.answer import Answer, Prefix
from edge_cloud_spec.edge.drafts import Drafts
from edge_cloud_spec.edge.events import PromptReady
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


class Robot:
    """Drafts after an answer of 20 tokens at most, which ends with the token 9."""

    def __init__(self, speculation: Speculation = ALL) -> None:
        self.answer = Answer(0)
        self.limit(20)
        self.drafts = Drafts(self.answer, "ids", load_preset("picospec"), Measures())
        self.drafts.want(None, speculation)
        self.drafts.begin((9,))

    def limit(self, tokens: int) -> None:
        """The answer gets so many tokens at most."""
        self.answer.begin(PrefixDigest(0, 42), PromptReady(b"prompt", b"spec", (9,), tokens))

    def verify(self, *tokens: int) -> None:
        """These tokens are verified."""
        self.answer.settle(tokens)
        self.drafts.drop_unverified()


def drafting() -> Robot:
    """The tree is drafted after the empty answer, and on its way."""
    robot = Robot()
    (branch,) = robot.drafts.branches(SHAPE)
    assert branch == Branch((), SHAPE)
    assert robot.drafts.add(branch, TREE)
    return robot


def wanted(robot: Robot) -> list[tuple[Prefix, int]]:
    """Prefixes with the depths of what is to be drafted there; 1 looks for a bonus token."""
    return [(branch.prefix, branch.shape.depth) for branch in robot.drafts.branches(SHAPE)]


def test_guesses_are_worked_off_by_confidence_and_the_unlikely_ones_not_at_all() -> None:
    assert wanted(drafting()) == [((1, 1), 1), ((2,), 1), ((1, 3), 2), ((4,), 2)]


def test_each_likely_leaf_gets_the_tokens_that_may_follow_it() -> None:
    robot = drafting()
    seek = robot.drafts.branches(SHAPE)[0]
    bonus = FinishedDraft(Draft((7,)), (7,), 0, leaves=(((7,), 0.9),), recoveries=(((8,), 0.08),))
    assert not robot.drafts.add(seek, bonus)
    assert wanted(robot)[:3] == [((1, 1, 7), 2), ((2,), 1), ((1, 3), 2)]
    assert ((1, 1, 8), 2) in wanted(robot)


def test_what_an_exit_predicts_comes_at_its_confidence() -> None:
    robot = drafting()
    robot.drafts.predict((6,), 0.95)
    assert wanted(robot)[0] == ((6,), 2)
    robot.drafts.predict((6,), 0.3)
    assert wanted(robot)[1] == ((6,), 2)


def test_a_verdict_voids_all_that_does_not_extend_it() -> None:
    robot = drafting()
    robot.drafts.predict((6,), 0.95)
    drafted = FinishedDraft(Draft((3,)), (3,), 0, leaves=(((3,), 0.5),))
    robot.drafts.add(Branch((1, 3), SHAPE), drafted)
    robot.drafts.add(Branch((4,), SHAPE), drafted)
    robot.verify(1, 3)
    assert robot.drafts.after((1, 3)) is drafted
    assert robot.drafts.after((4,)) is None
    assert all(prefix[:2] == (1, 3) for prefix, _ in wanted(robot))


def test_what_is_left_of_a_draft_is_kept_where_the_answer_went_along_it() -> None:
    robot = drafting()
    robot.verify(1)
    rest = robot.drafts.after((1,))
    assert rest is not None and rest.draft.tokens == (1,) and (rest.best, rest.leaf) == ((1,), 0)
    assert rest.leaves == (((1,), pytest.approx(0.4 / 0.55)),)
    assert rest.recoveries == (((3,), pytest.approx(0.15 / 0.55)),)
    assert wanted(robot)[0] == ((1, 1), 1)  # it is not drafted anew: what follows it is
    assert drafting().drafts.after((1,)) is None
    for elsewhere in ((2,), (5,), (1, 1)):
        robot = drafting()
        robot.verify(*elsewhere)
        assert robot.drafts.after(elsewhere) is None


def test_of_a_draft_with_rows_nothing_is_left() -> None:
    row = TokenDistribution(np.full(4, 0.25, np.float32))
    draft = FinishedDraft(Draft((1, 1), rows=(row, row)), (1, 1), 1, leaves=(((1, 1), 0.5),))
    assert draft.below((1,)) is None


def test_a_part_of_a_draft_stands_in_for_it_once_it_is_deep_enough() -> None:
    robot = Robot(ALL)
    (branch,) = robot.drafts.branches(chain(4))
    robot.drafts.keep(branch, FinishedDraft(Draft((1, 2)), (1, 2), 1, leaves=(((1, 2), 0.5),)))
    assert robot.drafts.after(()) is None
    robot.drafts.finish_early((), 3)
    assert robot.drafts.after(()) is None
    robot.drafts.finish_early((), 2)
    part = robot.drafts.after(())
    assert part is not None
    assert part.draft.tokens == (1, 2)


def test_nothing_is_drafted_after_an_end_token_or_beyond_the_answers_length() -> None:
    robot = drafting()
    robot.drafts.predict((9,), 0.95)
    assert (9,) not in [prefix for prefix, _ in wanted(robot)]
    robot.limit(2)
    assert [prefix for prefix, _ in wanted(robot)] == [(2,), (4,)]


def test_drafts_further_ahead_are_not_what_the_next_verdict_leads_to() -> None:
    """All accepted, twice: only the first of these prefixes is one verdict away."""
    stream = Speculation(all_accepted=True, open=True, push=True, ahead=3, width=4)
    robot = Robot(stream)
    prefix: Prefix = ()
    for level in range(4):
        (branch,) = robot.drafts.branches(chain(2))
        assert branch.prefix == prefix
        assert robot.drafts.is_near(prefix) == (level <= 1)
        robot.drafts.add(branch, FinishedDraft(Draft((1, 2)), (1, 2), 1, leaves=(((1, 2), 0.9),)))
        prefix = (*prefix, 1, 2)
    assert robot.drafts.branches(chain(2)) == ()  # three ahead of the one that is verified


def test_what_ends_in_a_bonus_is_a_verdict_further_too() -> None:
    twice = Speculation(all_accepted=True, runners_up=True, push=True, ahead=2, width=4, least=0.0)
    robot = Robot(twice)
    (branch,) = robot.drafts.branches(chain(1))
    finished = FinishedDraft(Draft((1,)), (1,), 0, leaves=(((1,), 0.5),), recoveries=(((2,), 0.2),))
    robot.drafts.add(branch, finished)
    bonus = FinishedDraft(Draft((3,)), (3,), 0, leaves=(((3,), 0.5),), recoveries=(((4,), 0.3),))
    seek, _ = robot.drafts.branches(chain(1))
    assert seek == Branch((1,), chain(1))
    assert not robot.drafts.add(seek, bonus)
    first = robot.drafts.branches(chain(1))
    assert [branch.prefix for branch in first] == [(1, 3), (2,), (1, 4)]
    assert all(robot.drafts.is_near(branch.prefix) for branch in first)
    after = FinishedDraft(Draft((5,)), (5,), 0, leaves=(((5,), 0.5),), recoveries=(((6,), 0.25),))
    robot.drafts.add(first[0], after)
    later = [branch.prefix for branch in robot.drafts.branches(chain(1))]
    assert later == [(2,), (1, 4), (1, 3, 5), (1, 3, 6)]
    assert [robot.drafts.is_near(prefix) for prefix in later] == [True, True, False, False]
