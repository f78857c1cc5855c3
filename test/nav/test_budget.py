"""What a step may add up to: whatever is asked for, and however late, the sums stay below it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.motion import ASIDE, BEND, LEFT, MORE, PERIOD, SHARE, Budget
from edge_cloud_spec.nav.pose import Velocity

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


def test_a_budget_that_is_used_up_grants_nothing() -> None:
    budget = Budget(0.2, 0.0)
    now = 0.0
    while not budget.used_up:
        budget.grant(Velocity(0.6), now)
        now += PERIOD
        assert now < 10.0
        budget.count(now)
    assert 0.32 - LEFT[0] <= budget.path <= 0.32
    assert budget.grant(Velocity(0.6), now).speed <= LEFT[0] / (2 * PERIOD)


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
