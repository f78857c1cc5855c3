"""Odometry's track: where the base was at a stamp, and whether odometry still goes on."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec.nav.odometer import APART, KEPT, PERIODS, SAME_TIME, SOONEST, Track
from edge_cloud_spec.nav.pose import FARTHEST, Pose, Velocity, wrap

TIMEOUT = 0.5  # s
MS = 1_000_000  # ns


def track(stamps: list[int], every: float = 0.1) -> Track:
    """Pose(n) at the n-th stamp."""
    made = Track()
    for n, stamp in enumerate(stamps):
        made.add(Pose(float(n)), stamp, every * n, TIMEOUT)
    return made


@given(
    st.lists(st.integers(0, 2000), min_size=1, max_size=30, unique=True).map(sorted),
    st.integers(-500, 2500),
)
def test_the_pose_of_a_stamp_is_between_those_about_it_within_a_fifth_of_a_second(
    stamps: list[int], asked: int
) -> None:
    found = track([stamp * MS for stamp in stamps]).at(asked * MS)
    away = [abs(stamp - asked) for stamp in stamps]
    if min(away) > SAME_TIME // MS:
        assert found is None
    else:
        assert found is not None
        # Poses that come faster than they are kept stand for one another.
        assert away[round(found.x)] - min(away) < APART // MS
        if all(b - a >= APART // MS for a, b in itertools.pairwise(stamps)):
            place = float(np.interp(asked, stamps, range(len(stamps))))
            near = int(place), -int(-place // 1)
            wide = stamps[near[1]] - stamps[near[0]] > SAME_TIME // MS
            assert found.x == pytest.approx(float(np.argmin(away)) if wide else place)


def test_between_two_poses_the_shorter_turn_counts() -> None:
    made = Track()
    made.add(Pose(yaw=3.1), 0, 0.0, TIMEOUT)
    made.add(Pose(yaw=-3.1), 100 * MS, 0.1, TIMEOUT)
    found = made.at(50 * MS)
    assert found is not None and abs(wrap(found.yaw - math.pi)) < 1e-9


def test_what_was_never_heard_says_nothing() -> None:
    empty = Track()
    assert not empty.begun
    assert empty.at(0) is None
    assert empty.silence(1.0) == math.inf
    assert empty.moved_since(0) == (0.0, 0.0)
    assert not empty.hangs(1.0, TIMEOUT)
    assert empty.falters(0.0)
    assert track([5]).begun


def test_the_oldest_poses_are_forgotten() -> None:
    long = track([n * 300 * MS for n in range(KEPT + 5)])
    assert long.at(4 * 300 * MS) is None
    assert long.at(5 * 300 * MS) == Pose(5.0)
    assert long.newest == Pose(float(KEPT + 4))


def test_a_base_has_moved_by_its_way_and_its_turn() -> None:
    made = Track()
    made.add(Pose(1.0, 1.0, 3.0), 0, 0.0, TIMEOUT)
    made.add(Pose(4.0, 5.0, -3.0), 1000 * MS, 1.0, TIMEOUT)
    moved, turned = made.moved_since(0)
    assert moved == 5.0
    assert turned == pytest.approx(2 * math.pi - 6.0)
    assert made.moved_since(1000 * MS) == (0.0, 0.0)
    assert made.moved_since(600 * MS) == (0.0, 0.0)  # nobody knows


@pytest.mark.parametrize("every", [0.02, 0.05, 0.1, 0.3])
def test_odometry_falters_when_a_message_that_was_due_has_not_come(every: float) -> None:
    made = track([n * 10 * MS for n in range(60)], every)
    last = 59 * every
    limit = max(SOONEST, PERIODS * every)
    assert not made.falters(last + limit * 0.999)
    assert made.falters(last + limit * 1.001)
    assert made.silence(last + 0.25) == pytest.approx(0.25)


def test_the_period_is_learned_slowly_and_not_from_a_silence() -> None:
    made = track([n * 10 * MS for n in range(60)], 0.1)
    made.add(Pose(), 700 * MS, 5.9 + 0.4, TIMEOUT)  # one that is late counts for a fifth
    limit = PERIODS * (0.1 + 0.2 * 0.3)
    assert not made.falters(6.3 + limit * 0.99) and made.falters(6.3 + limit * 1.01)
    made.add(Pose(), 800 * MS, 6.3 + 9.0, TIMEOUT)  # a silence is no period
    assert not made.falters(15.3 + limit * 0.99) and made.falters(15.3 + limit * 1.01)


def test_odometry_hangs_when_it_comes_without_going_on() -> None:
    made = track([1, 2])
    assert not made.hangs(0.5, TIMEOUT)
    for n in range(10):
        made.add(Pose(9.0), 2, 0.2 + 0.1 * n, TIMEOUT)
    assert made.newest == Pose(1.0)
    assert made.silence(1.1) == pytest.approx(1.0)
    assert made.hangs(1.1, TIMEOUT)
    assert not made.hangs(1.1, 1.5)
    assert not made.hangs(1.8, TIMEOUT)  # now nothing comes at all


@pytest.mark.parametrize(
    ("later", "taken"),
    [
        ([(3, 0.3)], False),
        ([(3, 0.3), (4, 0.4)], False),  # something else came just now
        ([(3, 0.8)], False),  # one alone may be a late one
        ([(3, 0.8), (3, 0.9)], False),
        ([(3, 0.8), (2, 0.9)], False),
        ([(3, 0.8), (4, 0.9)], True),
        ([(3, 0.3), (4, 0.9)], True),
        ([(3, 0.8), (10, 0.85), (4, 0.9)], True),  # the last one said again in between
    ],
)
def test_a_track_begins_anew_where_the_old_one_ended_and_the_new_one_goes_on(
    later: list[tuple[int, float]], taken: bool
) -> None:
    made = track([8, 9, 10])
    for stamp, now in later:
        made.add(Pose(-1.0), stamp, now, TIMEOUT)
    assert (made.newest == Pose(-1.0)) == taken
    assert (made.at(10) == Pose(2.0)) == (not taken)
    if taken:
        assert made.silence(later[-1][1]) == 0.0


def test_what_went_back_once_does_not_count_when_odometry_went_on_meanwhile() -> None:
    made = track([8, 9, 10])
    made.add(Pose(-1.0), 3, 0.3, TIMEOUT)
    made.add(Pose(5.0), 11, 0.4, TIMEOUT)
    made.add(Pose(-1.0), 4, 1.4, TIMEOUT)
    assert made.newest == Pose(5.0)


@given(st.floats(-30, 30))
def test_an_angle_is_wrapped_to_half_a_turn(angle: float) -> None:
    wrapped = wrap(angle)
    assert -math.pi <= wrapped <= math.pi
    assert math.cos(wrapped - angle) == pytest.approx(1.0)


@pytest.mark.parametrize("axis", ["x", "y", "yaw"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2 * FARTHEST, -2 * FARTHEST])
def test_a_pose_that_is_no_place_is_told(axis: str, value: float) -> None:
    assert not Pose(**{axis: value}).sane
    assert Pose(**{axis: math.copysign(FARTHEST, value)}).sane


def test_speed_is_over_ground() -> None:
    assert Velocity(0.3, -0.4, 2.0).speed == 0.5


@pytest.mark.parametrize("rate", [10, 50, 200, 500])
def test_odometry_of_any_rate_reaches_back_for_as_long_as_a_frame_may_be_old(rate: int) -> None:
    track, count = Track(), 10 * rate
    for number in range(count):
        at = number / rate
        track.add(Pose(at), int(at * 1e9) + 1, at, 0.5)
    assert track.newest == Pose((count - 1) / rate)
    for age in (0.5, 3.0, 9.0):
        then = track.at(int((track.newest.x - age) * 1e9))
        assert then is not None
        assert abs(track.newest.x - then.x - age) < 0.1
    moved, _ = track.moved_since(int((track.newest.x - 3.0) * 1e9))
    assert moved == pytest.approx(3.0, abs=0.1)
