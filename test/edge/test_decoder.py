"""The robot's state machine, one event at a time: how a decode opens, resumes, waits and ends."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from helpers.edge_decoder import (
    BASE,
    OPENED,
    OPENING,
    PROMPT,
    SPEC,
    Robot,
    decoder,
    drafted,
    drafting,
    drafts,
    finish,
    sent,
    verdict,
    waiting,
    work,
)
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.shape import chain
from edge_cloud_spec.edge.decoder import MAX_LOST, EdgeDecoder
from edge_cloud_spec.edge.events import (
    ANSWERED,
    Abort,
    Cut,
    DrafterFailed,
    Emit,
    Finish,
    LinkLost,
    LinkUp,
    Prefilled,
    Prepare,
    PromptReady,
    Received,
    Send,
    TimePassed,
    Unusable,
)
from edge_cloud_spec.edge.reply_deadline import JITTER, ReplyDeadline, spread
from edge_cloud_spec.edge.rounds import Mode
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.channel import MAX_RETRY_S
from edge_cloud_spec.wire.codec import decode_server, encode_server
from edge_cloud_spec.wire.messages import (
    PROTOCOL,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Open,
    Opened,
    Resume,
    Verdict,
    spec_digest,
)


def test_a_known_specification_saves_waiting_for_the_cloud() -> None:
    robot = decoder()
    assert robot.start(0.0, SPEC) == [Send(OPENING), Prepare(SPEC)]
    assert robot.mode is Mode.READING
    assert robot.handle(PROMPT, 0.1) == [work((), chain(4))]
    assert robot.mode is Mode.LEADING


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
    effects = [*robot.handle(other, 0.0), *robot.handle(PROMPT, 0.0)]
    assert finish(effects).reason == "prompt_mismatch"
    assert "same tokenizer" in finish(effects).text
    assert sent(effects) == [Close()]


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


def test_an_end_is_told_to_the_cloud_and_nothing_happens_after() -> None:
    robot = waiting()
    effects = robot.handle(verdict(BASE, (0,), 0, finish="end"), 2.0)
    assert effects == [Emit(0, (3, 0), True), Send(Close()), Finish("end")]
    assert robot.deadline is None
    later = (drafted(robot, (1,), (1,)), OPENED, LinkUp(), TimePassed(), Abort("late"))
    assert [robot.handle(event, 99.0) for event in later] == [[]] * 5


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


def test_a_drafter_that_fails_leaves_the_answer_to_the_cloud() -> None:
    """At once where a draft was due, else after the verdict on the one that is on its way."""
    robot, failed = drafting(), DrafterFailed("it is gone")
    (ask,) = sent(robot.handle(failed, 1.0))
    assert isinstance(ask, Generate) and ask.base == BASE
    assert robot.mode is Mode.FOLLOWING and robot.stats.failure == "it is gone"
    assert robot.handle(failed, 1.1) == []
    robot = waiting()
    assert robot.handle(failed, 1.5) == []
    emit, *others = robot.handle(verdict(BASE, (0,), 9), 2.0)
    assert isinstance(emit, Emit) and [type(each) for each in sent(others)] == [Generate]
    assert finish(robot.handle(TimePassed(), 12.0)).reason == "timeout"  # the cloud owes it


def test_a_drafter_that_failed_under_an_old_specification_reads_the_next_one() -> None:
    robot = decoder()
    robot.start(0.0, b"an old one")
    robot.handle(PromptReady(b"prompt", spec_digest(b"an old one"), (0,), 20), 0.0)
    robot.handle(DrafterFailed("it is gone"), 0.1)
    assert robot.handle(Received(Opened("s", SPEC, BASE)), 0.2) == [Prepare(SPEC)]
    assert robot.width  # else nobody reads it, and nobody asks
    robot.handle(replace(PROMPT, prefilled=False), 0.3)
    (ask,) = sent(robot.handle(Prefilled(), 0.4))
    assert isinstance(ask, Generate) and robot.mode is Mode.FOLLOWING


def test_a_drafter_that_fails_before_there_is_a_prompt_waits_for_it() -> None:
    robot = decoder()
    robot.start(0.0, SPEC)
    robot.handle(OPENED, 0.0)
    assert robot.handle(DrafterFailed("it is gone"), 0.1) == []
    assert any(isinstance(ask, Generate) for ask in sent(robot.handle(PROMPT, 0.2)))


def test_a_prompt_is_read_once_and_by_robots_that_draft() -> None:
    robot = drafting()
    drafts(robot, (3, 4, 5, 6), 1.0)
    assert robot.handle(Prefilled(), 1.1) == [] and robot.mode is Mode.LEADING
    robot = decoder("cloud_ar")
    robot.start(0.0)
    robot.handle(OPENED, 0.0)
    assert robot.handle(Prefilled(), 0.1) == [] and robot.mode is Mode.LISTENING


def test_a_prompt_that_is_said_anew_after_a_verdict_ends_the_decode() -> None:
    """Else the answer's first tokens would be of one prompt, and the others of another."""
    robot = decoder()
    robot.start(0.0, SPEC)
    robot.handle(PROMPT, 0.0)
    there = BASE.extend((3,)).short
    robot.handle(Received(Verdict(BASE, (0,), None, tokens=(3,), leads_to=there)), 0.1)
    assert robot.tokens == [3]
    late = Received(Opened("s", b"another specification", BASE))
    assert finish(robot.handle(late, 0.2)).reason == "bad_opened"


def test_a_session_that_is_opened_again_is_not_waited_for_without_end() -> None:
    """A verdict overtook the Opened, which then goes on from elsewhere."""
    robot = decoder()
    robot.start(0.0, SPEC)
    robot.handle(PROMPT, 0.0)
    robot.handle(LinkUp(moved=True), 0.0)
    there = BASE.extend((3,)).short
    robot.handle(Received(Verdict(BASE, (0,), None, tokens=(3,), leads_to=there)), 0.1)
    robot.handle(OPENED, 0.2)
    assert robot.deadline is not None


def test_without_a_cloud_a_drafter_that_fails_ends_the_decode() -> None:
    robot = decoder("edge_only")
    robot.start(0.0)
    robot.handle(replace(PROMPT, spec_digest=b""), 0.0)
    assert robot.handle(DrafterFailed("it is gone"), 0.1) == [
        Finish("drafter_failed", "it is gone")
    ]


@pytest.mark.parametrize("make", [drafting, waiting])
def test_an_answer_that_is_cut_keeps_what_is_verified_and_takes_nothing_more(make) -> None:
    robot = make()
    assert robot.handle(Cut(), 2.0) == [Send(Close()), Finish("cut")] and "cut" in ANSWERED
    assert robot.handle(verdict(BASE, (0,), 9), 2.1) == []
    assert robot.handle(Cut(), 2.2) == []


def test_a_fault_does_not_pass_for_an_answer_that_was_cut() -> None:
    effects = waiting().handle(Received(Fault("cut", "")), 2.0)
    assert finish(effects).reason == "fault"


def test_a_decode_without_a_cloud_says_nothing() -> None:
    robot = decoder("edge_only")
    assert robot.start(0.0) == [Prepare(b"")]
    robot.handle(replace(PROMPT, spec_digest=b""), 0.0)
    assert robot.handle(drafted(robot, (5,)), 0.0) == [Emit(0, (5,), False)]
    assert robot.handle(drafted(robot, (0,), (5, 0)), 0.0) == [Emit(1, (0,), False), Finish("end")]


def test_no_token_is_drafted_that_the_answer_has_no_room_for() -> None:
    robot = Robot(replace(OPENING, max_tokens=3), load_preset("dsd"))
    robot.start(0.0, SPEC)
    robot.handle(OPENED, 0.0)
    assert robot.handle(PROMPT, 0.0) == [work((), chain(2))]
    drafts(robot, (3, 4), 0.0)
    assert robot.handle(verdict(BASE, (0,), 9), 1.0)[1:] == [work((3, 9), chain(1))]


# Silence and lost links: what is owed, until when, and what is said again.


def test_silence_ends_the_decode_at_its_deadline_and_says_what_broke() -> None:
    robot = waiting()
    assert robot.deadline == 11.0
    assert robot.handle(LinkLost("socket closed"), 4.0) == []
    assert robot.handle(TimePassed(), 10.9) == []
    end = finish(robot.handle(TimePassed(), 11.0))
    assert end.reason == "timeout"
    assert "10 s" in end.text
    assert "socket closed" in end.text


def test_nothing_is_owed_while_the_robot_drafts() -> None:
    robot = drafting()
    assert robot.deadline is None
    assert robot.handle(TimePassed(), 1e9) == []


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


# A verifier without room says when to come again: the robot waits so long, and no longer.


def full(after_s: float) -> Received:
    return Received(Fault("overloaded", "all sessions are taken", after_s))


def asked(reply_timeout: float = 10.0) -> EdgeDecoder:
    """Open is on its way, at 0 s."""
    robot = decoder("cloud_ar", reply_timeout)
    assert sent(robot.start(0.0)) == [OPENING]
    return robot


@given(st.floats(0.0, 30.0), st.integers(0, 2**64 - 1))
def test_a_wait_is_never_shorter_than_what_was_said_and_little_longer(
    wait: float, nonce: int
) -> None:
    until = ReplyDeadline(10.0, nonce).refused(wait, 5.0)
    assert 5.0 + wait <= until <= 5.0 + wait * (1 + JITTER)


def test_robots_that_were_refused_together_do_not_come_back_together() -> None:
    """Each by its decode's nonce; the same decode waits otherwise the next time."""
    untils = {ReplyDeadline(10.0, nonce).refused(4.0, 0.0) for nonce in range(50)}
    assert len(untils) == 50 and max(untils) - min(untils) > 0.5
    wait = ReplyDeadline(10.0, 1)
    assert wait.refused(4.0, 0.0) != wait.refused(4.0, 0.0)
    assert spread(0.0, Random(1)) == 0.0


def test_a_refused_robot_opens_again_when_it_was_told_and_is_served() -> None:
    robot = asked()
    assert robot.handle(full(2.0), 0.1) == []
    assert robot.deadline is not None
    assert 2.1 <= robot.deadline <= 2.6
    assert robot.handle(TimePassed(), 2.0) == []
    assert sent(robot.handle(TimePassed(), robot.deadline)) == [OPENING]
    assert robot.deadline == 10.0  # as it was: a refusal is no reply
    assert robot.handle(OPENED, 3.0)
    assert not robot.finished


def test_a_round_trip_is_known_from_the_opening_of_a_decode_that_was_asked_for_late() -> None:
    robot = decoder("cloud_ar")
    robot.start(50.0)
    robot.handle(OPENED, 50.5)
    assert robot.measures.one_way.value == 0.25


def test_reply_timeout_bounds_all_waiting() -> None:
    """However often it is refused; the last refusal says why."""
    robot, opened = asked(), 0
    while not robot.finished:
        now = robot.deadline
        assert now is not None and now <= 10.0
        effects = robot.handle(full(2.0), now - 0.01)
        if robot.finished:
            assert finish(effects).reason == "overloaded"
            assert "all sessions are taken" in finish(effects).text
            assert finish(effects).retry_after_s >= 2.0  # for the robot's next decision
        else:
            until = robot.deadline
            assert until is not None
            opened += len(sent(robot.handle(TimePassed(), until)))
    assert opened <= 4


def test_a_link_that_breaks_meanwhile_brings_no_robot_earlier() -> None:
    robot = asked()
    robot.handle(full(3.0), 0.1)
    for now in (0.2, 1.0, 2.0):
        robot.handle(LinkLost("restarted"), now)
        assert robot.handle(LinkUp(), now + 0.1) == []
    assert robot.deadline is not None
    assert sent(robot.handle(TimePassed(), robot.deadline)) == [OPENING]


def test_a_draft_that_was_made_meanwhile_is_sent_behind_the_open() -> None:
    robot = decoder("dsd")
    robot.start(0.0, SPEC)
    robot.handle(PromptReady(b"prompt", spec_digest(SPEC), (0,), 20), 0.0)
    robot.handle(full(2.0), 0.1)
    drafts(robot, (3, 4, 5, 6), 1.0)
    assert robot.deadline is not None
    opening, draft = sent(robot.handle(TimePassed(), robot.deadline))
    assert isinstance(opening, Open) and isinstance(draft, DraftMessage)
    assert draft.draft.tokens == (3, 4, 5, 6)


def test_a_refusal_that_says_no_time_ends_the_decode_as_that_of_an_older_cloud() -> None:
    assert finish(asked().handle(full(0.0), 0.1)).reason == "overloaded"
    other = Received(Fault("bad_request", "no picture", 2.0))
    assert finish(asked().handle(other, 0.1)).reason == "bad_request"


def test_a_cloud_cannot_have_a_robot_wait_for_hours() -> None:
    told = decode_server(encode_server(Fault("overloaded", "x", 86_400.0)))
    assert isinstance(told, Fault) and told.retry_after_s == MAX_RETRY_S


# An answer that goes on at another verifier, or at the first again: nobody waits in vain.

ELSEWHERE = PrefixDigest(0, 7)
FORGOT = Received(Fault("unknown_session", "start again"))


def opened(session: str, verified: int = 0, base: PrefixDigest = BASE) -> Received:
    return Received(Opened(session, b"", base, PROTOCOL, verified))


def moved() -> EdgeDecoder:
    """Four tokens are verified, and another verifier is asked to go on after them."""
    robot = waiting()
    robot.handle(verdict(BASE, (0, 1, 2), 9), 2.0)
    robot.handle(LinkLost("it died"), 3.0)
    (again,) = sent(robot.handle(LinkUp(moved=True), 3.1))
    assert again.verified == (3, 4, 5, 9)
    return robot


def test_a_session_that_is_found_again_is_asked_though_another_verifier_came_between() -> None:
    robot = EdgeDecoder(OPENING, load_preset("cloud_ar"), 10.0)
    robot.start(0.0)
    assert sent(robot.handle(opened("a"), 0.1)) == [Generate(BASE)]
    for now in (0.2, 0.4):  # the other one says nothing
        robot.handle(LinkLost("x"), now)
        assert sent(robot.handle(LinkUp(moved=True), now + 0.1)) == [OPENING]
    assert sent(robot.handle(opened("a"), 0.6)) == [Generate(BASE)]


def test_a_verifier_that_takes_the_tokens_goes_on_and_nobody_else_does() -> None:
    robot = moved()
    assert robot.handle(opened("b", 4), 3.2) == []
    (draft,) = sent(drafts(robot, (6, 6, 6, 6), 3.3))
    assert isinstance(draft, DraftMessage)
    assert draft.base == BASE.extend((3, 4, 5, 9))


@pytest.mark.parametrize(
    "wrong", [opened("b", 5), opened("b", 4, ELSEWHERE)], ids=["more tokens", "another prompt"]
)
def test_a_verifier_that_would_go_on_with_another_answer_ends_the_decode(wrong: Received) -> None:
    robot = moved()
    effects = robot.handle(wrong, 3.2)
    assert finish(effects).reason == "unknown_session"
    assert sent(effects) == [Close()]
    assert robot.tokens == [3, 4, 5, 9]


def test_a_session_with_fewer_tokens_is_opened_again_with_all_of_them() -> None:
    """Its Opened is late, or what was verified since is another session's."""
    robot = moved()
    (again,) = sent(robot.handle(opened("b", 3), 3.2))
    assert (type(again), again.verified) == (Open, (3, 4, 5, 9))


def test_an_answer_that_has_grown_since_it_was_handed_over_is_opened_again_whole() -> None:
    """The verdict of the session before arrives late: the new one would go on without it."""
    robot = moved()
    drafts(robot, (6, 6, 6, 6), 3.2)
    robot.handle(verdict(BASE.extend((3, 4, 5, 9)), (0,), 8, (6, 6, 6, 6)), 3.3)
    again = sent(robot.handle(opened("b", 4), 3.4))[0]
    assert (type(again), again.verified) == (Open, (3, 4, 5, 9, 6, 8))


def test_the_answer_to_a_resume_does_not_pass_for_a_session_that_is_opened() -> None:
    robot = moved()
    there = BASE.extend((3, 4, 5, 9))
    assert robot.handle(Received(Opened("s", b"", there)), 3.2) == []
    assert robot.handle(opened("b", 4), 3.3) == []
    robot.handle(LinkLost("x"), 3.4)
    (resume,) = sent(robot.handle(LinkUp(), 3.5))
    assert resume.session == "b"


def test_a_robot_that_hears_of_another_session_than_its_own_opens_its_answer_again() -> None:
    robot = waiting()
    opening, draft = sent(robot.handle(opened("other"), 1.5))
    assert isinstance(opening, Open)
    assert draft.draft.tokens == (3, 4, 5, 6)
    assert robot.handle(opened("other"), 1.6) == []
    robot.handle(verdict(BASE, (0,), 9), 1.7)
    assert robot.tokens == [3, 9]


@pytest.mark.parametrize("told", [[opened("a"), opened("b")], [opened("a"), FORGOT]])
def test_sessions_that_change_without_end_end_the_decode(told: list[Received]) -> None:
    robot, asked = waiting(), 0
    for event in told * (MAX_LOST + 2):
        effects = robot.handle(event, 2.0)
        asked += sum(isinstance(message, Open) for message in sent(effects))
        if robot.finished:
            break
    assert finish(effects).reason == "unknown_session"
    assert asked == MAX_LOST


@pytest.mark.parametrize("preset", ["cloud_ar", "cloud_sd"])
def test_no_session_that_is_opened_or_resumed_again_moves_the_deadline(preset: str) -> None:
    robot = EdgeDecoder(OPENING, load_preset(preset), 10.0)
    robot.start(0.0)
    robot.handle(opened("a"), 1.0)
    for now in (2.0, 3.0, 4.0):
        robot.handle(opened("a"), now)
        robot.handle(LinkLost("x"), now)
        robot.handle(LinkUp(moved=True), now)
        robot.handle(opened("b"), now)
    assert robot.deadline == 11.0


def test_what_was_pushed_to_a_session_that_is_forgotten_is_sent_to_the_next() -> None:
    robot = decoder("picospec")
    robot.start(0.0, SPEC)
    robot.handle(OPENED, 0.0)
    robot.handle(PROMPT, 0.0)
    drafts(robot, (3, 4, 5, 6), 1.0)
    (pushed,) = sent(drafts(robot, (7, 8, 9, 1), 1.1))
    assert pushed.base == BASE.extend((3, 4, 5, 6))
    opening, draft = sent(robot.handle(FORGOT, 1.2))
    assert (type(opening), draft.base) == (Open, BASE)
    robot.handle(opened("t"), 1.3)
    (again,) = sent(robot.handle(verdict(BASE, (0, 1, 2, 3), None), 1.4))
    assert (again.base, again.draft.tokens) == (pushed.base, (7, 8, 9, 1))
