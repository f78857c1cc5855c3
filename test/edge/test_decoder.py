"""The robot's state machine, one event at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.growth import FinishedDraft
from edge_cloud_spec.decoding.policy import GREEDY, SamplingPolicy
from edge_cloud_spec.decoding.shape import Branch, Expansion, chain
from edge_cloud_spec.decoding.split import Split
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.edge.decoder import EdgeDecoder
from edge_cloud_spec.edge.events import (
    Abort,
    Action,
    Drafted,
    Emit,
    Finish,
    LinkLost,
    LinkUp,
    Prepare,
    PromptReady,
    Received,
    Send,
    Tick,
    Unusable,
    Work,
)
from edge_cloud_spec.edge.measures import Mean
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import (
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    Verdict,
    base_digest,
    spec_digest,
)

SPEC = b"the cloud's specification"
OPENING = Open(1, "find", b"", "action first", GREEDY, "greedy", spec_digest=spec_digest(SPEC))
BASE = base_digest(OPENING, b"prompt", spec_digest(SPEC))
PROMPT = PromptReady(b"prompt", spec_digest(SPEC), (0,), 20)
OPENED = Received(Opened("s", b"", BASE))


def decoder(preset: str = "dsd", patience: float = 10.0) -> EdgeDecoder:
    return EdgeDecoder(OPENING, load_preset(preset), patience)


def drafting() -> EdgeDecoder:
    """Opened and prepared; the first draft is due."""
    robot = decoder()
    robot.start(0.0, SPEC)
    robot.handle(OPENED, 0.0)
    assert robot.handle(PROMPT, 0.0) == [work((), chain(4))]
    return robot


def waiting(tokens: tuple[int, ...] = (3, 4, 5, 6)) -> EdgeDecoder:
    """The first draft is on its way."""
    robot = drafting()
    assert sent(drafts(robot, tokens, 1.0))[0].draft.tokens == tokens
    return robot


def work(prefix: tuple[int, ...], shape: Expansion) -> Work:
    """A draft after the verified tokens, and nothing beside it."""
    return Work(prefix, (Branch(prefix, shape),))


def drafted(robot: EdgeDecoder, tokens: tuple[int, ...], whole: tuple[int, ...] = ()) -> Drafted:
    """A pass of the draft after the verified tokens."""
    asked = robot._exchange._speculator._working
    branch = asked.branches[0] if asked and asked.branches else Branch((), chain(4))
    so_far = whole or tokens
    confidence = ((so_far, 0.9),)
    part = FinishedDraft(Draft(so_far), so_far, len(so_far) - 1, leaves=confidence)
    return Drafted(branch, tokens, part, done=bool(whole))


def drafts(robot: EdgeDecoder, tokens: tuple[int, ...], now: float) -> list[Action]:
    """A chain, pass by pass; nothing happens before it is whole."""
    for token in tokens[:-1]:
        assert robot.handle(drafted(robot, (token,)), now) == []
    return robot.handle(drafted(robot, tokens[-1:], tokens), now)


def sent(actions: list[Action]) -> list:
    return [action.message for action in actions if isinstance(action, Send)]


def verdict(
    base: PrefixDigest,
    path: tuple[int, ...],
    token: int | None,
    draft: tuple[int, ...] = (3, 4, 5, 6),
    **others: Any,
) -> Received:
    """The cloud's on a chain of these tokens."""
    last = () if token is None else (token,)
    there = base.extend(draft[: len(path)] + last)
    return Received(Verdict(base, path, token, leads_to=there.short, **others))


def finish(actions: list[Action]) -> Finish:
    (found,) = [action for action in actions if isinstance(action, Finish)]
    return found


def test_a_known_specification_saves_waiting_for_the_cloud() -> None:
    robot = decoder()
    assert robot.start(0.0, SPEC) == [Send(OPENING), Prepare(SPEC)]
    assert robot.handle(PROMPT, 0.1) == [work((), chain(4))]


def test_the_clouds_own_specification_is_taken_and_what_was_drafted_is_void() -> None:
    robot = decoder()
    robot.start(0.0, b"an old one")
    robot.handle(PromptReady(b"prompt", spec_digest(b"an old one"), (0,), 20), 0.0)
    robot.handle(drafted(robot, (3,)), 0.0)
    late = drafted(robot, (4,), (3, 4))
    opened = Received(Opened("s", SPEC, BASE))
    assert robot.handle(opened, 0.1) == [Prepare(SPEC)]
    assert robot.handle(late, 0.1) == []
    assert robot.handle(PROMPT, 0.2) == [work((), chain(4))]
    (message,) = sent(drafts(robot, (5, 6, 7, 8), 0.3))
    assert message.base == BASE
    assert message.draft.tokens == (5, 6, 7, 8)


@pytest.mark.parametrize("known", [b"", SPEC])
def test_prompts_that_differ_end_the_decode_at_once(known: bytes) -> None:
    robot = decoder()
    robot.start(0.0, known)
    other = Received(Opened("s", b"" if known else SPEC, PrefixDigest(0, 5)))
    actions = [*robot.handle(other, 0.0), *robot.handle(PROMPT, 0.0)]
    assert finish(actions).reason == "prompt_mismatch"
    assert "same tokenizer" in finish(actions).text
    assert sent(actions) == [Close()]


def test_a_prompt_of_a_specification_that_was_replaced_meanwhile_is_ignored() -> None:
    robot = decoder()
    robot.start(0.0, b"an old one")
    assert robot.handle(Received(Opened("s", SPEC, BASE)), 0.1) == [Prepare(SPEC)]
    old = PromptReady(b"prompt", spec_digest(b"an old one"), (0,), 20)
    assert robot.handle(old, 0.2) == []
    assert robot.handle(PROMPT, 0.3) == [work((), chain(4))]


def test_a_cloud_that_does_not_say_how_to_prompt_is_not_waited_for() -> None:
    robot = decoder()
    robot.start(0.0)
    assert finish(robot.handle(OPENED, 0.0)).reason == "bad_opened"


def test_a_verdict_settles_the_path_and_its_token_and_drafting_goes_on() -> None:
    robot = waiting()
    actions = robot.handle(verdict(BASE, (0, 1), 9, verify_s=0.5), 3.0)
    assert actions == [Emit(0, (3, 4, 9), True), work((3, 4, 9), chain(4))]
    (done,) = robot.stats.rounds
    assert (done.drafted, done.accepted, done.emitted, done.base) == (4, 2, 3, 0)
    assert (done.sent, done.settled, done.link_s) == (1.0, 3.0, 1.5)
    assert robot.stats.tested == 3


@pytest.mark.parametrize("base", [BASE.extend((1,)), PrefixDigest(0, 4), PrefixDigest(9, 9)])
def test_a_verdict_for_another_prefix_is_dropped_and_counted(base: PrefixDigest) -> None:
    robot = waiting()
    assert robot.handle(Received(Verdict(base, (0,), 9)), 2.0) == []
    assert robot.stats.stale == 1
    assert robot.tokens == []


def test_a_verdict_that_comes_twice_settles_once() -> None:
    robot = waiting()
    twice = verdict(BASE, (0, 1), 9)
    robot.handle(twice, 2.0)
    assert robot.handle(twice, 2.1) == []
    assert robot.tokens == [3, 4, 9]
    assert robot.stats.stale == 1


@pytest.mark.parametrize("path", [(1,), (0, 2), (0, 0), (4,), (0, 1, 2, 3, 4)])
def test_a_path_that_was_not_drafted_ends_the_decode_and_emits_nothing(path: tuple) -> None:
    robot = waiting()
    actions = robot.handle(Received(Verdict(BASE, path, 9)), 2.0)
    assert not [action for action in actions if isinstance(action, Emit)]
    assert finish(actions).reason == "bad_verdict"
    assert sent(actions) == [Close()]


def test_a_verdict_that_leads_elsewhere_settles_nothing_and_the_robot_resumes() -> None:
    """It is on another draft than ours: the accepted tokens would be ours, not the target's."""
    robot = waiting()
    other = verdict(BASE, (0, 1), 9, draft=(3, 5))
    assert robot.handle(other, 2.0) == [Send(Resume("s", BASE))]
    assert (robot.tokens, robot.stats.diverged, robot.stats.rounds) == ([], 1, [])
    (again,) = sent(robot.handle(OPENED, 2.1))
    assert again.base == BASE
    told = verdict(BASE, (0, 1), 9, draft=(3, 5), tokens=(3, 5))
    assert robot.handle(told, 2.2)[0] == Emit(0, (3, 5, 9), True)


def test_a_verdict_that_does_not_say_where_it_leads_settles_nothing() -> None:
    robot = waiting()
    assert robot.handle(Received(Verdict(BASE, (0, 1), 9)), 2.0) == [Send(Resume("s", BASE))]
    assert robot.tokens == []


def test_verdicts_that_always_lead_elsewhere_end_the_decode() -> None:
    robot = waiting()
    other = verdict(BASE, (0, 1), 9, draft=(3, 5))
    while not robot.finished:
        actions = robot.handle(other, 2.0)
        assert not [action for action in actions if isinstance(action, Emit)]
    assert finish(actions).reason == "diverged"
    assert robot.stats.diverged == 4
    assert sent(actions) == [Close()]


def splitting() -> tuple[EdgeDecoder, PrefixDigest, TokenDistribution]:
    """A robot that resamples itself, its draft (3, 4) on its way, and the Q of both."""
    split = Split("dense")
    opening = replace(
        OPENING, rule="rejection", payload="probabilities", policy=SamplingPolicy(1.0), split=split
    )
    base = base_digest(opening, b"prompt", spec_digest(SPEC))
    robot = EdgeDecoder(opening, load_preset("dssd_dense"))
    robot.start(0.0, SPEC)
    robot.handle(Received(Opened("s", b"", base)), 0.0)
    robot.handle(PROMPT, 0.0)
    q = TokenDistribution(np.full(20, 0.05, np.float32))
    ours = Draft((3, 4), None, (q, q))
    (branch,) = robot._exchange._speculator._working.branches
    whole = FinishedDraft(ours, (3, 4), 1, leaves=(((3, 4), 0.5),))
    robot.handle(Drafted(branch, (3, 4), whole, True), 0.0)
    return robot, base, q


@pytest.mark.parametrize(("token", "finish_"), [(9, ""), (None, "end")])
def test_what_is_settled_is_not_resampled(token: int | None, finish_: str) -> None:
    robot, base, q = splitting()
    both = verdict(base, (0,), token, finish=finish_, residual=q)
    actions = robot.handle(both, 1.0)
    assert finish(actions).reason == "bad_verdict"
    assert not [action for action in actions if isinstance(action, Emit)]


def test_a_verdict_said_again_about_another_draft_is_not_resampled_from_ours() -> None:
    robot, base, q = splitting()
    told = verdict(base, (0,), None, draft=(5,), tokens=(5,), residual=q)
    actions = robot.handle(told, 1.0)
    assert finish(actions).reason == "bad_verdict"
    assert not [action for action in actions if isinstance(action, Emit)]


def test_a_verdict_without_a_draft_ends_the_decode() -> None:
    assert finish(drafting().handle(Received(Verdict(BASE, (), 9)), 2.0)).reason == "bad_verdict"


def test_an_end_is_told_to_the_cloud_and_nothing_happens_after() -> None:
    robot = waiting()
    actions = robot.handle(verdict(BASE, (0,), 0, finish="end"), 2.0)
    assert actions == [Emit(0, (3, 0), True), Send(Close()), Finish("end")]
    assert robot.deadline is None
    later = (drafted(robot, (1,), (1,)), OPENED, LinkUp(), Tick(), Abort("late"))
    assert [robot.handle(event, 99.0) for event in later] == [[]] * 5


def test_silence_ends_the_decode_at_its_deadline_and_says_what_broke() -> None:
    robot = waiting()
    assert robot.deadline == 11.0
    assert robot.handle(LinkLost("socket closed"), 4.0) == []
    assert robot.handle(Tick(), 10.9) == []
    end = finish(robot.handle(Tick(), 11.0))
    assert end.reason == "timeout"
    assert "10 s" in end.text
    assert "socket closed" in end.text


def test_nothing_is_owed_while_the_robot_drafts() -> None:
    robot = drafting()
    assert robot.deadline is None
    assert robot.handle(Tick(), 1e9) == []


def test_only_an_answer_moves_the_deadline() -> None:
    robot = waiting()
    for now in (2.0, 5.0, 8.0):
        robot.handle(LinkLost("flap"), now)
        robot.handle(LinkUp(), now)
        robot.handle(OPENED, now)
    assert robot.deadline == 11.0
    robot.handle(verdict(BASE, (0,), 9), 9.0)
    drafts(robot, (3, 4, 5, 6), 10.0)
    assert robot.deadline == 20.0


def test_after_a_loss_the_session_is_resumed_and_the_draft_said_again() -> None:
    robot = waiting()
    robot.handle(LinkLost("x"), 2.0)
    assert sent(robot.handle(LinkUp(), 3.0)) == [Resume("s", BASE)]
    (again,) = sent(robot.handle(OPENED, 3.1))
    assert isinstance(again, DraftMessage)
    assert again.draft.tokens == (3, 4, 5, 6)
    assert robot.stats.resumed == 1


def test_a_loss_before_the_session_is_known_says_open_and_draft_again() -> None:
    robot = decoder()
    robot.start(0.0, SPEC)
    robot.handle(PROMPT, 0.0)
    assert sent(robot.handle(LinkUp(), 0.1)) == [OPENING]
    drafts(robot, (3, 4, 5, 6), 0.2)
    first, draft = sent(robot.handle(LinkUp(), 0.3))
    assert first == OPENING
    assert draft.draft.tokens == (3, 4, 5, 6)


@pytest.mark.parametrize(
    ("event", "reason", "text"),
    [
        (Abort("e_stop"), "aborted", "e_stop"),
        (Unusable("the frame is damaged"), "bad_request", "the frame is damaged"),
        (Received(Fault("overloaded", "try later")), "overloaded", "try later"),
    ],
)
@pytest.mark.parametrize("make", [drafting, waiting])
def test_whatever_ends_a_decode_is_said_with_a_goodbye(make, event, reason, text) -> None:
    robot = make()
    assert robot.handle(event, 2.0) == [Send(Close()), Finish(reason, text)]
    assert robot.finished


def test_a_decode_without_a_cloud_says_nothing() -> None:
    robot = decoder("edge_only")
    assert robot.start(0.0) == [Prepare(b"")]
    robot.handle(replace(PROMPT, spec_digest=b""), 0.0)
    assert robot.handle(drafted(robot, (5,)), 0.0) == [Emit(0, (5,), False)]
    assert robot.handle(drafted(robot, (0,), (5, 0)), 0.0) == [Emit(1, (0,), False), Finish("end")]


def generating() -> EdgeDecoder:
    robot = decoder("cloud_sd")
    assert robot.start(0.0, SPEC) == [Send(OPENING)]
    assert sent(robot.handle(OPENED, 0.1)) == [Generate(BASE, True)]
    return robot


def test_verdicts_that_overtook_one_another_settle_in_order() -> None:
    robot = generating()
    second = BASE.extend((1, 2))
    third = second.extend((3,))
    early = verdict(third, (), 4)
    assert robot.handle(early, 1.0) == []
    assert robot.handle(early, 1.0) == []  # a second copy is stale
    assert robot.handle(verdict(second, (), 3), 1.0) == []
    actions = robot.handle(verdict(BASE, (0,), 2, (1,), tokens=(1,), drafted=4), 1.0)
    assert actions == [Emit(0, (1, 2), True), Emit(2, (3,), True), Emit(3, (4,), True)]
    assert robot.stats.stale == 1
    assert len(robot.stats.rounds) == 3


def test_early_verdicts_that_never_come_true_are_bounded() -> None:
    robot = generating()
    for i in range(1000):
        robot.handle(Received(Verdict(PrefixDigest(5, i), (), 4)), 1.0)
    assert robot.stats.stale == 1000 - 64


def test_no_token_is_drafted_that_the_answer_has_no_room_for() -> None:
    robot = EdgeDecoder(replace(OPENING, max_tokens=3), load_preset("dsd"))
    robot.start(0.0, SPEC)
    robot.handle(OPENED, 0.0)
    assert robot.handle(PROMPT, 0.0) == [work((), chain(2))]
    drafts(robot, (3, 4), 0.0)
    assert robot.handle(verdict(BASE, (0,), 9), 1.0)[1:] == [work((3, 9), chain(1))]


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
