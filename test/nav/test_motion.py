"""Motions on a first-order model of a base: they arrive, keep to their bounds, and end."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.answer import Action, every_action, parse_action
from edge_cloud_spec.nav.motion import (
    ASIDE,
    BEND,
    LEFT,
    MORE,
    PERIOD,
    SHARE,
    Budget,
    Goal,
    Limits,
    Motion,
    Steps,
    goal_of,
)
from edge_cloud_spec.nav.pose import Pose, Velocity

DT = 0.05


class Base:
    """A base on x, y, yaw that follows commands with a time constant ``lag`` (seconds)."""

    def __init__(self, lag: float, yaw: float = 0.3, slip: float = 1.0, drift: float = 0.0) -> None:
        self.pose, self.lag, self.slip, self.drift = Pose(1.0, -2.0, yaw), lag, slip, drift
        self.v = [0.0, 0.0, 0.0]

    def run(self, command: Velocity, dt: float = DT, parts: int = 10) -> None:
        for _ in range(parts):
            h = dt / parts
            wanted = (command.vx * self.slip, command.vy * self.slip, command.wz * self.slip)
            for axis, want in enumerate(wanted):
                self.v[axis] += (want - self.v[axis]) * (1 - math.exp(-h / self.lag))
            x, y, yaw = self.pose.x, self.pose.y, self.pose.yaw
            vx, vy, wz = self.v
            self.pose = Pose(
                x + h * (vx * math.cos(yaw) - vy * math.sin(yaw)),
                y + h * (vx * math.sin(yaw) + vy * math.cos(yaw)),
                math.remainder(yaw + h * (wz + self.drift), 2 * math.pi),
            )


def drive(
    base: Base, goal: Goal, limits: Limits | None = None, odometry: bool = True
) -> tuple[float, bool, list[Velocity]]:
    """(seconds, arrived, commands), the base standing still at the end."""
    limits, now = limits or Limits(), 100.0
    motion = Motion(goal, limits, now, base.pose if odometry else None)
    commands = []
    while True:
        step = motion.step(now, base.pose if odometry else None)
        commands.append(step.velocity)
        if step.done:
            break
        base.run(step.velocity)
        now += DT
        assert now < 120.0, "a motion ends"
    for _ in range(20):
        base.run(Velocity())
    return now - 100.0, step.arrived, commands


def moved(start: Pose, end: Pose) -> tuple[float, float, float]:
    dx, dy = end.x - start.x, end.y - start.y
    cos, sin = math.cos(start.yaw), math.sin(start.yaw)
    turned = math.remainder(end.yaw - start.yaw, 2 * math.pi)
    return cos * dx + sin * dy, cos * dy - sin * dx, turned


@pytest.mark.parametrize("lag", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("action", every_action(), ids=str)
@pytest.mark.parametrize("yaw", [0.3, 3.0])
def test_every_action_arrives_within_three_cm_and_two_degrees(
    action: Action, lag: float, yaw: float
) -> None:
    goal, base = goal_of(action, Steps()), Base(lag, yaw)
    start = base.pose
    seconds, arrived, _ = drive(base, goal)
    ahead, aside, turned = moved(start, base.pose)
    assert arrived
    assert abs(ahead - goal.distance) < 0.03 and abs(aside) < 0.03
    assert abs(turned - goal.angle) < math.radians(2)
    assert seconds < (2.1 if lag <= 0.1 else 2.8)  # simulated


def test_heading_and_line_are_kept_on_a_base_that_drifts() -> None:
    base = Base(0.1, drift=math.radians(6))
    start = base.pose
    _, arrived, _ = drive(base, Goal(distance=0.9))
    ahead, aside, turned = moved(start, base.pose)
    assert arrived and abs(ahead - 0.9) < 0.03 and abs(aside) < 0.04
    assert abs(turned) < math.radians(10)  # with drift it never stands; uncorrected: 18 degrees


@pytest.mark.parametrize("slip", [0.8, 1.15])
def test_odometry_takes_out_slip(slip: float) -> None:
    base = Base(0.1, slip=slip)
    start = base.pose
    assert drive(base, Goal(distance=0.45))[1]
    assert abs(moved(start, base.pose)[0] - 0.45) < 0.03


@pytest.mark.parametrize("lag", [0.05, 0.2])
@pytest.mark.parametrize("action", every_action(), ids=str)
def test_without_odometry_the_clock_is_enough_on_a_base_without_slip(
    action: Action, lag: float
) -> None:
    goal, base = goal_of(action, Steps()), Base(lag)
    start = base.pose
    drive(base, goal, odometry=False)
    ahead, _, turned = moved(start, base.pose)
    assert abs(ahead - goal.distance) < 0.05 and abs(turned - goal.angle) < math.radians(5)


def test_a_blocked_base_ends_the_motion_as_not_arrived() -> None:
    seconds, arrived, commands = drive(Base(0.1, slip=0.0), Goal(distance=0.9))
    assert not arrived and commands[-1] == Velocity()
    assert seconds < 3.2  # what it may be told is used up before its time is


def test_steps_of_the_language() -> None:
    forward = parse_action("move forward large")
    right = parse_action("turn right medium")
    assert forward and right
    assert goal_of(forward, Steps()) == Goal(distance=0.9)
    assert math.degrees(goal_of(right, Steps()).angle) == pytest.approx(-24)
    assert goal_of(Action("stop"), Steps()) == Goal()


speeds = st.floats(-2, 2)
steps = st.lists(
    st.tuples(st.builds(Velocity, speeds, speeds, speeds), st.floats(0.001, 2 * PERIOD)),
    min_size=1,
    max_size=60,
)


def bounds(distance: float, angle: float) -> tuple[float, float, float]:
    """Metres of path, metres aside and radians that a step may take."""
    if angle:
        return 0.0, 0.0, SHARE * abs(angle) + MORE[1]
    return SHARE * abs(distance) + MORE[0], ASIDE, BEND


sizes = st.one_of(
    st.tuples(st.floats(-3, 3), st.just(0.0)),
    st.tuples(st.just(0.0), st.sampled_from([-3.1, -0.12, 0.12, 0.8, 3.1])),
)


@given(sizes, steps)
def test_no_sequence_of_commands_exceeds_the_budget(
    size: tuple[float, float], wanted: list[tuple[Velocity, float]]
) -> None:
    """A command holds until the next one, be that up to two periods later."""
    budget, now = Budget(*size), 100.0
    most = bounds(*size)
    used = [0.0, 0.0, 0.0]
    for asked, lasts in wanted:
        granted = budget.grant(asked, now)
        assert budget.path == pytest.approx(used[0], abs=1e-6)
        assert budget.turn == pytest.approx(used[2], abs=1e-6)
        left = most[2] - used[2] if size[1] else most[0] - used[0]
        if abs(left - LEFT[bool(size[1])]) > 1e-6:
            assert budget.used_up == (left <= LEFT[bool(size[1])])
        for mine, theirs in zip(
            (granted.vx, granted.vy, granted.wz), (asked.vx, asked.vy, asked.wz), strict=True
        ):
            assert mine * theirs >= 0.0 and abs(mine) <= abs(theirs) + 1e-12
        rates = (math.hypot(granted.vx, granted.vy), abs(granted.vy), abs(granted.wz))
        ends = [(m - u) / r for m, u, r in zip(most, used, rates, strict=True) if r]
        # Where next to nothing is left, our own sums are rounding.
        known = all(m - u > 1e-9 for m, u, r in zip(most, used, rates, strict=True) if r)
        if ends and known and min(ends) > 1e-6:
            assert budget.lasts == pytest.approx(min(ends), rel=1e-3)
        used = [u + r * lasts for u, r in zip(used, rates, strict=True)]
        assert all(u <= m + 1e-9 for u, m in zip(used, most, strict=True))
        now += lasts
    budget.count(now)
    assert budget.path == pytest.approx(used[0], abs=1e-6)


@pytest.mark.parametrize("size", [(0.5, 0.0), (-0.5, 0.0), (0.0, 0.8), (0.0, -0.8)])
def test_what_fits_easily_is_granted_as_it_is(size: tuple[float, float]) -> None:
    budget = Budget(*size)
    asked = Velocity(0.3, 0.05, 0.1) if size[0] else Velocity(0.0, 0.0, 0.9)
    assert budget.grant(asked, 0.0) == asked
    assert not budget.used_up
    assert budget.grant(asked, PERIOD) == asked


def test_a_turn_is_granted_no_way_and_what_is_slowed_down_keeps_its_direction() -> None:
    assert Budget(0.0, 0.8).grant(Velocity(0.3, 0.2, 0.5), 0.0) == Velocity(0.0, 0.0, 0.5)
    budget = Budget(0.01, 0.0)
    granted = budget.grant(Velocity(1.2, 0.5, 0.0), 0.0)
    assert granted.speed == pytest.approx((SHARE * 0.01 + MORE[0]) / (2 * PERIOD))
    assert granted.vy / granted.vx == pytest.approx(0.5 / 1.2)


def test_what_stands_still_uses_nothing_up() -> None:
    budget = Budget(0.2, 0.0)
    assert budget.lasts == math.inf
    budget.grant(Velocity(), 0.0)
    assert budget.lasts == math.inf
    budget.count(1e6)
    assert budget.path == 0.0
    budget.grant(Velocity(0.6), 1e6)
    budget.count(1e6 - 5.0)  # a clock that went back gives nothing back
    assert budget.path == 0.0
