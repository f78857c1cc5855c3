"""Drafts that are pushed ahead of their verdict: said again only where they were lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.edge_decoder import BASE, OPENED, PROMPT, SPEC, decoder, drafted, drafts, sent, verdict

from edge_cloud_spec.cloud.session.counters import Counters
from edge_cloud_spec.cloud.session.drafts import PushedDrafts
from edge_cloud_spec.decoding.draft import MAX_PUSHED, Draft
from edge_cloud_spec.decoding.mean import Mean
from edge_cloud_spec.decoding.propose import FinishedDraft
from edge_cloud_spec.edge.answer import Answer
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.drafts import Drafts
from edge_cloud_spec.edge.events import Action, LinkLost, LinkUp
from edge_cloud_spec.edge.measures import Measures
from edge_cloud_spec.presets import load_preset


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
    actions = robot.handle(verdict(BASE, (0, 1, 2, 3), None), 1.2)
    assert sent(actions) == []
    assert robot.tokens == [3, 4, 5, 6]


def test_what_was_pushed_while_the_link_was_down_is_said_again() -> None:
    robot = pushing()
    robot.handle(LinkLost("an outage"), 1.1)
    (lost,) = sent(drafts(robot, (7, 8, 9, 1), 1.1))
    robot.handle(LinkUp(), 1.2)
    robot.handle(OPENED, 1.3)
    actions = robot.handle(verdict(BASE, (0, 1, 2, 3), None), 1.4)
    assert [message.base for message in sent(actions)] == [lost.base]


def test_a_verdict_that_overtook_the_one_before_it_waits_for_it() -> None:
    robot = pushing()
    (pushed,) = sent(drafts(robot, (7, 8, 9, 1), 1.1))
    assert robot.handle(verdict(pushed.base, (), 2), 1.2) == []
    robot.handle(verdict(BASE, (0, 1, 2, 3), None), 1.3)
    assert robot.tokens == [3, 4, 5, 6, 2]


def test_a_robot_pushes_as_many_drafts_as_the_cloud_keeps() -> None:
    """Or it would wait for the verdict on one that the cloud has dropped."""
    answer, counters = Answer(0), Counters()
    answer.begin(BASE, PROMPT)
    robot = Drafts(answer, "ids", load_preset("picospec"), Measures())
    kept = PushedDrafts(counters)
    draft = FinishedDraft(Draft((1,)), (1,), 0)
    pushed = [robot.push((token,), draft, 0.0, exits=True) for token in range(MAX_PUSHED + 9)]
    said = [message for message in pushed if message is not None]
    for message in said:
        kept.add(message)
    assert len(kept) == len(said) == MAX_PUSHED and counters.unused == 0


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


def next_part(robot: EdgeDecoder, now: float) -> list[Action]:
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
