"""The grammar: what is exactly an action moves the robot, and nothing else does."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
from helpers.drill import read_as
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.dialects import load_dialect
from edge_cloud_spec.nav import answer
from edge_cloud_spec.nav.answer import (
    CLAUSES,
    Action,
    Dialect,
    every_action,
    parse_action,
)
from edge_cloud_spec.nav.answer_sequencer import (
    FRAME_FUTURE_S,
    MAX_CHARACTERS,
    REQUESTS_REMEMBERED,
    SAME_FRAME_S,
    AnswerSequencer,
)
from edge_cloud_spec.nav.events import Words

CLAUSE = answer._CLAUSE
EXACT = {str(action) for action in every_action()}
WORDS = (
    "move turn forward backward left right small medium large search stop action: reason: ; ahead"
)
nearly = st.lists(st.sampled_from([*WORDS.split(), " ", "\n", "Move", "forwards"]), max_size=8)


def test_every_action_is_read_back_from_its_words() -> None:
    assert len(EXACT) == 14
    assert {parse_action(text) for text in EXACT} == set(every_action())


around = st.one_of(st.text(), nearly.map(" ".join), nearly.map("".join))
exact = st.sampled_from(sorted(EXACT))


@given(st.one_of(around, st.tuples(around, exact, around).map("".join)))
def test_no_text_but_the_exact_actions_is_an_action(text: str) -> None:
    assert (parse_action(text) is not None) == (text in EXACT)


FIELDS = st.sampled_from(["", "move", "turn", "stop", "left", "forward", "small", "large", "fly"])
AMOUNTS = st.one_of(st.floats(), st.sampled_from([0.0, 0.25, 30.0]))


@given(FIELDS, FIELDS, FIELDS, AMOUNTS)
def test_a_message_holds_an_action_or_none_or_is_refused(
    verb: str, direction: str, size: str, amount: float
) -> None:
    fields = {"verb": verb, "direction": direction, "size": size, "amount": amount}
    said = Action(**fields)
    measured = replace(said, amount=0.0, size="small") in every_action() and not size
    try:
        read = Action.read(SimpleNamespace(**fields))
    except ValueError as error:
        assert "is no action" in str(error)
        assert said not in every_action() and not (measured and 0.0 < amount < math.inf)
        return
    assert read == (None if said == Action("") else said)
    assert read is None or read in every_action() or (measured and 0.0 < amount < math.inf)


DIALECTS = (CLAUSES, replace(CLAUSES, thinks_until="</think>"), load_dialect("uni_navid"))
PARTS = (
    "action: ",
    "reason: ",
    "search",
    "turn left small",
    "it is; there",
    ";",
    " ",
    "</think>\n",
)


@given(st.sampled_from(DIALECTS), st.lists(st.sampled_from(PARTS), max_size=20).map("".join))
def test_what_is_decided_is_the_shortest_beginning_with_the_action(
    dialect: Dialect, text: str
) -> None:
    ends = range(len(text) + 1)
    end = next((end for end in ends if dialect.action_of(text[:end]) is not None), len(text))
    assert dialect.read(text).end == end


@given(st.sampled_from(DIALECTS), st.integers(1, 60), st.booleans())
def test_what_is_decided_is_found_in_one_pass_over_the_answer(
    dialect: Dialect, clauses: int, acts: bool
) -> None:
    """Counted in characters that are matched; before, each beginning of the answer was parsed."""
    thought = f"so; {'hm; ' * clauses}</think>\n" if dialect.thinks_until else ""
    text = thought + "reason: it; " * clauses + "action: search; reason: it;" * acts
    matched: list[str] = []

    class Counting:
        def fullmatch(self, clause: str) -> re.Match[str] | None:
            matched.append(clause)
            return CLAUSE.fullmatch(clause)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer, "_CLAUSE", Counting())
        dialect.read(text)
    assert sum(map(len, matched)) <= len(text)
    assert matched or dialect == DIALECTS[2], "the count is one of what is read"


ANSWER = ("action", ": move", " forward", " large", ";", " reason: it", " is far;")
LARGE = parse_action("move forward large")
LONG = "reason: " + "x" * (MAX_CHARACTERS - 8)


def words(request: str = "r", stamp: float = 7e-9, **changes: object) -> Words:
    """``stamp``: s of the camera's clock."""
    plain = Words(request, 0, (0,), "", True, False, 0, 0.25, "goal-1", "find it", 3)
    told = replace(plain, stamp=round(stamp * 1e9), **changes)  # type: ignore[arg-type]
    return read_as(CLAUSES, told)[0]


def pieces(request: str, texts: tuple[str, ...] = ANSWER, stamp: float = 7e-9) -> list[Words]:
    """An answer, a token a message."""
    last = len(texts) - 1
    said = (
        words(request, stamp, position=n, text=text, finished=n == last)
        for n, text in enumerate(texts)
    )
    return read_as(CLAUSES, *said)


def test_an_answer_is_settled_once_at_its_delimiter_with_what_its_words_say() -> None:
    listener, told = AnswerSequencer(), pieces("r")
    told[1:] = [replace(each, stamp=8, goal_id="goal-2", stops=4) for each in told[1:]]
    settled = [listener.receive(each, 100.0 + n) for n, each in enumerate(told)]
    assert [one is not None for one in settled] == [False, False, False, False, True, False, False]
    (one,) = [one for one in settled if one]
    assert (one.reading.action, one.reading.problem, one.frame_time, one.verified) == (
        LARGE,
        "",
        99.75,
        True,
    )
    first = one.words
    assert (first.request, first.stamp, first.goal_id, first.stops) == ("r", 7, "goal-1", 3)
    assert set(listener.counts.values()) == {0}


@given(st.randoms(use_true_random=False), st.integers(0, 3))
def test_in_any_order_an_answer_is_read_in_its_own_or_not_at_all(
    random: Random, repeats: int
) -> None:
    listener, told = AnswerSequencer(), pieces("r")
    told += [random.choice(told) for _ in range(repeats)]
    random.shuffle(told)
    expected, outcome, repeated, misplaced = 0, None, 0, 0
    for each in told:
        one = listener.receive(each, 100.0)
        in_turn = each.position == expected
        repeated += each.position < expected
        misplaced += each.position > expected
        expected += in_turn
        ends = expected == 5 if in_turn else each.finished and each.position > expected
        assert (one is not None) == (ends and outcome is None)
        if one is not None:
            assert one.reading.action == (LARGE if in_turn else None)
            assert ("missing" in one.reading.problem) != in_turn
            outcome = one
    assert (listener.counts["repeated"], listener.counts["out_of_order"]) == (repeated, misplaced)


@pytest.mark.parametrize("place", range(5))
def test_one_piece_that_is_not_verified_makes_the_answer_so(place: int) -> None:
    listener, told = AnswerSequencer(), pieces("r")
    told[place] = replace(told[place], verified=False)
    (one,) = [one for one in (listener.receive(each, 100.0) for each in told) if one]
    assert not one.verified
    (following,) = [one for one in (listener.receive(each, 101.0) for each in pieces("s")) if one]
    assert following.verified


def test_words_of_an_older_frame_or_of_a_request_that_was_replaced_are_stale() -> None:
    listener = AnswerSequencer()
    listener.receive(words("a", 99.5, age=0.5), 100.0)
    assert listener.receive(words("b", 99.0, text="action: search;", age=1.0), 100.0) is None
    assert listener.counts["stale"] == 1
    same = words("c", 99.49, text="action: stop;", age=0.5 + SAME_FRAME_S / 2)
    assert listener.receive(same, 100.0) is not None  # of the same frame, up to rounding
    assert listener.receive(words("a", 99.5, age=0.0), 101.0) is None
    assert listener.counts["stale"] == 2
    late = words("d", 99.4, text="action: search;", age=0.5 + SAME_FRAME_S * 3)
    assert listener.receive(late, 100.0) is None
    assert listener.counts["stale"] == 3


@given(
    st.lists(st.floats(0.001, 0.2), min_size=2, max_size=30),
    st.floats(-1e5, 1e5),
    st.lists(st.floats(0.0, 0.5), min_size=30, max_size=30),
)
def test_a_later_frame_counts_however_badly_two_clocks_were_read_together(
    apart: list[float], clock: float, took: list[float]
) -> None:
    """``took``: s for which the thread had no turn between the two, of which the age is made."""
    listener, taken = AnswerSequencer(), 1e6
    for n, (passed, waited) in enumerate(zip(apart, took, strict=False)):
        taken += passed
        heard = words(f"r{n}", taken + clock, text="action: search;", age=waited - clock)
        assert listener.receive(heard, taken, clock) is not None
    older = words("older", taken + clock - 0.001, text="action: search;", age=0.9 - clock)
    assert listener.receive(older, taken + 0.001, clock) is None


@given(st.lists(st.floats(-1e5, 1e5), min_size=2, max_size=12))
def test_a_clock_of_this_computer_that_steps_makes_no_later_frame_old(clocks: list[float]) -> None:
    listener = AnswerSequencer()
    for n, clock in enumerate(clocks):
        heard = words(f"r{n}", 1e6 + n + clock, text="action: search;", age=0.2)
        assert listener.receive(heard, n + 0.2) is not None


@pytest.mark.parametrize("age", [1.0, math.nan])
def test_a_stop_is_heard_from_an_older_request_too_and_once(age: float) -> None:
    listener = AnswerSequencer()
    begun, end = pieces("a", ("action: st", "op;"))
    assert listener.receive(begun, 100.0) is None
    begun, other = pieces("b", ("action: tu", "rn left small;"), stamp=100.25)
    assert listener.receive(begun, 100.5) is None
    stop = listener.receive(end, 101.0)
    assert stop is not None and stop.reading.action == parse_action("stop")
    assert listener.receive(end, 101.0) is None and listener.counts["stale"] == 1
    older = listener.receive(words("c", 99.5, text="action: stop;", age=age), 100.5)
    assert older is not None and older.reading.action == parse_action("stop")
    one = listener.receive(other, 101.0)
    assert one is not None and str(one.reading.action) == "turn left small", "the newest goes on"


def test_a_stamp_from_the_future_does_not_make_the_next_ones_old() -> None:
    listener = AnswerSequencer()
    listener.receive(words("a", age=-3600.0), 100.0)
    (one,) = [one for one in [listener.receive(words("b", text="action: stop;"), 101.0)] if one]
    assert one.frame_time == 100.75
    odd = listener.receive(words("c", text="action: stop;", age=-9.0), 102.0)
    assert odd is not None and odd.frame_time == 111.0


@given(
    st.lists(st.tuples(st.integers(0, 40), st.floats(0.01, 3.0)), min_size=2, max_size=12),
    st.one_of(st.floats(-0.5, 5.0), st.floats(-1e5, 1e5)),
    st.floats(0.0, FRAME_FUTURE_S - 0.01),
)
def test_the_newest_frame_counts_whatever_the_cameras_clock_and_the_order_of_arrival(
    frames: list[tuple[int, float]], clock: float, unmeasured: float
) -> None:
    """``frames``: when each was taken, in tenths of a second, and how long its answer took."""
    listener, newest = AnswerSequencer(), -math.inf
    arrivals = sorted((taken / 10 + took, taken / 10) for taken, took in frames)
    for n, (now, taken) in enumerate(arrivals):
        stamp = 1e6 + taken + clock
        heard = words(f"r{n}", stamp, text="action: search;", age=now - taken - clock)
        counts = listener.receive(heard, 100.0 + now, clock - unmeasured) is not None
        assert counts == (taken >= newest)
        newest = max(newest, taken)


@given(
    st.integers(0, 5),
    st.floats(FRAME_FUTURE_S, 1e9),
    st.lists(st.floats(0.02, 2.0), min_size=6, max_size=6),
    st.floats(0.0, 5.0),
)
def test_one_absurd_stamp_blocks_no_later_frame(
    absurd: int, future: float, takes: list[float], clock: float
) -> None:
    listener, now = AnswerSequencer(), 100.0
    for n, took in enumerate(takes):
        now += took
        age = -future - clock - 0.01 if n == absurd else 0.01 - clock
        one = listener.receive(words(f"r{n}", text="action: search;", age=age), now, clock)
        assert one is not None


def test_an_offset_that_holds_no_more_leaves_no_frame_of_its_time_behind() -> None:
    """Measured an hour ahead, and then set right: frames are ordered as before."""
    listener = AnswerSequencer()
    ahead = words("ahead", 3700.0, text="action: search;", age=-3600.0)
    assert listener.receive(ahead, 100.0, 3600.0) is not None
    assert listener.receive(words("b", 101.0, text="action: search;", age=0.2), 101.2) is not None
    assert listener.receive(words("c", 100.9, text="action: search;", age=0.4), 101.3) is None
    assert listener.receive(words("d", 101.1, text="action: search;", age=0.3), 101.4) is not None


def test_so_many_requests_are_remembered_and_the_newest_whatever_comes() -> None:
    listener = AnswerSequencer()
    for n in range(REQUESTS_REMEMBERED + 2):
        listener.receive(words(str(n), 100.0 + n, age=0.0), 100.0 + n)
    assert listener.receive(words("1", 101.0, age=0.0), 300.0) is None  # the oldest remembered
    assert listener.counts["stale"] == 1
    assert listener.receive(words("0", 300.0, text="action: stop;", age=0.0), 300.0) is not None
    newest = words("newest", 300.0, text="action: search;", age=0.0)
    assert listener.receive(newest, 300.0) is not None
    for n in range(REQUESTS_REMEMBERED + 2):
        listener.receive(words(f"older {n}", 299.0, age=2.0), 301.0)
    assert listener.receive(replace(newest, age=2.0), 302.0) is None, "it moved the robot once"


@pytest.mark.parametrize(
    ("text", "reason", "said"),
    [
        ("x" * 79 + ":;", "", f"{'x' * 79 + ':'!r} is not a clause of an answer"),
        ("x" * 80 + ":;", "", f"{'x' * 77 + '...'!r} is not a clause of an answer"),
        ("x" * 499 + ":;", "", f"{'x' * 77 + '...'!r} is not a clause of an answer"),
        ("action: fly;", "", "'fly' is not an action"),
        ("action: move", "end", "'action: move' ends without an action"),
        (LONG, "", None),
        (f"{LONG}x", "", f"{LONG[:80]!r} ends without an action"),
        ("", "timeout", "no answer from the cloud"),
        ("", "aborted", "the decision was called off"),
        ("", "internal", "no decision (internal)"),
        ("", "end", "'' ends without an action"),
        ("move", "timeout", "'move' ends without an action"),
    ],
)
def test_an_answer_without_an_action_is_said_as_what_it_is(
    text: str, reason: str, said: str | None
) -> None:
    """A decode without words has failed; nothing was refused."""
    heard = words(text=text, finished=bool(reason), finish_reason=reason)
    one = AnswerSequencer().receive(heard, 100.0)
    assert (one and (one.reading.action, one.reading.problem)) == (said and (None, said))
    assert one is None or one.failed == (not text and reason != "end")
