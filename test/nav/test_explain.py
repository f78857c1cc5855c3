"""When the rest of an answer is not wanted any more: never before its action is verified."""

from __future__ import annotations

import itertools

import pytest

from edge_cloud_spec.nav.explain import EXPLAIN, FULL, NONE, UNTIL_NEXT, has_action, is_enough


@pytest.mark.parametrize(
    ("answer", "has"),
    [
        ("", False),
        ("action: move forward large", False),
        ("action: move forward large;", True),
        ("action: search; reason: nothing to", True),
        ("reason: it is near;", False),
        ("I cannot; action: stop;", False),
        ("action: fly;", False),
    ],
)
def test_an_action_is_there_with_its_delimiter(answer: str, has: bool) -> None:
    assert has_action(answer) == has


def test_nothing_is_cut_before_the_action() -> None:
    assert not any(is_enough(how, False, due) for how, due in itertools.product(EXPLAIN, (0, 1)))


def test_an_explanation_is_whole_or_until_the_next_decision_or_not_at_all() -> None:
    assert [is_enough(how, True, False) for how in (FULL, UNTIL_NEXT, NONE)] == [False, False, True]
    assert [is_enough(how, True, True) for how in (FULL, UNTIL_NEXT, NONE)] == [False, True, True]
