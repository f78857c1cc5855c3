"""The grammar: what is exactly an action moves the robot, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.answer import NotAnAction, every_action, parse_action, read_answer

EXACT = {str(action) for action in every_action()}
WORDS = (
    "move turn forward backward left right small medium large search stop action: reason: ; ahead"
)
nearly = st.lists(st.sampled_from([*WORDS.split(), " ", "\n", "Move", "forwards"]), max_size=8)


def test_every_action_is_read_back_from_its_words() -> None:
    assert len(EXACT) == 14
    assert {parse_action(text) for text in EXACT} == set(every_action())


@given(st.one_of(st.text(), nearly.map(" ".join), nearly.map("".join)))
def test_no_text_but_the_exact_actions_is_an_action(text: str) -> None:
    assert (parse_action(text) is not None) == (text in EXACT)


@given(st.one_of(st.text(), nearly.map(" ".join), nearly.map("".join)), st.sampled_from("; .!\t"))
def test_an_action_with_anything_around_it_is_none(extra: str, mark: str) -> None:
    for text in EXACT:
        assert parse_action(text + mark + extra) is None
        assert parse_action(extra + mark + text) is None


@pytest.mark.parametrize("turned", ["move left small", "turn forward large", "move  forward small"])
def test_words_of_the_language_in_another_order_are_no_action(turned: str) -> None:
    assert parse_action(turned) is None


@pytest.mark.parametrize(
    "text",
    [
        "Error: cannot move forward small;",
        "exception; action: move forward small;",
        "ahead; forward;",
        "action: cannot move forward small;",
        "action: Move forward small;",
        "action:move forward small;",
        "Action: move forward small;",
        "the action: move forward small;",
        "action: move forward small\n;",
        "error: no; reason: because; action: move forward small;",
    ],
)
def test_a_message_that_contains_an_action_is_refused(text: str) -> None:
    with pytest.raises(NotAnAction):
        read_answer(text)


@pytest.mark.parametrize("text", ["", "action: move forward small", "reason: move forward small;"])
def test_an_action_without_its_delimiter_is_not_complete(text: str) -> None:
    assert read_answer(text).action is None


@given(st.sampled_from(sorted(EXACT)), st.text())
def test_longer_text_never_changes_a_complete_action(words: str, rest: str) -> None:
    assert str(read_answer(f"action: {words};{rest}").action) == words


@given(st.sampled_from(sorted(EXACT)), st.text("abc ,.move", min_size=1).map(str.strip))
def test_reason_first_gives_the_action_at_its_own_delimiter(words: str, why: str) -> None:
    answer = f"reason: x{why}; action: {words};"
    assert read_answer(answer[:-1]).action is None
    assert str(read_answer(answer).action) == words
    assert read_answer(answer).reason == f"x{why}"


def test_the_first_action_counts() -> None:
    assert str(read_answer("action: stop; action: move forward large;").action) == "stop"
