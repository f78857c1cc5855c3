"""What a robot may be told at most: every parameter's range, a step's speed, and its budget."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.budget import (
    BUDGET_EXTRA,
    BUDGET_RATIO,
    BUDGET_REST,
    COMMAND_PERIOD_S,
    MOVE_ASIDE_M,
    MOVE_TURN_RAD,
    Budget,
)
from edge_cloud_spec.nav.events import Drive
from edge_cloud_spec.nav.footprint import Mount, ObstacleSettings
from edge_cloud_spec.nav.limits import Axis, Limits
from edge_cloud_spec.nav.motion import (
    REACH_RATIO,
    STEP_GRACE_S,
    Motion,
    MotionEnd,
    Profile,
)
from edge_cloud_spec.nav.pose import STILL, Pose, Velocity
from edge_cloud_spec.nav.settings import NavigatorSettings, Unverified
from edge_cloud_spec.nav.steps import Goal, Steps

KINDS: list[Any] = [Limits, Axis, Steps, ObstacleSettings, Mount, Unverified, NavigatorSettings]
RANGES = [  # the numbers stand in docs/parameters.md
    (kind, field.name, *field.metadata["range"])
    for kind in KINDS
    for field in fields(kind)
    if "range" in field.metadata
]


@pytest.mark.parametrize(("kind", "name", "least", "most"), RANGES)
def test_a_parameter_is_taken_up_to_its_bounds_and_refused_beyond(
    kind: type[Any], name: str, least: float, most: float
) -> None:
    for fine in (least, most, (least + most) / 2):
        assert getattr(kind(**{name: fine}), name) == fine
    beyond = 1e-6 * (1 + abs(least) + abs(most))
    for bad in (least - beyond, most + beyond, math.nan, math.inf, -math.inf, "1", None, True):
        with pytest.raises(ValueError, match=name):
            kind(**{name: bad})


# A step's speed


@given(st.floats(0.01, 4), st.floats(0.05, 2.5), st.floats(0.1, 20), st.floats(0.0, 1.0))
def test_a_profile_covers_its_length_and_is_never_faster_than_allowed(
    length: float, speed: float, acceleration: float, share: float
) -> None:
    """Where it begins with a speed from which it can brake within its length."""
    begins = share * min(speed, math.sqrt(2 * acceleration * length))
    profile = Profile(length, speed, acceleration, begins)
    total, parts = profile.duration, 300
    h = total / parts
    covered, before = 0.0, begins
    for n in range(parts + 1):
        place, pace = profile.at(n * h)
        assert -1e-9 <= pace <= speed + 1e-9
        assert abs(pace - before) <= acceleration * h * (1 + 1e-6)
        covered += h * (pace + before) / 2 if n else 0.0
        assert place == pytest.approx(covered, abs=2 * acceleration * h * h)
        before = pace
    assert covered == pytest.approx(length, abs=2 * acceleration * h * h)
    assert profile.at(-1.0) == (-begins, begins)
    assert profile.at(total + 1.0) == (pytest.approx(length), 0.0)
    ramps = (2 * speed * speed - begins * begins) / (2 * acceleration)
    if ramps <= length:
        ramping = (2 * speed - begins) / acceleration
        assert total == pytest.approx((length - ramps) / speed + ramping)


@given(st.floats(-1.0, 1.0), st.floats(0.1, 2.5), st.floats(0.1, 20))
def test_a_profile_that_cannot_brake_within_its_length_brakes_at_once(
    length: float, begins: float, acceleration: float
) -> None:
    profile = Profile(length, 2.5, acceleration, begins)
    braking = begins * begins / (2 * acceleration)
    if length <= braking:
        assert profile.duration == pytest.approx(begins / acceleration)
        assert profile.at(9e9) == (pytest.approx(braking), 0.0)


def test_a_motion_ends_at_one_and_a_half_of_its_plan_and_a_second() -> None:
    motion, times = (
        Motion(Goal(distance=0.9), Limits(), 0.0, Pose()),
        np.arange(0.0, 9.0, COMMAND_PERIOD_S),
    )
    steps = ((now, motion.step(now, Pose(), lambda wanted: STILL)) for now in times)
    ended = next(now for now, step in steps if isinstance(step, MotionEnd))
    assert ended == pytest.approx(
        1.5 * (0.9 / 0.6 + 0.6 / 2.0) + STEP_GRACE_S, abs=COMMAND_PERIOD_S
    )


@pytest.mark.parametrize("size", [0.2, 0.9])
def test_what_was_moved_against_a_step_is_in_reach_as_far_as_its_budget_goes(size: float) -> None:
    for back in (0.0, 0.1 * size, 0.2 * size + 0.03, 0.3 * size + 0.04, size):
        motion = Motion(Goal(distance=size), Limits(), 0.0, Pose(-back), anchor=Pose())
        assert motion.in_reach == (size + back <= REACH_RATIO * size + BUDGET_EXTRA[0])
        assert not motion.in_reach or size + back <= BUDGET_RATIO * size + BUDGET_EXTRA[0]


def test_what_was_driven_before_a_wait_is_not_taken_up_after_it() -> None:
    turn = Motion(Goal(angle=1.0), Limits(), 0.0, Pose(), None, Velocity(0.3), (0.01, 0.0, 0.0))
    turn.wait(0.05)
    step = turn.step(0.1, Pose())
    assert isinstance(step, Drive) and step.velocity.vx == 0.0


def test_a_motion_that_began_by_the_clock_goes_on_by_it_when_odometry_comes() -> None:
    blind, seeing = (Motion(Goal(distance=0.45), Limits(), 0.0) for _ in range(2))
    for tick in range(40):
        now = 0.05 * tick
        assert blind.step(now) == seeing.step(now, Pose(x=7.0))


@given(
    st.builds(
        Limits,
        speed=st.floats(0.05, 1.5),
        lateral_speed=st.floats(0.0, 0.5),
        turn_speed=st.floats(0.1, 2.5),
        stops_within=st.sampled_from([0.0, 0.0, 0.15, 0.3]),
        move=st.builds(Axis, slowest=st.floats(0.0, 1.0), braking=st.floats(0.0, 0.5)),
    ),
    st.sampled_from([Goal(0.9), Goal(-0.9), Goal(0.25), Goal(angle=0.8)]),
    st.lists(st.tuples(st.floats(-0.15, 0.15), st.floats(-0.1, 0.1)), max_size=60),
    st.booleans(),
    st.builds(Velocity, st.floats(-1.5, 1.5), st.floats(-0.5, 0.5), st.floats(-2.5, 2.5)),
)
def test_no_command_is_faster_over_ground_than_its_limit(
    limits: Limits,
    goal: Goal,
    pushes: list[tuple[float, float]],
    unverified: bool,
    driven: Velocity,
) -> None:
    """Wherever it is pushed to, and whatever was driven before, under whichever limits."""
    limits = Unverified().limits(limits) if unverified else limits
    here, motion = Pose(), Motion(goal, limits, 0.0, Pose(), None, driven)
    for tick, (aside, turned) in enumerate(pushes):
        here = Pose(here.x + 0.01, here.y + aside, here.yaw + turned)
        step = motion.step(COMMAND_PERIOD_S * (tick + 1), here)
        velocity = step.velocity if isinstance(step, Drive) else STILL
        assert velocity.speed <= limits.top_speed + 1e-9
        assert not unverified or velocity.speed <= Unverified().speed + 1e-9
        assert abs(velocity.vy) <= limits.lateral_speed + 1e-9
        assert abs(velocity.wz) <= limits.turn_speed + 1e-9


# What its commands add up to

speeds = st.floats(-2, 2)
steps = st.lists(
    st.tuples(st.builds(Velocity, speeds, speeds, speeds), st.floats(0.001, 2 * COMMAND_PERIOD_S)),
    min_size=1,
    max_size=60,
)


sizes = st.one_of(
    st.tuples(st.floats(-3, 3), st.just(0.0)),
    st.tuples(st.just(0.0), st.sampled_from([-3.1, -0.12, 0.12, 0.8, 3.1])),
)


@given(sizes, steps)
def test_no_sequence_of_commands_exceeds_the_budget(
    size: tuple[float, float], wanted: list[tuple[Velocity, float]]
) -> None:
    """A command holds until the next one, be that up to two periods later."""
    budget, now, used = Budget(*size), 100.0, [0.0, 0.0, 0.0]
    distance, angle = size
    most = (BUDGET_RATIO * abs(distance) + BUDGET_EXTRA[0], MOVE_ASIDE_M, MOVE_TURN_RAD)
    if angle:
        most = (0.0, 0.0, BUDGET_RATIO * abs(angle) + BUDGET_EXTRA[1])
    for asked, lasts in wanted:
        granted = budget.grant(asked, now)
        assert budget.path == pytest.approx(used[0], abs=1e-6)
        assert budget.turn == pytest.approx(used[2], abs=1e-6)
        left = most[2] - used[2] if size[1] else most[0] - used[0]
        if abs(left - BUDGET_REST[bool(size[1])]) > 1e-6:
            assert budget.used_up == (left <= BUDGET_REST[bool(size[1])])
        for mine, theirs in zip(
            (granted.vx, granted.vy, granted.wz), (asked.vx, asked.vy, asked.wz), strict=True
        ):
            assert mine * theirs >= 0.0 and abs(mine) <= abs(theirs) + 1e-12
        rates = (math.hypot(granted.vx, granted.vy), abs(granted.vy), abs(granted.wz))
        used = [u + r * lasts for u, r in zip(used, rates, strict=True)]
        assert all(u <= m + 1e-9 for u, m in zip(used, most, strict=True))
        now += lasts
    budget.count(now)
    assert budget.path == pytest.approx(used[0], abs=1e-6)


def test_what_is_slowed_down_keeps_its_direction() -> None:
    granted = Budget(0.01, 0.0).grant(Velocity(1.2, 0.5, 0.0), 0.0)
    assert granted.speed == pytest.approx(
        (BUDGET_RATIO * 0.01 + BUDGET_EXTRA[0]) / (2 * COMMAND_PERIOD_S)
    )
    assert granted.vy / granted.vx == pytest.approx(0.5 / 1.2)
