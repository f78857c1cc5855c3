"""What a robot may be told at most: every parameter's range, and the shape of a step's speed."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.footprint import Mount, ObstacleSettings
from edge_cloud_spec.nav.motion import (
    GRACE,
    MORE,
    REACH,
    SHARE,
    Axis,
    Goal,
    Limits,
    Motion,
    Profile,
    Steps,
)
from edge_cloud_spec.nav.pose import STILL, Pose, Velocity
from edge_cloud_spec.nav.settings import Settings, Unverified
from edge_cloud_spec.share import share

RANGES: list[tuple[type[Any], str, float, float]] = [
    (Limits, "speed", 0.05, 1.5),
    (Limits, "lateral_speed", 0.0, 0.5),
    (Limits, "turn_speed", 0.1, 2.5),
    (Limits, "acceleration", 0.1, 5.0),
    (Limits, "turn_acceleration", 0.2, 20.0),
    (Limits, "stops_within", 0.0, 5.0),
    (Axis, "response", 0.0, 1.0),
    (Axis, "braking", 0.0, 1.5),
    (Axis, "slowest", 0.0, 1.0),
    (Axis, "overshoot", 0.0, 1.0),
    (Axis, "drift", 0.0, 0.5),
    (Steps, "move_small", 0.02, 3.0),
    (Steps, "move_medium", 0.02, 3.0),
    (Steps, "move_large", 0.02, 3.0),
    (Steps, "turn_small", 1.0, 180.0),
    (Steps, "turn_medium", 1.0, 180.0),
    (Steps, "turn_large", 1.0, 180.0),
    (Steps, "search", -180.0, 180.0),
    *((ObstacleSettings, name, 0.05, 2.0) for name in ("front", "rear")),
    (ObstacleSettings, "side", 0.05, 1.0),
    (ObstacleSettings, "margin", 0.02, 0.5),
    (ObstacleSettings, "clearance", 0.0, 1.0),
    (ObstacleSettings, "timeout", 0.1, 2.0),
    *((ObstacleSettings, name, -2.0, 2.0) for name in ("lowest", "highest")),
    *((Mount, name, -2.0, 2.0) for name in ("x", "y", "z")),
    *((Mount, name, -3.15, 3.15) for name in ("roll", "pitch", "yaw")),
    (Unverified, "speed", 0.05, 1.5),
    (Unverified, "turn_speed", 0.1, 2.5),
    (Unverified, "move", 0.02, 3.0),
    (Settings, "odometry_timeout", 0.1, 10.0),
    (Settings, "clock_offset_limit", 0.0, 1e10),
    (Settings, "frame_age", 0.1, 600.0),
    (Settings, "command_lifetime", 0.5, 30.0),
    (Settings, "look_period", 0.0, 5.0),
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


def test_every_number_that_moves_the_robot_has_a_range_here() -> None:
    known = {(kind, name) for kind, name, _, _ in RANGES}
    for kind in (Limits, Axis, Steps, ObstacleSettings, Mount, Unverified, Settings):
        ranged = {field.name for field in fields(kind) if "range" in field.metadata}
        assert ranged == {name for each, name in known if each is kind}


def test_the_shipped_parameters_are_the_defaults() -> None:
    told = yaml.safe_load((share() / "config/go2_nav.yaml").read_text(encoding="utf-8"))
    shipped = told["/**/navigator"]["ros__parameters"]
    settings = Settings()
    parts = ("limits", "steps", "obstacles", "unverified")
    for part in parts:
        for name, value in shipped[part].items():
            assert getattr(getattr(settings, part), name) == value
    for field in fields(Settings):
        if field.name in shipped and field.name not in parts:
            assert getattr(settings, field.name) == shipped[field.name]


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


def test_a_step_of_nothing_lasts_no_time() -> None:
    assert Profile(0.0, 0.6, 2.0).duration == 0.0
    assert Profile(0.0, 0.6, 2.0).at(0.1) == (0.0, 0.0)


def test_a_motion_ends_at_one_and_a_half_of_its_plan_and_a_second() -> None:
    motion = Motion(Goal(distance=0.9), Limits(), 100.0)
    assert motion.duration == pytest.approx(0.9 / 0.6 + 0.6 / 2.0)
    assert motion.deadline == pytest.approx(100.0 + 1.5 * motion.duration + GRACE)
    turn = Motion(Goal(angle=-1.0), Limits(), 0.0)
    assert turn.duration == pytest.approx(1.0 / 1.2 + 1.2 / 6.0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_was_moved_since_the_decision_is_part_of_the_step(sign: float) -> None:
    """The rest is planned as a step of its own; a base that is past the goal stays there."""
    here, there = (
        Pose(1.0, 2.0, 0.5),
        Pose(1.0 + 0.2 * math.cos(0.5), 2.0 + 0.2 * math.sin(0.5), 0.5),
    )
    if sign < 0:
        there = Pose(1.0 - 0.2 * math.cos(0.5), 2.0 - 0.2 * math.sin(0.5), 0.5)
    rest = Motion(Goal(distance=sign * 0.45), Limits(), 0.0, there, anchor=here)
    assert rest.duration == pytest.approx(Motion(Goal(distance=0.25), Limits(), 0.0).duration)
    over = Motion(Goal(distance=sign * 0.15), Limits(), 0.0, there, anchor=here)
    assert over.duration == 0.0
    step = over.step(0.0, there)
    assert (step.velocity, step.done, step.arrived) == (STILL, True, True)
    turned = Pose(1.0, 2.0, 0.5 + sign * 0.3)
    turn = Motion(Goal(angle=sign * 0.8), Limits(), 0.0, turned, anchor=here)
    assert turn.duration == pytest.approx(Motion(Goal(angle=0.5), Limits(), 0.0).duration)


@pytest.mark.parametrize("size", [0.2, 0.9])
def test_what_was_moved_against_a_step_is_in_reach_as_far_as_its_budget_goes(size: float) -> None:
    for back in (0.0, 0.1 * size, 0.2 * size + 0.03, 0.3 * size + 0.04, size):
        motion = Motion(Goal(distance=size), Limits(), 0.0, Pose(-back), anchor=Pose())
        assert motion.in_reach == (size + back <= REACH * size + MORE[0])
        assert not motion.in_reach or size + back <= SHARE * size + MORE[0]


def test_a_motion_that_waits_stands_and_goes_on_where_it_was() -> None:
    motion, pose = Motion(Goal(distance=0.9), Limits(), 0.0, Pose()), Pose()
    assert motion.step(0.0, pose).velocity.vx > 0
    before = motion.deadline
    assert motion.wait(0.05).velocity == STILL
    assert motion.wait(0.45).velocity == STILL
    assert motion.deadline == pytest.approx(before + 0.45)


def test_what_was_driven_before_a_wait_is_not_taken_up_after_it() -> None:
    turn = Motion(Goal(angle=1.0), Limits(), 0.0, Pose(), None, Velocity(0.3), (0.01, 0.0, 0.0))
    turn.wait(0.05)
    assert turn.step(0.1, Pose()).velocity.vx == 0.0


def test_a_motion_that_began_by_the_clock_goes_on_by_it_when_odometry_comes() -> None:
    blind, seeing = (Motion(Goal(distance=0.45), Limits(), 0.0) for _ in range(2))
    for tick in range(40):
        now = 0.05 * tick
        assert blind.step(now) == seeing.step(now, Pose(x=7.0))
