"""Which drafts a robot works on while it waits and in what order, and those that it sends ahead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.edge_decoder import BASE, OPENED, PROMPT, SPEC, decoder, drafted, drafts, sent, verdict

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
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.drafts import Drafts
from edge_cloud_spec.edge.events import Effect, LinkLost, LinkUp
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


class Waiting:
    """Drafts after an answer of 20 tokens at most, which ends with the token 9."""

    def __init__(self, speculation: Speculation = ALL) -> None:
        self.answer = VerifiedAnswer()
        self.limit(20)
        self.drafts = Drafts(self.answer, "ids", load_preset("picospec"), Measures())
        self.drafts.want(None, speculation)
        self.drafts.begin()

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
    assert wanted(drafting()) == [((1, 1), 1), ((2,), 1), ((1, 3), 2), ((4,), 2)]


def test_each_likely_leaf_gets_the_tokens_that_may_follow_it() -> None:
    robot = drafting()
    seek = robot.drafts.choose(SHAPE)[0]
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
    robot = Waiting(ALL)
    (branch,) = robot.drafts.choose(chain(4))
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
    robot = Waiting(stream)
    prefix: Prefix = ()
    for level in range(4):
        (branch,) = robot.drafts.choose(chain(2))
        assert branch.prefix == prefix
        assert robot.drafts.is_near(prefix) == (level <= 1)
        robot.drafts.add(branch, FinishedDraft(Draft((1, 2)), (1, 2), 1, leaves=(((1, 2), 0.9),)))
        prefix = (*prefix, 1, 2)
    assert robot.drafts.choose(chain(2)) == ()  # three ahead of the one that is verified


def test_what_ends_in_a_bonus_is_a_verdict_further_too() -> None:
    twice = Speculation(all_accepted=True, runners_up=True, push=True, ahead=2, width=4, least=0.0)
    robot = Waiting(twice)
    (branch,) = robot.drafts.choose(chain(1))
    finished = FinishedDraft(Draft((1,)), (1,), 0, leaves=(((1,), 0.5),), recoveries=(((2,), 0.2),))
    robot.drafts.add(branch, finished)
    bonus = FinishedDraft(Draft((3,)), (3,), 0, leaves=(((3,), 0.5),), recoveries=(((4,), 0.3),))
    seek, _ = robot.drafts.choose(chain(1))
    assert seek == Branch((1,), chain(1))
    assert not robot.drafts.add(seek, bonus)
    first = robot.drafts.choose(chain(1))
    assert [branch.prefix for branch in first] == [(1, 3), (2,), (1, 4)]
    assert all(robot.drafts.is_near(branch.prefix) for branch in first)
    after = FinishedDraft(Draft((5,)), (5,), 0, leaves=(((5,), 0.5),), recoveries=(((6,), 0.25),))
    robot.drafts.add(first[0], after)
    later = [branch.prefix for branch in robot.drafts.choose(chain(1))]
    assert later == [(2,), (1, 4), (1, 3, 5), (1, 3, 6)]
    assert [robot.drafts.is_near(prefix) for prefix in later] == [True, True, False, False]


# Drafts that are pushed ahead of their verdict: said again only where they were lost.


def pushing() -> EdgeDecoder:
    """A streaming robot whose first draft is on its way, and the next one pushed."""
    robot = decoder("picospec")
    robot.start(0.0, SPEC)
    robot.handle(OPENED, 0.0)
    robot.handle(PROMPT, 0.0)
    first = sent(drafts(robot, (3, 4, 5, 6), 1.0))
    assert [message.base.length for message in first] == [0]
    return robot


def test_what_was_pushed_is_not_said_again_while_the_link_stands() -> None:
    robot = pushing()
    (pushed,) = sent(drafts(robot, (7, 8, 9, 1), 1.1))
    assert pushed.base == BASE.extend((3, 4, 5, 6))
    effects = robot.handle(verdict(BASE, (0, 1, 2, 3), None), 1.2)
    assert sent(effects) == []
    assert robot.tokens == [3, 4, 5, 6]


def test_what_was_pushed_while_the_link_was_down_is_said_again() -> None:
    robot = pushing()
    robot.handle(LinkLost("an outage"), 1.1)
    (lost,) = sent(drafts(robot, (7, 8, 9, 1), 1.1))
    robot.handle(LinkUp(), 1.2)
    robot.handle(OPENED, 1.3)
    effects = robot.handle(verdict(BASE, (0, 1, 2, 3), None), 1.4)
    assert [message.base for message in sent(effects)] == [lost.base]


def test_what_was_pushed_is_said_again_after_a_verdict_that_leads_elsewhere() -> None:
    """The cloud has other drafts than the robot thinks: which ones is unknown."""
    robot = pushing()
    (lost,) = sent(drafts(robot, (7, 8, 9, 1), 1.1))
    robot.handle(verdict(BASE, (0, 1), 9, draft=(3, 5)), 1.2)
    robot.handle(OPENED, 1.3)
    effects = robot.handle(verdict(BASE, (0, 1, 2, 3), None), 1.4)
    assert [message.base for message in sent(effects)] == [lost.base]


def test_a_verdict_that_overtook_the_one_before_it_waits_for_it() -> None:
    robot = pushing()
    (pushed,) = sent(drafts(robot, (7, 8, 9, 1), 1.1))
    assert robot.handle(verdict(pushed.base, (), 2), 1.2) == []
    robot.handle(verdict(BASE, (0, 1, 2, 3), None), 1.3)
    assert robot.tokens == [3, 4, 5, 6, 2]


def test_a_robot_pushes_as_many_drafts_as_the_cloud_keeps() -> None:
    """Or it would wait for the verdict on one that the cloud has dropped."""
    answer, counters = VerifiedAnswer(), Counters()
    answer.begin(BASE, PROMPT.end_tokens, PROMPT.max_tokens)
    robot = Drafts(answer, "ids", load_preset("picospec"), Measures())
    kept = PushedDrafts(counters)
    draft = FinishedDraft(Draft((1,)), (1,), 0)
    pushed = [robot.push((token,), draft, 0.0, exits=True) for token in range(MAX_PUSHED + 9)]
    said = [message for message in pushed if message is not None]
    for message in said:
        kept.add(message)
    assert len(kept) == len(said) == MAX_PUSHED and counters.unused == 0


def test_a_robot_pushes_as_many_bytes_as_the_cloud_keeps() -> None:
    answer = VerifiedAnswer()
    answer.begin(BASE, PROMPT.end_tokens, PROMPT.max_tokens)
    robot, kept = Drafts(answer, "dense", load_preset("picospec"), Measures()), 0
    row = TokenDistribution(np.zeros(MAX_PUSHED_BYTES // 3 // 8))
    draft = FinishedDraft(Draft((1,), rows=(row,)), (1,), 0)
    cloud = PushedDrafts(Counters())
    for token in range(9):
        if message := robot.push((token,), draft, 0.0, exits=True):
            cloud.add(message)  # raises BadDraft where it is one too many
            kept += 1
    assert kept == MAX_PUSHED_BYTES // row.nbytes == len(cloud)


def test_a_draft_that_the_cloud_would_wait_for_is_cut_short() -> None:
    robot = pushing()
    robot.handle(verdict(BASE, (), 7), 2.0)
    robot.measures.one_way = Mean(0.1, 1.0)
    robot.measures.verified(4, 0.3, None)
    drafts(robot, (3, 4, 5, 6), 2.0)  # its pass will end at 2.4
    early = replace(drafted(robot, (7, 8), (7, 8)), done=False, seconds=0.05)
    assert sent(robot.handle(early, 2.1)) == []
    late = replace(drafted(robot, (9,), (7, 8, 9)), done=False, seconds=0.05)
    (pushed,) = sent(robot.handle(late, 2.3))
    assert pushed.draft.tokens == (7, 8, 9)


def after_a_verdict(queue_s: float) -> EdgeDecoder:
    """A robot whose last draft waited so long at the cloud; its next one has to begin anew."""
    robot = pushing()
    robot.handle(verdict(BASE, (), 7), 2.0)
    robot.measures.one_way, robot.measures.busy = Mean(0.1, 1.0), Mean(0.0)
    assert robot.handle(replace(drafted(robot, (3,)), seconds=0.05), 2.0) == []
    drafts(robot, (3, 4, 5, 6), 2.0)
    base = BASE.extend((7,))
    took = {"verify_s": 0.5, "queue_s": queue_s}
    robot.handle(verdict(base, (), 8, **took), 2.2 + 0.5 + queue_s)
    return robot


def next_part(robot: EdgeDecoder, now: float) -> list[Effect]:
    """The draft after the verified tokens is deep enough to be cut, after a pass of 50 ms."""
    part = replace(drafted(robot, (4,), (3, 4)), done=False, seconds=0.05)
    return robot.handle(part, now)


def test_a_draft_grows_while_the_cloud_is_busy_with_others() -> None:
    """Its last one waited 0.3 s: a short one would not be verified any earlier."""
    robot = after_a_verdict(queue_s=0.3)
    verdict_at = 3.0
    assert robot.measures.busy.value == pytest.approx(0.5)  # no longer than its own pass
    assert sent(next_part(robot, verdict_at + 0.1)) == []
    late = next_part(robot, verdict_at + 0.26)  # another level would be there after 0.4 s
    assert [message.draft.tokens for message in sent(late)] == [(3, 4)]


@pytest.mark.parametrize("queue_s", [0.0, 0.04])
def test_a_draft_is_sent_at_once_to_a_cloud_that_is_not_busy(queue_s: float) -> None:
    robot = after_a_verdict(queue_s)
    assert robot.measures.busy.value == 0.0
    assert len(sent(next_part(robot, 2.7 + queue_s + 0.05))) == 1
