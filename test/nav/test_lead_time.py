"""How long before a motion's end the next decision begins, from what decisions took lately."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.motion import BEND, Goal, Limits, Motion
from edge_cloud_spec.nav.navigator import REMEMBERED, LeadTime
from edge_cloud_spec.nav.settings import BY_ITSELF, MOST

LARGE = Motion(Goal(0.9), Limits(), 0.0)


def test_nothing_is_led_before_a_decision_was_made() -> None:
    assert LeadTime().seconds == 0.0


def test_most_actions_are_there_in_time_and_one_slow_decision_changes_little() -> None:
    lead = LeadTime()
    for seconds in (0.5, 0.6, 0.7, 0.8, 0.5, 0.6, 0.7, 30.0):
        lead.took(seconds)
    assert lead.seconds == 0.7


def test_what_was_long_ago_is_forgotten() -> None:
    lead = LeadTime()
    for seconds in [9.0] * REMEMBERED + [0.3] * REMEMBERED:
        lead.took(seconds)
    assert lead.seconds == 0.3


@given(st.lists(st.floats()), st.sampled_from([BY_ITSELF, 0.0, 0.3, MOST]))
def test_whatever_it_is_told_it_stays_within_its_bounds(took: list[float], set_to: float) -> None:
    lead = LeadTime()
    for seconds in took:
        lead.took(seconds)
    assert 0.0 <= lead.before_end(LARGE, set_to) <= min(LARGE.duration, MOST)
    assert set_to == BY_ITSELF or lead.before_end(LARGE, set_to) <= set_to


def test_by_itself_a_decision_begins_early_only_where_enough_of_it_falls_into_the_motion() -> None:
    most = LARGE.leads(MOST)
    for seconds, expected in ((0.1, 0.1), (most, most), (2 * most, most), (10 * most, 0.0)):
        lead = LeadTime()
        lead.took(seconds)
        assert lead.before_end(LARGE, BY_ITSELF) == pytest.approx(expected)
        assert lead.before_end(LARGE, 0.2) == 0.2, "what was set is not argued with"


def test_little_of_a_step_is_left_where_the_next_frame_is_taken() -> None:
    for goal, rest in ((Goal(0.9), 0.18), (Goal(angle=1.0), BEND), (Goal(angle=0.1), 0.02)):
        motion = Motion(goal, Limits(), 0.0)
        left = goal.distance + goal.angle - motion._profile.at(motion.duration - motion.leads(9))[0]
        assert left == pytest.approx(rest)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf])
def test_what_is_no_time_is_not_learned_from(seconds: float) -> None:
    lead = LeadTime()
    lead.took(seconds)
    assert lead.seconds == 0.0
