"""Motion on words that nobody has verified: slow, short and said to be unverified."""

from __future__ import annotations

import math

import pytest
from helpers.drill import Drill, drives, words
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.answer import every_action
from edge_cloud_spec.nav.events import Announce, Effect
from edge_cloud_spec.nav.motion import PERIOD, Limits, goal_of
from edge_cloud_spec.nav.settings import Settings, Unverified

ACTIONS = [str(action) for action in every_action() if action.verb != "stop"]


def announced(effects: list[Effect]) -> Announce:
    return next(effect for effect in effects if isinstance(effect, Announce))


@given(
    st.sampled_from(ACTIONS),
    st.floats(0.05, 1.5),
    st.floats(0.1, 2.5),
    st.floats(0.02, 3.0),
    st.booleans(),
)
def test_unverified_motion_keeps_its_bounds_and_is_announced_as_such(
    action: str, speed: float, turn_speed: float, move: float, verified: bool
) -> None:
    bounds = Unverified(speed, turn_speed, move)
    settings = Settings(allow_unverified=True, unverified=bounds)
    drill = Drill(settings)
    effects = drill.on(words(f"action: {action};", verified=verified))
    told = announced(effects)
    effects += drill.run(6.0)
    limits = Limits()
    fastest = limits.speed if verified else min(speed, limits.speed)
    turning = limits.turn_speed if verified else min(turn_speed, limits.turn_speed)
    farthest = math.inf if verified else move
    for velocity in drives(effects):
        assert math.hypot(velocity.vx, velocity.vy) <= fastest + 1e-9
        assert abs(velocity.wz) <= turning + 1e-9
    assert sum(velocity.speed for velocity in drives(effects)) * PERIOD <= 1.5 * farthest + 0.05
    assert told.verified == verified and abs(told.goal.distance) <= farthest


@pytest.mark.parametrize("action", ACTIONS)
def test_turns_keep_their_angle_and_moves_their_direction(action: str) -> None:
    drill = Drill(Settings(allow_unverified=True))
    whole = goal_of(next(a for a in every_action() if str(a) == action), Settings().steps)
    told = announced(drill.on(words(f"action: {action};", verified=False))).goal
    assert told.angle == whole.angle
    assert told.distance == pytest.approx(max(-0.25, min(0.25, whole.distance)))


def test_an_answer_is_as_unverified_as_its_least_verified_word() -> None:
    drill = Drill(Settings(allow_unverified=True))
    drill.on(words("action: move", verified=False))
    effects = drill.on(words(" forward large;", position=4))
    assert not announced(effects).verified and announced(effects).goal.distance == 0.25


def test_a_motion_ends_when_its_permission_is_withdrawn() -> None:
    drill = Drill(Settings(allow_unverified=True))
    drill.on(words("action: move forward large;", verified=False))
    drill.run(0.2)
    drill.navigator.configure(Settings(allow_unverified=True))
    assert drill.navigator.moving, "nothing has changed"
    drill.navigator.configure(Settings())
    assert not drill.navigator.moving and not drives(drill.run(0.5))


def test_a_stop_that_does_not_count_is_judged_when_the_motion_has_ended() -> None:
    """Or the status would say ``idle`` of a robot that moves."""
    drill = Drill()
    drill.on(words("action: move forward large;", "r1"))
    drill.run(0.2)
    assert drill.on(words("action: stop;", "r2", age=0.1, verified=False)) == []
    assert drill.navigator.moving and drill.status.startswith("moving r1")
    drill.run(5.0)
    assert drill.status.startswith("idle r2 0 refused")
