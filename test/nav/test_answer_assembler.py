"""Words in whatever order they come: each answer is read once, in order, of the newest request."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.answer import parse_action
from edge_cloud_spec.nav.answer_assembler import (
    MAX_CHARACTERS,
    REMEMBERED,
    SAME_FRAME,
    AnswerAssembler,
)
from edge_cloud_spec.nav.events import Words

ANSWER = ("action", ": move", " forward", " large", ";", " reason: it", " is far;")
LARGE = parse_action("move forward large")


def words(request: str = "r", **changes: object) -> Words:
    plain = Words(request, 0, 1, "", True, False, 7, 0.25, "find it", 3)
    return replace(plain, **changes)  # type: ignore[arg-type]


def pieces(request: str, texts: tuple[str, ...] = ANSWER, **changes: object) -> list[Words]:
    """An answer, a token a message."""
    last = len(texts) - 1
    return [
        words(request, position=n, text=text, finished=n == last, **changes)
        for n, text in enumerate(texts)
    ]


def test_an_answer_is_settled_once_at_its_delimiter_with_what_its_words_say() -> None:
    listener = AnswerAssembler()
    settled = [listener.hear(each, 100.0 + n) for n, each in enumerate(pieces("r"))]
    assert [one is not None for one in settled] == [False, False, False, False, True, False, False]
    (one,) = [one for one in settled if one]
    assert (one.request, one.action, one.problem, one.stamp) == ("r", LARGE, "", 7)
    assert (one.frame_time, one.verified, one.instruction, one.stops) == (99.75, True, "find it", 3)
    assert set(listener.counts.values()) == {0}


@given(st.randoms(use_true_random=False), st.integers(0, 3))
def test_in_any_order_an_answer_is_read_in_its_own_or_not_at_all(
    random: Random, repeats: int
) -> None:
    listener, told = AnswerAssembler(), pieces("r")
    told += [random.choice(told) for _ in range(repeats)]
    random.shuffle(told)
    expected, outcome, repeated, misplaced = 0, None, 0, 0
    for each in told:
        one = listener.hear(each, 100.0)
        if each.position < expected:
            repeated += 1
        elif each.position > expected:
            misplaced += 1
            if each.finished and outcome is None:
                assert one is not None and one.action is None and "missing" in one.problem
                outcome = one
                continue
        else:
            expected += 1
            if expected == 5 and outcome is None:
                assert one is not None and one.action == LARGE
                outcome = one
                continue
        assert one is None
    assert (listener.counts["repeated"], listener.counts["out_of_order"]) == (repeated, misplaced)


@pytest.mark.parametrize("place", range(5))
def test_one_piece_that_is_not_verified_makes_the_answer_so(place: int) -> None:
    listener, told = AnswerAssembler(), pieces("r")
    told[place] = replace(told[place], verified=False)
    (one,) = [one for one in (listener.hear(each, 100.0) for each in told) if one]
    assert not one.verified
    (following,) = [one for one in (listener.hear(each, 101.0) for each in pieces("s")) if one]
    assert following.verified


def test_words_of_an_older_frame_or_of_a_request_that_was_replaced_are_stale() -> None:
    listener = AnswerAssembler()
    listener.hear(words("a", age=0.5), 100.0)  # a frame of 99.5
    assert listener.hear(words("b", text="action: stop;", age=1.0), 100.0) is None
    assert listener.counts["stale"] == 1
    same = words("c", text="action: stop;", age=0.5 + SAME_FRAME / 2)
    assert listener.hear(same, 100.0) is not None  # of the same frame, up to rounding
    assert listener.hear(words("a", age=0.0), 101.0) is None
    assert listener.counts["stale"] == 2
    late = words("d", text="action: stop;", age=0.5 + SAME_FRAME * 3)
    assert listener.hear(late, 100.0) is None
    assert listener.counts["stale"] == 3


def test_a_stamp_from_the_future_does_not_make_the_next_ones_old() -> None:
    listener = AnswerAssembler()
    listener.hear(words("a", age=-3600.0), 100.0)
    (one,) = [one for one in [listener.hear(words("b", text="action: stop;"), 101.0)] if one]
    assert one.frame_time == 100.75
    odd = listener.hear(words("c", text="action: stop;", age=-9.0), 102.0)
    assert odd is not None and odd.frame_time == 111.0


def test_so_many_requests_are_remembered() -> None:
    listener = AnswerAssembler()
    for n in range(REMEMBERED + 2):
        listener.hear(words(str(n), age=0.0), 100.0 + n)
    assert listener.hear(words("1", age=0.0), 300.0) is None  # the oldest that is remembered
    assert listener.counts["stale"] == 1
    assert listener.hear(words("0", text="action: stop;", age=0.0), 300.0) is not None


@pytest.mark.parametrize(("size", "ends"), [(MAX_CHARACTERS, False), (MAX_CHARACTERS + 1, True)])
def test_an_answer_that_never_ends_is_given_up(size: int, ends: bool) -> None:
    listener = AnswerAssembler()
    text = "reason: " + "x" * (size - 8)
    one = listener.hear(words("r", text=text, count=1), 100.0)
    assert (one is not None) == ends
    if one is not None:
        assert one.action is None
        assert "ends without an action" in one.problem and len(one.problem) < 130


@pytest.mark.parametrize(
    ("size", "told"), [(80, "x" * 79 + ":"), (81, "x" * 77 + "..."), (500, "x" * 77 + "...")]
)
def test_a_long_text_is_told_by_its_beginning(size: int, told: str) -> None:
    """Up to eighty characters are told whole."""
    text = "x" * (size - 1) + ":"
    one = AnswerAssembler().hear(words("r", text=f"{text};", count=1), 100.0)
    assert one is not None and one.action is None
    assert f"'{told}'" in one.problem


def test_what_is_not_an_action_is_told_and_what_ends_too_soon() -> None:
    one = AnswerAssembler().hear(words("r", text="action: fly;"), 100.0)
    assert one is not None and one.problem == "'fly' is not an action"
    one = AnswerAssembler().hear(words("r", text="action: move", finished=True), 100.0)
    assert one is not None and one.problem == "'action: move' ends without an action"


@pytest.mark.parametrize(
    ("reason", "said"),
    [("timeout", "no answer from the cloud"), ("aborted", "called off"), ("internal", "internal")],
)
def test_a_decode_without_words_is_said_as_what_it_is(reason: str, said: str) -> None:
    settled = AnswerAssembler().hear(words(count=0, finished=True, finish_reason=reason), 1.0)
    assert settled is not None and settled.failed and settled.action is None
    assert said in settled.problem and "without an action" not in settled.problem
    empty = AnswerAssembler().hear(words(count=0, finished=True, finish_reason="end"), 1.0)
    assert empty is not None and not empty.failed and "without an action" in empty.problem
    cut = words(text="move", finished=True, finish_reason=reason)
    half = AnswerAssembler().hear(cut, 1.0)
    assert half is not None and half.action is None and "'move' ends without" in half.problem
