"""The tiny pair's language: one right answer for every view, and it is always parsed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.lab.sim.thing import VisibleThing
from edge_cloud_spec.lab.training.tiny import language
from edge_cloud_spec.lab.training.tiny.language import (
    NAMES,
    ORDERS,
    answer,
    askable,
    best_action,
    read,
)
from edge_cloud_spec.nav.answer import parse_action, read_answer

BOTTLE = VisibleThing("silver bottle", 200, 15.0, 3.0)
CHAIR = VisibleThing("red chair", 900, 20.0, 2.0)
CAN = VisibleThing("silver can", 90, -12.0, 2.0)

views = st.lists(
    st.builds(
        VisibleThing,
        st.sampled_from(NAMES),
        st.integers(1, 9000),
        st.floats(-30, 30),
        st.floats(0.2, 6.0),
    ),
    max_size=8,
    unique_by=lambda thing: thing.name,
)


@given(views, st.sampled_from(ORDERS))
def test_every_answer_is_an_action_and_a_reason_that_agree(things, order):
    for name in askable(things):
        text = answer(things, name, order)
        assert "reason: " in text
        claim = read(text)
        assert claim.action == str(read_answer(text))
        assert claim.visible == (name in {thing.name for thing in things})
        assert (claim.action == "search") == (not claim.visible)


@given(views)
def test_the_order_changes_the_order_only(things):
    for name in askable(things):
        first = answer(things, name, "action first")
        last = answer(things, name, "reason first")
        assert first.startswith("action:") and last.startswith("reason:")
        assert sorted(first.split()) == sorted(last.split())


def test_a_visible_thing_is_placed_beside_the_nearest_other_and_told_from_its_look_alike():
    assert answer([BOTTLE, CHAIR, CAN], "silver bottle", "action first") == (
        "action: turn left small; "
        "reason: silver bottle far 3.0 left 16, right of red chair 2.0, not silver can right;"
    )


def test_an_absent_thing_is_searched_for_and_its_look_alike_named_first():
    assert answer([CHAIR, CAN], "silver bottle", "reason first") == (
        "reason: no silver bottle, silver can midway 2.0 right 12, red chair midway 2.0 left 20; "
        "action: search;"
    )


def test_a_doubtful_glimpse_is_neither_asked_for_nor_spoken_of():
    glimpse = VisibleThing("silver bottle", 23, 0.0, 4.0)
    assert "silver bottle" not in askable([glimpse, CHAIR])
    assert "silver bottle" not in answer([glimpse, CHAIR], "red chair", "action first")
    with pytest.raises(ValueError, match="cannot be asked"):
        answer([glimpse], "silver bottle", "action first")


@pytest.mark.parametrize(
    ("bearing", "distance", "action"),
    [
        (18.1, 1.0, "turn left medium"),
        (-18.0, 1.0, "turn right small"),
        (6.0, 0.79, "stop"),
        (-6.0, 0.8, "move forward small"),
        (0.0, 1.3, "move forward medium"),
        (0.0, 2.4, "move forward large"),
    ],
)
def test_the_policy_changes_at_the_stated_limits(bearing, distance, action):
    assert best_action(VisibleThing("red box", 400, bearing, distance)) == action
    assert parse_action(action) is not None


@pytest.mark.parametrize("phrase", language.PHRASES)
def test_every_phrasing_is_understood_and_other_words_are_not(phrase):
    asked = phrase.format("silver bottle")
    assert language.INSTRUCTION.fullmatch(asked)
    assert language.INSTRUCTION.fullmatch(asked.capitalize() + ".")
    assert not language.INSTRUCTION.fullmatch(phrase.format("golden bottle"))
    assert not language.INSTRUCTION.fullmatch("finde die silberne Flasche")
    assert not language.INSTRUCTION.fullmatch(f"do not {asked}")
