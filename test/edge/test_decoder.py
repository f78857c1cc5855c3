"""The robot's state machine, event by event: how a decode begins and ends, what a verdict does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.edge_decoder import (
    BASE,
    OPENED,
    OPENING,
    PROMPT,
    SPEC,
    Robot,
    begun,
    drafted,
    finish,
    play,
    sent,
    started,
    verdict,
    waiting,
    work,
)
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.decoding.digest import PrefixDigest
from edge_cloud_spec.decoding.draft import Draft
from edge_cloud_spec.decoding.policy import SamplingPolicy
from edge_cloud_spec.decoding.propose import FinishedDraft
from edge_cloud_spec.decoding.shape import chain
from edge_cloud_spec.decoding.split import SparseResidual, Split
from edge_cloud_spec.decoding.token_distribution import TokenDistribution
from edge_cloud_spec.edge.decoder import MAX_LOST
from edge_cloud_spec.edge.events import (
    Abort,
    Cut,
    Drafted,
    Emit,
    Event,
    Finish,
    LinkLost,
    LinkUp,
    Prefilled,
    Prepare,
    PromptReady,
    TimePassed,
    Unusable,
)
from edge_cloud_spec.edge.reply_timeout import JITTER, ReplyTimeout
from edge_cloud_spec.edge.rounds import MAX_EARLY, Mode
from edge_cloud_spec.presets import load_preset
from edge_cloud_spec.wire.messages import (
    PROTOCOL,
    Close,
    DraftMessage,
    Fault,
    Generate,
    Generation,
    Open,
    Opened,
    Prediction,
    Resume,
    RowMessage,
    RowRequest,
    ServerMessage,
    Verdict,
    base_digest,
    spec_digest,
)

OLD = b"an old one"
OLD_PROMPT = PromptReady(b"prompt", spec_digest(OLD), (0,), 20)
SPECIFIED = Opened("s", SPEC, BASE)
DRAFT = (3, 4, 5, 6)
BY_ITSELF = verdict(BASE, (0,), None, draft=(3,), tokens=(3,))  # complete in itself
CHAIN = [work((), chain(4))]


def test_a_known_specification_saves_waiting_for_the_cloud() -> None:
    robot = Robot(OPENING, load_preset("dsd"))
    assert robot.start(0.0, SPEC) == [OPENING, Prepare(SPEC)]
    assert robot.mode is Mode.READING
    play(robot, (0.1, PROMPT, []), (0.1, Prefilled(), CHAIN))
    assert robot.mode is Mode.LEADING


def test_the_clouds_own_specification_is_taken_and_what_was_made_by_another_is_void() -> None:
    robot = started(spec=OLD)
    play(robot, (0.0, OLD_PROMPT), (0.0, Prefilled()))
    late = drafted(robot, (4,), (3, 4))
    play(
        robot,
        (0.0, DRAFT, [DraftMessage]),
        (0.1, SPECIFIED, [Prepare(SPEC)]),
        (0.1, late, []),
        (0.1, OLD_PROMPT, []),
        (0.2, PROMPT, []),
        (0.2, Prefilled(), CHAIN),
        (0.3, (5, 6, 7, 8), [(BASE, (5, 6, 7, 8))]),
    )


@pytest.mark.parametrize("known", [b"", SPEC])
def test_prompts_that_differ_end_the_decode_at_once(known: bytes) -> None:
    robot = started(spec=known)
    other = Opened("s", b"" if known else SPEC, PrefixDigest(0, 5))
    effects = [*robot.handle(other, 0.0), *robot.handle(PROMPT, 0.0)]
    assert finish(effects).reason == "prompt_mismatch"
    assert "same tokenizer" in finish(effects).text
    assert sent(effects) == [Close()]


def test_a_cloud_that_does_not_say_how_to_prompt_is_not_waited_for() -> None:
    play(started(spec=b""), (0.0, OPENED, "bad_opened"))


def test_a_prompt_that_is_said_anew_after_a_verdict_ends_the_decode() -> None:
    """Else the answer's first tokens would be of one prompt, and the others of another."""
    anew = Opened("s", b"another specification", BASE)
    reads = (0.0, PROMPT), (0.0, Prefilled())
    play(started(), *reads, (0.1, BY_ITSELF), (0.2, anew, "bad_opened"))


def test_an_end_is_told_to_the_cloud_and_nothing_happens_after() -> None:
    robot = waiting()
    ended = verdict(BASE, (0,), 0, finish="end")
    play(robot, (2.0, ended, [Emit(0, (3, 0), True), Close(), Finish("end")]))
    assert robot.deadline is None
    later = (drafted(robot, (1,), (1,)), OPENED, LinkUp(), TimePassed(), Abort("late"), Cut())
    play(robot, *((99.0, event, []) for event in later))


@pytest.mark.parametrize(
    ("event", "reason", "text"),
    [
        (Abort("e_stop"), "aborted", "e_stop"),
        (Cut(), "cut", ""),
        (Unusable("the frame is damaged"), "bad_request", "the frame is damaged"),
        (Fault("overloaded", "try later"), "overloaded", "try later"),
        (Fault("bad_request", "no picture", 2.0), "bad_request", "no picture"),
        (Fault("cut", "it lies"), "fault", "it lies"),  # no answer that was cut
    ],
)
@pytest.mark.parametrize("make", [begun, waiting])
def test_whatever_ends_a_decode_is_said_with_a_goodbye(
    make, event: Event, reason: str, text: str
) -> None:
    robot = make()
    play(robot, (2.0, event, [Close(), Finish(reason, text)]))
    assert robot.finished


def test_a_prompt_is_read_once_and_by_robots_that_draft() -> None:
    for robot, mode in ((waiting(), Mode.LEADING), (begun("cloud_ar"), Mode.LISTENING)):
        play(robot, (1.1, Prefilled(), []))
        assert robot.mode is mode


def test_a_session_that_is_opened_again_is_not_waited_for_without_end() -> None:
    """A verdict overtook the Opened, which then goes on from elsewhere."""
    robot = started()
    play(robot, (0.0, PROMPT), (0.0, Prefilled()), (0.0, LinkUp(moved=True)))
    play(robot, (0.1, BY_ITSELF), (0.2, OPENED))
    assert robot.deadline is not None


# Silence and lost links: what is owed, until when, and what is said again.


def test_silence_ends_the_decode_at_its_deadline_and_says_what_broke() -> None:
    robot = begun()
    assert robot.deadline is None  # nothing is owed while the robot drafts
    play(robot, (0.5, TimePassed(), []), (1.0, DRAFT))
    assert robot.deadline == 11.0
    play(robot, (4.0, LinkLost("socket closed"), []), (10.9, TimePassed(), []))
    end = finish(robot.handle(TimePassed(), 11.0))
    assert (end.reason, "10 s" in end.text, "socket closed" in end.text) == ("timeout", True, True)


def test_only_an_answer_moves_the_deadline() -> None:
    robot = waiting()
    for now in (2.0, 5.0, 8.0):
        play(robot, (now, LinkLost("flap")), (now, LinkUp()), (now, OPENED))
    assert robot.deadline == 11.0
    play(robot, (9.0, verdict(BASE, (0,), 9)))
    assert robot.deadline is None
    play(robot, (9.5, LinkLost("flap")), (10.0, DRAFT))
    assert robot.deadline == 19.5  # a link has to come back, too


def test_after_a_loss_the_session_is_resumed_and_the_draft_said_again() -> None:
    robot = waiting()
    play(
        robot,
        (2.0, LinkLost("x")),
        (3.0, LinkUp(), [Resume("s", BASE)]),
        (3.1, OPENED, [(BASE, DRAFT)]),
    )
    assert robot.stats.resumed == 1


def test_a_loss_before_the_session_is_known_says_open_and_draft_again() -> None:
    play(
        started(),
        (0.0, PROMPT),
        (0.0, Prefilled()),
        (0.1, LinkUp(), [OPENING]),
        (0.2, DRAFT),
        (0.3, LinkUp(), [OPENING, (BASE, DRAFT)]),
    )


# A verifier without room says when to come again: the robot waits so long, and no longer.


def full(after_s: float) -> Fault:
    return Fault("overloaded", "all sessions are taken", after_s)


@given(st.floats(0.0, 30.0), st.integers(0, 2**64 - 1))
def test_a_wait_is_never_shorter_than_what_was_said_and_little_longer(
    wait: float, nonce: int
) -> None:
    until = ReplyTimeout(10.0, nonce).refused(wait, 5.0)
    assert 5.0 + wait <= until <= 5.0 + wait * (1 + JITTER)


def test_robots_that_were_refused_together_do_not_come_back_together() -> None:
    """Each by its decode's nonce; the same decode waits otherwise the next time."""
    untils = {ReplyTimeout(10.0, nonce).refused(4.0, 0.0) for nonce in range(50)}
    assert len(untils) == 50 and max(untils) - min(untils) > 0.5
    wait = ReplyTimeout(10.0, 1)
    assert wait.refused(4.0, 0.0) != wait.refused(4.0, 0.0)


def test_a_refused_robot_opens_again_when_it_was_told_and_is_served() -> None:
    """A link that breaks meanwhile brings it no earlier."""
    robot = started("cloud_ar")
    play(robot, (0.1, full(2.0), []), (0.2, LinkLost("restarted"), []), (0.3, LinkUp(), []))
    assert robot.deadline is not None
    assert 2.1 <= robot.deadline <= 2.6
    play(robot, (2.0, TimePassed(), []), (robot.deadline, TimePassed(), [OPENING]))
    assert robot.deadline == 10.0  # as it was: a refusal is no reply
    play(robot, (3.0, OPENED, [Generate]))
    play(started("cloud_ar"), (0.1, full(0.0), "overloaded"))  # of an older cloud, without a time


def test_a_round_trip_is_known_from_the_opening_of_a_decode_that_was_asked_for_late() -> None:
    robot = Robot(OPENING, load_preset("cloud_ar"))
    robot.start(50.0)
    assert robot.deadline == 60.0  # as for a cloud that is not told otherwise
    play(robot, (50.5, OPENED))
    assert robot.measures.one_way.value == 0.25


def test_reply_timeout_bounds_all_waiting() -> None:
    """However often it is refused; the last refusal says why."""
    robot, opened = started("cloud_ar"), 0
    while not robot.finished:
        assert robot.deadline is not None and robot.deadline <= 10.0
        effects = robot.handle(full(2.0), robot.deadline - 0.01)
        if not robot.finished:
            opened += len(sent(robot.handle(TimePassed(), robot.deadline)))
    end = finish(effects)
    assert end.reason == "overloaded" and "all sessions are taken" in end.text
    assert end.retry_after_s >= 2.0  # for the robot's next decision
    assert opened <= 4


# An answer that goes on at another verifier, or at the first again: nobody waits in vain.

ELSEWHERE = PrefixDigest(0, 7)
FORGOT = Fault("unknown_session", "start again")
SETTLED = (3, 4, 5, 9)
HERE = BASE.extend(SETTLED)


def opened(session: str, verified: int = 0, base: PrefixDigest = BASE) -> Opened:
    return Opened(session, b"", base, PROTOCOL, verified)


def moved() -> Robot:
    """Four tokens are verified, and another verifier is asked to go on after them."""
    robot = waiting()
    play(robot, (2.0, verdict(BASE, (0, 1, 2), 9)), (3.0, LinkLost("it died")))
    assert verified_in(robot, LinkUp(moved=True)) == SETTLED
    return robot


def verified_in(robot: Robot, event: Event) -> tuple[int, ...]:
    """The tokens that it says are verified, as it opens its answer again upon this."""
    again = sent(robot.handle(event, 3.5))[0]
    assert isinstance(again, Open)
    return again.verified


def test_a_session_that_is_found_again_is_asked_though_another_verifier_came_between() -> None:
    robot = started("cloud_ar")
    play(robot, (0.1, opened("a"), [Generate(BASE)]))
    for now in (0.2, 0.4):  # the other one says nothing
        play(robot, (now, LinkLost("x")), (now + 0.1, LinkUp(moved=True), [OPENING]))
    play(robot, (0.6, opened("a"), [Generate(BASE)]))


def test_a_verifier_that_takes_the_tokens_goes_on_and_nobody_else_does() -> None:
    play(moved(), (3.2, opened("b", 4), []), (3.3, (6, 6, 6, 6), [(HERE, (6, 6, 6, 6))]))


@pytest.mark.parametrize(
    "wrong", [opened("b", 5), opened("b", 4, ELSEWHERE)], ids=["more tokens", "another prompt"]
)
def test_a_verifier_that_would_go_on_with_another_answer_ends_the_decode(
    wrong: ServerMessage,
) -> None:
    robot = moved()
    play(robot, (3.2, wrong, "unknown_session"))
    assert robot.tokens == [*SETTLED]


def test_an_answer_of_which_a_session_lacks_the_end_is_opened_again_whole() -> None:
    """Its Opened is late, or what was verified since is another session's."""
    robot = moved()
    assert verified_in(robot, opened("b", 3)) == SETTLED
    play(robot, (3.6, (6, 6, 6, 6)), (3.7, verdict(HERE, (0,), 8, (6, 6, 6, 6))))
    assert verified_in(robot, opened("b", 4)) == (*SETTLED, 6, 8)


def test_the_answer_to_a_resume_does_not_pass_for_a_session_that_is_opened() -> None:
    play(
        moved(),
        (3.2, Opened("s", b"", HERE), []),
        (3.3, opened("b", 4), []),
        (3.4, LinkLost("x")),
        (3.5, LinkUp(), [Resume("b", HERE)]),
    )


def test_a_robot_that_hears_of_another_session_than_its_own_opens_its_answer_again() -> None:
    robot = waiting()
    play(
        robot,
        (1.5, opened("other"), [Open, (BASE, DRAFT)]),
        (1.6, opened("other"), []),
        (1.7, verdict(BASE, (0,), 9)),
    )
    assert robot.tokens == [3, 9]


@pytest.mark.parametrize("told", [[opened("a"), opened("b")], [opened("a"), FORGOT]])
def test_sessions_that_change_without_end_end_the_decode(told: list[ServerMessage]) -> None:
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
    robot = started(preset)
    play(robot, (1.0, opened("a")))
    for now in (2.0, 3.0, 4.0):
        again = (opened("a"), LinkLost("x"), LinkUp(moved=True), opened("b"))
        play(robot, *((now, event) for event in again))
    assert robot.deadline == 11.0


def test_what_was_pushed_to_a_session_that_is_forgotten_is_sent_to_the_next() -> None:
    pushed = (BASE.extend(DRAFT), (7, 8, 9, 1))
    play(
        waiting("picospec"),
        (1.1, (7, 8, 9, 1), [pushed]),
        (1.2, FORGOT, [Open, (BASE, DRAFT)]),
        (1.3, opened("t")),
        (1.4, verdict(BASE, (0, 1, 2, 3), None), [pushed]),
    )


# What a verdict settles, verdicts that settle nothing, those that come early, and predictions


def test_a_verdict_settles_the_path_and_its_token_and_drafting_goes_on() -> None:
    robot = waiting()
    settles = [Emit(0, (3, 4, 9), True), work((3, 4, 9), chain(4))]
    play(robot, (3.0, verdict(BASE, (0, 1), 9, verify_s=0.5), settles))
    (done,) = robot.stats.rounds
    assert (done.drafted, done.accepted, done.emitted, done.base) == (4, 2, 3, 0)
    assert (done.sent, done.settled, done.link_s) == (1.0, 3.0, 1.5)
    assert robot.stats.tested == 3


@pytest.mark.parametrize("path", [(1,), (0, 2), (0, 0), (4,), (0, 1, 2, 3, 4)])
def test_a_path_that_was_not_drafted_ends_the_decode_and_emits_nothing(path: tuple) -> None:
    robot = waiting()
    effects = play(robot, (2.0, Verdict(BASE, path, 9), "bad_verdict"))
    assert effects[0] == Close() and robot.tokens == []


DIVERGED = verdict(BASE, (0, 1), 9, draft=(3, 5))


@pytest.mark.parametrize(
    ("robot", "told"),
    [
        # On another draft than ours: the accepted tokens would be ours, not the target's.
        (waiting, DIVERGED),
        (waiting, Verdict(BASE, (0, 1), 9)),  # it does not say where it leads
        # On a draft that was pushed before the link broke, and is not remembered.
        (begun, verdict(BASE, (0,), 9)),
        (begun, verdict(BASE, (0, 1), 9, draft=(7, 8), tokens=(7, 6))),
    ],
)
def test_a_verdict_that_leads_elsewhere_settles_nothing_and_the_robot_resumes(
    robot: Callable[[], Robot], told: ServerMessage
) -> None:
    """It is said again, complete in itself."""
    one, again = robot(), [(BASE, (3, 4, 5, 6))] if robot is waiting else []
    play(one, (2.0, told, [Resume("s", BASE)]))
    assert (one.tokens, one.stats.diverged, one.stats.rounds) == ([], 1, [])
    assert one.deadline == (11.0 if again else 12.0)  # the cloud owes a reply
    whole = verdict(BASE, (0, 1), 9, draft=(3, 5), tokens=(3, 5))
    play(one, (2.1, OPENED, again), (2.2, whole))
    assert one.tokens == [3, 5, 9]


def test_verdicts_that_always_lead_elsewhere_end_the_decode() -> None:
    robot = waiting()
    play(robot, *[(2.0, DIVERGED, [Resume("s", BASE)])] * 3)
    effects = play(robot, (2.0, DIVERGED, "diverged"))
    assert sent(effects) == [Close()] and robot.tokens == []


def splitting(
    residual: str = "dense", top_k: int = 0, tail: int = 0
) -> tuple[Robot, PrefixDigest, TokenDistribution]:
    """A robot that resamples itself, its draft (3, 4) on its way, and the Q of both."""
    split = Split(residual, top_k, tail)
    opening = replace(
        OPENING, rule="rejection", payload="probabilities", policy=SamplingPolicy(1.0), split=split
    )
    base = base_digest(opening, b"prompt", spec_digest(SPEC))
    robot = started("dssd_dense", opening=opening)
    play(robot, (0.0, Opened("s", b"", base)), (0.0, PROMPT), (0.0, Prefilled()))
    q = TokenDistribution(np.full(20, 0.05, np.float32))
    finished = FinishedDraft(Draft((3, 4), None, (q, q)), (3, 4), 1, leaves=(((3, 4), 0.5),))
    play(robot, (0.0, Drafted(robot.wanted[0], (3, 4), finished, True)))
    return robot, base, q


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": 9},  # it is settled
        {"token": None, "finish": "end"},
        {"token": None, "draft": (5,), "tokens": (5,)},  # said again, about another draft
    ],
)
def test_what_is_settled_or_not_ours_is_not_resampled(wrong: dict[str, Any]) -> None:
    robot, base, q = splitting()
    play(robot, (1.0, verdict(base, (0,), residual=q, **wrong), "bad_verdict"))
    assert robot.tokens == []


@pytest.mark.parametrize("generated", [False, True])
def test_a_verdict_that_comes_twice_while_all_of_p_is_awaited_is_dropped(generated: bool) -> None:
    """It settled nothing but a rejection, so that it is at the verified prefix still."""
    robot, base, _ = splitting("sparse", 1, 1)
    residual = SparseResidual(np.array([0]), np.array([0.05]), 0.95, (7,), (0.05,))
    rejected = verdict(base, (), None, residual=residual, generated=generated)
    play(robot, (1.0, rejected, [RowRequest(base)]))
    assert robot.mode is Mode.RESAMPLING
    play(robot, (1.1, rejected, []))
    assert robot.stats.stale == 1
    p = TokenDistribution(np.array([0.05, *[0.0] * 18, 0.95], np.float32))
    assert play(robot, (1.2, RowMessage(base, p)))[0] == Emit(0, (19,), True)
    assert robot.mode is Mode.LEADING


@pytest.mark.parametrize("robot", [begun, waiting])
def test_a_verdict_that_is_complete_in_itself_settles_whatever_was_asked_for(robot) -> None:
    """The cloud went on alone, or judged what it looked up: its nodes are not ours."""
    robot = robot()
    told = verdict(BASE, (0, 2), 9, draft=(7, 8), tokens=(7, 8), drafted=5)
    play(robot, (2.0, told, [Emit(0, (7, 8, 9), True), work((7, 8, 9), chain(4))]))
    (done,) = robot.stats.rounds
    assert (done.drafted, done.accepted, done.emitted) == (5, 2, 3)


# Verdicts that overtook another one: kept until their turn, each once, never too many.


def generating() -> Robot:
    robot = started("cloud_sd")
    play(robot, (0.1, OPENED, [Generate(BASE, Generation(True))]))
    return robot


def test_verdicts_that_overtook_one_another_settle_in_order() -> None:
    robot = generating()
    second = BASE.extend((1, 2))
    early = verdict(second.extend((3,)), (), 4)
    play(
        robot,
        (1.0, early, []),
        (1.0, early, []),  # a second copy is stale
        (1.0, verdict(second, (), 3), []),
        (
            1.0,
            verdict(BASE, (0,), 2, (1,), tokens=(1,), drafted=4),
            [Emit(0, (1, 2), True), Emit(2, (3,), True), Emit(3, (4,), True)],
        ),
    )
    assert (robot.stats.stale, len(robot.stats.rounds)) == (1, 3)


def test_an_early_verdict_of_one_verifier_is_not_taken_after_those_of_the_next() -> None:
    robot = generating()
    play(
        robot,
        (1.0, verdict(BASE.extend((1,)), (), 7), []),
        (2.0, LinkUp(moved=True)),
        (3.0, Opened("t", b"", BASE)),
        (4.0, verdict(BASE, (), 1)),
    )
    assert robot.tokens == [1]


def test_so_many_are_kept_and_those_that_were_passed_make_room() -> None:
    robot, last = generating(), verdict(PrefixDigest(9, 9), (), 1)
    early = [verdict(PrefixDigest(3, number), (), 1) for number in range(MAX_EARLY)]
    play(robot, *((1.0, told, []) for told in early))
    assert robot.stats.stale == 0
    whole = verdict(BASE, (0, 1), 3, draft=(1, 2), tokens=(1, 2))
    # At their length one of them is next.
    play(robot, (1.1, last, []), (1.2, whole), (1.3, last, []))
    assert robot.stats.stale == 2
    play(robot, (1.4, verdict(BASE.extend((1, 2, 3)), (), 4)), (1.5, last, []))
    assert robot.stats.stale == 2


# What an early exit guesses is drafted after, for a preset that wants it, and nothing else.


def guess(path: tuple[int, ...], token: int = 9, confidence: float = 0.8) -> Prediction:
    return Prediction(BASE, path, token, confidence)


def test_a_guess_is_drafted_after_and_the_draft_goes_out_when_it_comes_true() -> None:
    robot = waiting("fsd")
    assert sent(play(robot, (1.1, guess((0, 1))))) == []
    assert robot.tokens == [] and robot.stats.predictions == 1
    guessed = (3, 4, 9)
    effects = play(
        robot,
        (1.2, drafted(robot, (7, 8), (7, 8), prefix=guessed)),
        (2.0, verdict(BASE, (0, 1), 9), [(BASE.extend(guessed), (7, 8))]),
    )
    assert effects[0] == Emit(0, guessed, True)
    assert robot.measures.exits.total == 1.0


def test_a_guess_that_does_not_come_true_is_counted_and_forgotten() -> None:
    robot = waiting("fsd")
    play(robot, (1.1, guess(())), (2.0, verdict(BASE, (0,), 8)))
    assert all(branch.prefix[:2] == (3, 8) for branch in robot.wanted)
    exits = robot.measures.exits
    assert (exits.total, exits.count) == (0.0, 1)


@pytest.mark.parametrize(("preset", "rounds"), [("fsd", 1), ("dsd", 0)])
def test_a_round_without_a_guess_counts_where_one_was_asked_for(preset: str, rounds: int) -> None:
    """So a verifier without exits is known for one."""
    robot = waiting(preset)
    play(robot, (2.0, verdict(BASE, (0,), 8)))
    assert (robot.measures.exits.total, robot.measures.exits.count) == (0.0, rounds)


@pytest.mark.parametrize(
    ("preset", "path"),
    [
        *(("fsd", path) for path in ((1,), (0, 4), (0, 0))),  # no path of the draft
        *((preset, (0,)) for preset in ("dsd", "picospec", "specedge")),  # without exits
    ],
)
def test_a_guess_off_the_draft_or_not_asked_for_is_nothing(
    preset: str, path: tuple[int, ...]
) -> None:
    robot = waiting(preset)
    play(robot, (1.1, guess(path), []))
    assert (robot.stats.predictions, robot.stats.stale) == (0, 0)


def test_a_guess_at_nothing_that_was_sent_is_stale() -> None:
    robot = begun("fsd")
    play(robot, (0.1, guess(()), []))
    assert (robot.stats.predictions, robot.stats.stale) == (0, 1)


def test_the_surer_guess_is_worked_on_first() -> None:
    robot = waiting("fsd")
    play(robot, (1.1, guess((), 8, 0.3)), (1.2, guess((0,), 9, 0.7)))
    places = [branch.prefix for branch in robot.wanted]
    assert places.index((3, 9)) < places.index((8,))
    play(robot, (1.3, guess((), 8, 0.9)))
    assert robot.wanted[0].prefix == (8,)
