"""A fleet grows under load soon, shrinks late, and does not swing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.cloud.fleet.controller import Scaling, ScalingLimits
from edge_cloud_spec.cloud.fleet.roster import ReplicaLoad
from edge_cloud_spec.errors import UserError

LIMITS = ScalingLimits(least=1, most=3, sessions=10, waiting=4, up_s=2.0, down_s=20.0)


def after(scaling: Scaling, loads: list[ReplicaLoad], begin: float, end: float) -> int:
    for tick in range(int(begin * 4), int(end * 4) + 1):
        scaling.look(loads, tick / 4)
    return scaling.wanted


@pytest.mark.parametrize("load", [ReplicaLoad(sessions=11), ReplicaLoad(waiting=5)])
def test_load_above_its_bound_adds_a_replica_once_it_lasts(load: ReplicaLoad) -> None:
    scaling = Scaling(LIMITS)
    assert after(scaling, [load], 0, 1.75) == 1
    assert after(scaling, [ReplicaLoad()], 2, 2) == 1  # it passed
    assert after(scaling, [load], 3, 4.75) == 1
    assert after(scaling, [load], 5, 5) == 2
    assert after(scaling, [load], 6, 60) == 2  # not one more while that one starts
    assert after(scaling, [load, load], 61, 63) == 3
    assert after(scaling, [load] * 3, 64, 90) == 3  # at most


def test_an_idle_fleet_shrinks_late_to_its_least() -> None:
    scaling = Scaling(LIMITS)
    scaling.wanted = 3
    idle = ReplicaLoad()
    assert after(scaling, [idle] * 3, 0, 19.75) == 3
    assert after(scaling, [idle] * 3, 20, 20) == 2
    assert after(scaling, [idle] * 2, 20.25, 41) == 1
    assert after(scaling, [idle], 42, 100) == 1


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=300))
def test_it_stays_within_its_limits_and_never_turns_back_at_once(
    held: list[tuple[int, int]],
) -> None:
    scaling = Scaling(LIMITS)
    changes: list[tuple[float, int]] = []
    for tick, (sessions, waiting) in enumerate(held):
        now, before = tick / 4, scaling.wanted
        scaling.look([ReplicaLoad(sessions, waiting)] * before, now)
        assert 1 <= scaling.wanted <= 3
        assert abs(scaling.wanted - before) <= 1
        if scaling.wanted != before:
            if scaling.wanted < before and changes:
                assert now - changes[-1][0] >= LIMITS.down_s
            changes.append((now, scaling.wanted))


@pytest.mark.parametrize(("least", "most"), [(0, 1), (3, 2), (-1, -1)])
def test_limits_that_cannot_be_are_refused(least: int, most: int) -> None:
    with pytest.raises(UserError, match="--replicas"):
        ScalingLimits(least=least, most=most)
